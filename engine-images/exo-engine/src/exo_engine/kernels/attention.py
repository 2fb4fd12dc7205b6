"""Paged attention of the kernels (`csrc/attention.h`).

Legend: T tokens in step, S sequences, H query heads, D head dim.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from exo_engine.kernels.library import AttentionCall, Kernels
from exo_engine.kernels.pages import Pages, can_read, page_shape
from exo_engine.kernels.tensors import check


def attend(
    kernels: Kernels,
    queries: Tensor,
    keys: Pages,
    values: Pages,
    tables: Tensor,
    starts: Tensor,
    contexts: Tensor,
    *,
    scale: float,
    window: int | None = None,
    chunk: int | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return what each query sees of its sequence: causal attention.

    Args:
        kernels: what computes.
        queries: (T, H, D) bf16.
        keys: those of the step are already stored.
        values: likewise.
        tables: (S, M) int32, pages of each sequence.
        starts: (S + 1) int32, where each sequence's tokens begin among the queries.
        contexts: (S) int32, tokens of each sequence up to and including its last one of this step.
        scale: of the logits.
        window: a token sees so many tokens including itself; None: all before it.
        chunk: a token sees those of its chunk, which begin at multiples of this; None: all before.
        soft_cap: logits become `cap * tanh(logits / cap)`.
        sinks: (H) float32, a logit per head that takes part in the sum alone.

    Returns:
        (T, H, D) bf16.
    """
    check(queries, torch.bfloat16)
    for tensor in (tables, starts, contexts):
        check(tensor, torch.int32)
    pages = page_shape(keys, values)
    assert can_read(pages.head_dim, pages.page_size), (
        f"no kernel for heads of {pages.head_dim}, pages of {pages.page_size}"
    )
    outputs = torch.empty_like(queries)
    call = AttentionCall(
        pages=pages,
        queries=queries.data_ptr(),
        tables=tables.data_ptr(),
        starts=starts.data_ptr(),
        contexts=contexts.data_ptr(),
        sinks=None if sinks is None else sinks.data_ptr(),
        outputs=outputs.data_ptr(),
        num_sequences=len(contexts),
        table_stride=tables.shape[1],
        group=queries.shape[1] // pages.kv_heads,
        window=window or 0,
        chunk=chunk or 0,
        scale=scale,
        soft_cap=soft_cap or 0.0,
    )
    kernels.attend(ctypes.byref(call))
    return outputs
