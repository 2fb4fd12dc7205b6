"""Chooses tokens by the kernels (`csrc/sample.h`): the likeliest, or drawn.

Legend: N rows, V vocabulary.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from exo_engine.kernels.library import Kernels, SampleCall
from exo_engine.kernels.tensors import check


@dataclass(frozen=True, slots=True)
class Filters:
    """How each row is drawn; all (N,)."""

    temperatures: Tensor
    """float32; 0: the likeliest token."""
    log_min_ps: Tensor
    """float32; -inf: all tokens."""
    top_ps: Tensor
    """float64; 1: all tokens."""
    top_ks: Tensor
    """int64; 0: all tokens. With this or top-p a draw goes by likelihood, else by ids."""


def choose_tokens(
    kernels: Kernels, logits: Tensor, filters: Filters | None = None, numbers: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Choose a token for each row.

    Args:
        kernels: what computes.
        logits: (N, V) float32.
        filters: None: each row takes its likeliest token.
        numbers: (N,) float64, where in [0, 1) a row's draw falls; with `filters`.

    Returns:
        Tokens (N,) int64, and (N,) bool, whether the row's largest logit is finite; without that the
        token says nothing.
    """
    check(logits, torch.float32)
    rows, size = logits.shape
    tokens, is_finite = torch.empty(rows, dtype=torch.int64), torch.empty(rows, dtype=torch.bool)
    call = SampleCall(
        logits=logits.data_ptr(),
        tokens=tokens.data_ptr(),
        is_finite=is_finite.data_ptr(),
        rows=rows,
        size=size,
    )
    if filters is not None:
        assert numbers is not None, "a row that is drawn has a number"
        check(filters.temperatures, torch.float32, rows)
        check(filters.log_min_ps, torch.float32, rows)
        check(filters.top_ps, torch.float64, rows)
        check(filters.top_ks, torch.int64, rows)
        check(numbers, torch.float64, rows)
        call.temperatures = filters.temperatures.data_ptr()
        call.log_min_ps = filters.log_min_ps.data_ptr()
        call.top_ps = filters.top_ps.data_ptr()
        call.top_ks = filters.top_ks.data_ptr()
        call.numbers = numbers.data_ptr()
    kernels.choose_tokens(ctypes.byref(call))
    return tokens, is_finite
