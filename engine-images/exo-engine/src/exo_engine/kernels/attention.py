"""Paged attention of the kernels (`csrc/attention.h`) and the pages it reads.

Legend: T tokens in step, S sequences, H query heads, Hkv key/value heads, D head dim, P pages, B page size.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from exo_engine.kernels.library import AttentionCall, Kernels
from exo_engine.kernels.tensors import check, check_pages

PAGE_STEP = 16
"""A page has a multiple of so many tokens."""
MAX_HEAD_DIM = 256


def can_attend(head_dim: int, page_size: int) -> bool:
    """Whether the kernels can read pages of this size and form."""
    return head_dim % PAGE_STEP == 0 and head_dim <= MAX_HEAD_DIM and page_size % PAGE_STEP == 0


def page_shapes(
    num_kv_heads: int, head_dim: int, page_size: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of one page's keys and values as they are stored."""
    keys = (num_kv_heads, head_dim // 2, page_size, 2)
    values = (num_kv_heads, page_size // 2, head_dim, 2)
    return keys, values


def attend(
    kernels: Kernels,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
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
        keys: (P, *page_shapes()[0]) bf16; the step's own are already stored.
        values: (P, *page_shapes()[1]) bf16.
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
    check_pages(keys, values)
    _, num_heads, head_dim = queries.shape
    num_kv_heads, page_size = keys.shape[1], keys.shape[3]
    assert can_attend(head_dim, page_size), (
        f"no kernel for heads of {head_dim}, pages of {page_size}"
    )
    outputs = torch.empty_like(queries)
    call = AttentionCall(
        queries=queries.data_ptr(),
        keys=keys.data_ptr(),
        values=values.data_ptr(),
        tables=tables.data_ptr(),
        starts=starts.data_ptr(),
        contexts=contexts.data_ptr(),
        sinks=None if sinks is None else sinks.data_ptr(),
        outputs=outputs.data_ptr(),
        num_sequences=len(contexts),
        table_stride=tables.shape[1],
        page_stride=keys.stride(0),
        kv_heads=num_kv_heads,
        group=num_heads // num_kv_heads,
        head_dim=head_dim,
        page_size=page_size,
        window=window or 0,
        chunk=chunk or 0,
        scale=scale,
        soft_cap=soft_cap or 0.0,
    )
    kernels.attend(ctypes.byref(call))
    return outputs
