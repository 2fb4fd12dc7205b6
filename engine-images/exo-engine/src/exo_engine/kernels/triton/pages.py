"""Pages of a cache as the kernels see them: (Hkv, B, D) numbers, and their scales behind them.

Legend: P pages, B tokens of a page, Hkv key/value heads, D head dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from exo_engine.attention.kv_format import KVFormat


_STORED = {"fp8_e4m3": "e4m3", "float8_e4m3fn": "e4m3", "int8": "int8"}


@dataclass(frozen=True, slots=True)
class Pages:
    """Keys and values of one layer."""

    keys: Tensor
    """(P, numbers); bytes of e4m3 are uint8."""
    values: Tensor
    """Likewise; of latent attention the keys themselves."""
    key_scales: Tensor
    """(P, page bytes / 4) float32, the same memory; where there are no scales, anything."""
    value_scales: Tensor
    num_kv_heads: int
    head_dim: int
    page_size: int
    """B."""
    stored: str
    """What `STORED` of the kernels may be: plain, e4m3, int8."""

    @classmethod
    def view(
        cls,
        planes: tuple[Tensor, Tensor],
        kv_format: KVFormat,
        *,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
    ) -> Pages:
        """See the bytes (P, page bytes) of a layer's keys and values as pages; a `head_dim` is of a key."""
        stored = _STORED.get(kv_format.name, "plain")
        types = {"e4m3": torch.uint8, "int8": torch.int8}
        number_type = types.get(stored) or getattr(torch, kv_format.name)
        keys, values = (plane.view(number_type) for plane in planes)
        key_scales, value_scales = (plane.view(torch.float32) for plane in planes)
        return cls(
            keys, values, key_scales, value_scales, num_kv_heads, head_dim, page_size, stored
        )


def can_hold(num_kv_heads: int, head_dim: int, page_size: int) -> bool:
    """Whether the scales of such pages begin where a float32 may."""
    return num_kv_heads * head_dim * page_size % 4 == 0
