"""What lies between the products of a layer (`csrc/pointwise.h`), each in one pass.

Legend: T tokens in step, E hidden size, H query heads, Hkv key/value heads, D head dim.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from exo_engine.kernels.library import Kernels, RotateCall
from exo_engine.kernels.pages import Pages, page_shape
from exo_engine.kernels.tensors import check


def add_and_normalise(
    kernels: Kernels, states: Tensor, update: Tensor | None, weight: Tensor, eps: float
) -> Tensor:
    """Add an update to hidden states, in place, and return them normalised.

    Args:
        kernels: what computes.
        states: (T, E) bf16; changed.
        update: (T, E) bf16; None: nothing is added.
        weight: (E,) bf16 of the norm.
        eps: of the norm.

    Returns:
        (T, E) bf16.
    """
    check(states, torch.bfloat16)
    check(weight, torch.bfloat16, states.shape[-1])
    if update is not None:
        check(update, torch.bfloat16, *states.shape)
    outputs = torch.empty_like(states)
    kernels.add_and_normalise(
        states.data_ptr(),
        None if update is None else update.data_ptr(),
        weight.data_ptr(),
        outputs.data_ptr(),
        states.numel() // len(weight),
        len(weight),
        eps,
    )
    return outputs


def silu_and_multiply(kernels: Kernels, merged: Tensor) -> Tensor:
    """Return silu(first half) * second half of `merged` (T, 2 I) bf16: (T, I)."""
    check(merged, torch.bfloat16)
    rows, size = len(merged), merged.shape[1] // 2
    outputs = torch.empty(rows, size, dtype=torch.bfloat16)
    kernels.silu_and_multiply(merged.data_ptr(), outputs.data_ptr(), rows, size)
    return outputs


def rotate_and_store(
    kernels: Kernels,
    merged: Tensor,
    num_heads: int,
    keys: Pages,
    values: Pages,
    cosines: Tensor,
    sines: Tensor,
    positions: Tensor,
    slots: Tensor,
    *,
    norms: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
) -> Tensor:
    """Turn queries and keys by their positions and store keys and values in their pages.

    Args:
        kernels: what computes.
        merged: (T, (H + 2 Hkv) D) bf16: queries, keys and values after one another.
        num_heads: H.
        keys: as `attention.attend` reads them.
        values: likewise.
        cosines: (positions, D / 2) float32.
        sines: likewise.
        positions: (T,) int32.
        slots: (T,) int64, page * page size + place in it.
        norms: weights (D,) bf16 of the norms of query and key heads, applied before; None: none.
        eps: of the norms.

    Returns:
        The turned queries, (T, H, D) bf16.
    """
    pages = page_shape(keys, values)
    num_tokens, num_kv_heads, head_dim = len(merged), pages.kv_heads, pages.head_dim
    check(merged, torch.bfloat16, num_tokens, (num_heads + 2 * num_kv_heads) * head_dim)
    for angles in (cosines, sines):
        check(angles, torch.float32, len(cosines), head_dim // 2)
    check(positions, torch.int32, num_tokens)
    check(slots, torch.int64, num_tokens)
    for weight in norms or ():
        check(weight, torch.bfloat16, head_dim)
    queries = torch.empty(num_tokens, num_heads, head_dim, dtype=torch.bfloat16)
    query_weight, key_weight = norms or (None, None)
    call = RotateCall(
        pages=pages,
        merged=merged.data_ptr(),
        query_weight=None if query_weight is None else query_weight.data_ptr(),
        key_weight=None if key_weight is None else key_weight.data_ptr(),
        cosines=cosines.data_ptr(),
        sines=sines.data_ptr(),
        positions=positions.data_ptr(),
        slots=slots.data_ptr(),
        queries=queries.data_ptr(),
        tokens=num_tokens,
        heads=num_heads,
        eps=eps,
    )
    kernels.rotate_and_store(ctypes.byref(call))
    return queries
