"""Which layers share a block table, and how many bytes a block takes. No torch.

Layers of one kind (full, window W, chunks of C) form one group or several of the same size, and every
group takes its blocks from one pool: a block of any group has the same bytes. The rule for the size is
vLLM's (`v1/core/kv_cache_utils.py`), which the planner follows, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from exo_engine.attention.kv_format import KVFormat
from exo_engine.attention.layer import AttentionLayer, CachedLayer, Reach, StateLayer

_GROUP_TOLERANCE = 1.5
"""The most frequent kind sets the group size while it has fewer layers than this times the rarest."""


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that are given blocks together."""

    reach: Reach
    layers: tuple[int, ...]
    """Their indices in the model."""


@dataclass(frozen=True, slots=True)
class CachePlan:
    """How the pool is laid out: `num_planes` times a page of every block.

    A layer at place i of its group has its keys in plane 2 i and its values in plane 2 i + 1; a
    state begins in the one and goes on in the other. Where all attention is latent a layer has
    one plane, i.
    """

    groups: tuple[CacheGroup, ...]
    num_planes: int
    page_bytes: int
    """Of one block in one plane; a multiple of every layer's row."""
    block_size: int
    """Tokens per block."""
    planes_each: int = 2
    """Planes of one layer."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.num_planes * self.page_bytes

    @property
    def reaches(self) -> tuple[Reach, ...]:
        """How far back each group's tokens see."""
        return tuple(group.reach for group in self.groups)

    def place(self, layer: int) -> tuple[int, int]:
        """Return the group of a layer with a cache of its own, and its place there."""
        for index, group in enumerate(self.groups):
            if layer in group.layers:
                return index, group.layers.index(layer)
        raise KeyError(layer)

    def planes(self, layer: int) -> slice:
        """Return the planes of a layer with a cache of its own."""
        first = self.planes_each * self.place(layer)[1]
        return slice(first, first + self.planes_each)


def fit_block_size(layers: Sequence[CachedLayer], block_size: int, kv_format: KVFormat) -> int:
    """Return the multiple of `block_size` whose pages hold a state, so that both take one pool."""
    states = [layer.num_bytes for layer in layers if isinstance(layer, StateLayer)]
    rows = _row_bytes(layers, kv_format)
    if not states or not rows:
        return block_size
    step = block_size * _num_planes(layers) * max(rows)
    return block_size * max(1, -(-max(states) // step))


def plan_cache(layers: Sequence[CachedLayer], block_size: int, kv_format: KVFormat) -> CachePlan:
    """Lay out a cache for a model's layers."""
    kinds: dict[Reach, list[int]] = {}
    for index, layer in enumerate(layers):
        if layer.kv_layer is None:
            kinds.setdefault(layer.reach, []).append(index)
    size = _group_size([len(members) for members in kinds.values()])
    groups = [
        CacheGroup(reach, tuple(members[start : start + size]))
        for reach, members in kinds.items()
        for start in range(0, len(members), size)
    ]
    rows = _row_bytes(layers, kv_format)
    states = [layer.num_bytes for layer in layers if isinstance(layer, StateLayer)]
    step = math.lcm(4, *rows)
    planes_each = _num_planes(layers)
    least = max(block_size * max(rows, default=0), -(-max(states, default=0) // planes_each))
    page_bytes = -(-least // step) * step
    num_planes = planes_each * max(len(group.layers) for group in groups)
    return CachePlan(tuple(groups), num_planes, page_bytes, block_size, planes_each)


def _num_planes(layers: Sequence[CachedLayer]) -> int:
    attention = [layer.num_planes for layer in layers if isinstance(layer, AttentionLayer)]
    return max(attention, default=2)


def _row_bytes(layers: Sequence[CachedLayer], kv_format: KVFormat) -> set[int]:
    return {
        kv_format.row_bytes(layer.num_kv_heads, layer.head_dim)
        for layer in layers
        if isinstance(layer, AttentionLayer) and layer.kv_layer is None
    }


def _group_size(counts: list[int]) -> int:
    smallest, largest = min(counts), max(counts)
    return largest if largest < _GROUP_TOLERANCE * smallest else smallest
