"""Chooses tokens by the kernels (`csrc/sample.h`): the likeliest, or drawn; and forbids some before.

Legend: N rows, M of them with a mask, V vocabulary, W words of a mask.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from exo_engine.kernels.library import Kernels, MaskCall, SampleCall
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


def forbid_tokens(
    kernels: Kernels, logits: Tensor, masks: Tensor, rows: Tensor | None = None
) -> Tensor:
    """Leave only the tokens that masks allow, in place; the others become -inf.

    Args:
        kernels: what computes.
        logits: (N, V) float32; overwritten.
        masks: (M, W) int32, a bit per token that is allowed, the lowest first; W * 32 is V or more.
        rows: (M,) int64, the row of each mask; None: all rows, in order.

    Returns:
        (N,) bool, whether the row's largest logit was finite before.
    """
    check(logits, torch.float32)
    check(masks, torch.int32)
    num_rows, size = logits.shape
    num_words = masks.shape[1]
    assert 32 * num_words >= size, "every token has a bit"
    if rows is None:
        places = torch.arange(num_rows)
        assert len(masks) == num_rows, "every row has a mask"
    else:
        places = torch.full((num_rows,), -1)
        places[rows] = torch.arange(len(masks))
    is_finite = torch.empty(num_rows, dtype=torch.bool)
    call = MaskCall(
        logits=logits.data_ptr(),
        masks=masks.data_ptr(),
        places=places.data_ptr(),
        is_finite=is_finite.data_ptr(),
        rows=num_rows,
        size=size,
        num_words=num_words,
    )
    kernels.forbid_tokens(ctypes.byref(call))
    return is_finite
