"""Pages of keys and values as the kernels read and fill them (`csrc/pages.h`).

Legend: Hkv key/value heads, D head dim, P pages, B page size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exo_engine.kernels.library import PageShape
from exo_engine.kernels.tensors import check

PAGE_STEP = 16
"""A page has a multiple of so many tokens."""
MAX_HEAD_DIM = 256
_SCALE_BYTES = 4


def can_read(head_dim: int, page_size: int) -> bool:
    """Whether the kernels can read pages of this size and form."""
    return head_dim % PAGE_STEP == 0 and head_dim <= MAX_HEAD_DIM and page_size % PAGE_STEP == 0


@dataclass(frozen=True, slots=True)
class Pages:
    """The keys, or the values, of one layer."""

    numbers: Tensor
    """bf16 or int8; keys (P, Hkv, D / 2, B, 2), values (P, Hkv, B / 2, D, 2)."""
    scales: Tensor | None
    """(P, Hkv, B) float32, of int8: of all numbers that a token has in a head."""

    @staticmethod
    def num_bytes(num_kv_heads: int, head_dim: int, page_size: int, dtype: torch.dtype) -> int:
        """Return the bytes of a page of keys, or of values."""
        scale_bytes = _SCALE_BYTES if dtype == torch.int8 else 0
        return num_kv_heads * page_size * (head_dim * dtype.itemsize + scale_bytes)

    @classmethod
    def keys_and_values(
        cls,
        keys: Tensor,
        values: Tensor,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        dtype: torch.dtype,
    ) -> tuple[Pages, Pages]:
        """See bytes (P, at least `num_bytes`) of keys and of values as pages of `dtype`, bf16 or int8."""
        assert dtype in (torch.bfloat16, torch.int8), f"the kernels read no {dtype}"
        used = cls.num_bytes(num_kv_heads, head_dim, page_size, dtype)
        end = page_size * head_dim * dtype.itemsize

        def view(plane: Tensor, *shape: int) -> Pages:
            heads = plane[:, :used].view(len(plane), num_kv_heads, -1)
            numbers = heads[..., :end].view(dtype).view(len(plane), num_kv_heads, *shape)
            has_scales = dtype == torch.int8
            return cls(numbers, heads[..., end:].view(torch.float32) if has_scales else None)

        return view(keys, head_dim // 2, page_size, 2), view(values, page_size // 2, head_dim, 2)


def page_shape(keys: Pages, values: Pages) -> PageShape:
    """Return what the kernels are told of pages, which are checked."""
    for pages in (keys, values):
        check(pages.numbers[0, 0], keys.numbers.dtype)
        assert pages.numbers.stride()[:2] == keys.numbers.stride()[:2], "one stride serves both"
    _, num_kv_heads, half_dim, page_size, _ = keys.numbers.shape
    return PageShape(
        keys=keys.numbers.data_ptr(),
        values=values.numbers.data_ptr(),
        page_stride=keys.numbers.stride(0),
        kv_heads=num_kv_heads,
        head_dim=2 * half_dim,
        page_size=page_size,
        is_quantized=keys.scales is not None,
    )
