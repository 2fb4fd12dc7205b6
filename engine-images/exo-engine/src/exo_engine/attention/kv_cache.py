"""The bytes that hold keys and values. Which block belongs to whom is not known here.

One tensor of bytes, `[planes, blocks, page_bytes]`; each layer sees its two planes as rows of its own
shape (`cache_plan`). A slot is `block * block_size + offset`.

Legend: T tokens in step, B blocks, Hkv key/value heads, D head dim.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from exo_engine.attention.cache_plan import CachePlan
from exo_engine.attention.kv_format import KVFormat
from exo_engine.attention.layer import AttentionLayer, CachedLayer, Reach, StateLayer
from exo_engine.kernels.uploads import to_device

if TYPE_CHECKING:
    from exo_engine.core.block_manager import BlockCopy


class KVCache:
    """Keys and values of all layers.

    Args:
        layers: of the model.
        plan: made from these layers.
        kv_format: how numbers are stored.
        num_blocks: blocks in the pool.
        dtype: of the keys and values that come and go.
        device: where the pool is.
    """

    def __init__(
        self,
        layers: Sequence[CachedLayer],
        plan: CachePlan,
        kv_format: KVFormat,
        num_blocks: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = plan.block_size
        self.device = device
        self._layers = layers
        self._plan = plan
        self._format = kv_format
        self._dtype = dtype
        self.stored: torch.dtype = getattr(torch, kv_format.name)
        """Of the keys and values in the pool."""
        self.pool = _zeros((plan.num_planes, num_blocks, plan.page_bytes), device)
        self._groups = [0] * len(layers)
        self._planes: dict[int, list[Tensor]] = {}
        self._states: dict[int, Tensor] = {}
        for index, layer in enumerate(layers):
            source = index if layer.kv_layer is None else layer.kv_layer
            self._groups[index], _ = plan.place(source)
            planes = self.pool[plan.planes(source)]
            if isinstance(layer, AttentionLayer):
                self._planes[index] = [
                    self._rows(each, layer) for each in planes[: layer.num_planes]
                ]
            else:
                self._states[index] = planes

    @property
    def num_groups(self) -> int:
        """How many block tables a sequence has."""
        return len(self._plan.groups)

    @property
    def reaches(self) -> tuple[Reach, ...]:
        """How far back each group's tokens see."""
        return self._plan.reaches

    @property
    def kv_format(self) -> KVFormat:
        """How numbers are stored."""
        return self._format

    @property
    def has_states(self) -> bool:
        """Whether some layer keeps a state."""
        return bool(self._states)

    @property
    def dtype(self) -> torch.dtype:
        """Of the keys and values that come and go."""
        return self._dtype

    @property
    def is_lossy(self) -> bool:
        """Whether what is read differs from what was written."""
        return self.stored != self._dtype

    @property
    def most_bytes_per_token(self) -> int:
        """Bytes of one token's keys and values, as they are read, in the layer that has the most."""
        return max(
            layer.num_planes * layer.num_kv_heads * layer.head_dim * self._dtype.itemsize
            for layer in self._layers
            if isinstance(layer, AttentionLayer)
        )

    def group_of(self, layer: int) -> int:
        """Return the group whose blocks hold what a layer reads."""
        return self._groups[layer]

    def planes(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the bytes of a layer's keys and of its values, each (blocks, page bytes).

        Those of latent attention are the same.
        """
        source = self._layers[layer].kv_layer
        keys, *values = self.pool[self._plan.planes(layer if source is None else source)]
        spec = self._layers[layer]
        assert isinstance(spec, AttentionLayer), "only it has keys"
        return keys, keys if spec.num_latent else values[0]

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values (T, Hkv, D) of one layer at `slots` (T,) int64.

        Values of latent attention are part of the keys already.
        """
        for plane, states in zip(self._planes[layer], (keys, values), strict=False):
            per_block = plane.shape[0] // self.num_blocks
            rows = slots
            if per_block != self.block_size:
                rows = slots + slots // self.block_size * (per_block - self.block_size)
            numbers, scales = self.encode(states)
            if scales is not None:
                numbers = torch.cat(
                    (numbers.view(torch.uint8), scales.unsqueeze(-1).view(torch.uint8)), dim=-1
                )
            plane.index_copy_(0, rows, numbers)

    def read(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and the values of `blocks` (B,), each (B * block_size, Hkv, D)."""
        keys, *values = (self._gather(plane, blocks) for plane in self._planes[layer])
        return keys, values[0] if values else self._latent_values(layer, keys)

    def _latent_values(self, layer: int, keys: Tensor) -> Tensor:
        spec = self._layers[layer]
        assert isinstance(spec, AttentionLayer), "only it has keys"
        return keys[..., : spec.num_latent]

    def read_states(self, layer: int, blocks: Tensor) -> Tensor:
        """Return what `blocks` (B,) hold of a layer's states, (B, numbers) float32."""
        planes = self._states[layer].index_select(1, blocks)
        states = planes.transpose(0, 1).flatten(1).view(torch.float32)
        return states[:, : self._num_state_numbers(layer)]

    def write_states(self, layer: int, blocks: Tensor, states: Tensor) -> None:
        """Store states (B, numbers) float32 of a layer in `blocks` (B,) int64."""
        page_bytes, num_planes = self._plan.page_bytes, self._plan.planes_each
        padding = num_planes * page_bytes // torch.float32.itemsize - states.shape[1]
        padded = torch.nn.functional.pad(states, (0, padding)).view(torch.uint8)
        planes = padded.view(len(blocks), num_planes, page_bytes).transpose(0, 1)
        self._states[layer].index_copy_(1, blocks, planes)

    def _num_state_numbers(self, layer: int) -> int:
        kept = self._layers[layer]
        assert isinstance(kept, StateLayer), "of a layer with a state"
        return kept.num_bytes // torch.float32.itemsize

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Execute block copies in every layer; targets are distinct and never sources."""
        if not copies:
            return
        pairs = np.array([(copy.source, copy.target) for copy in copies], dtype=np.int64)
        sources, targets = to_device(pairs.T, self.device)
        self.pool.index_copy_(1, targets, self.pool.index_select(1, sources))

    def clear(self, blocks: Tensor) -> None:
        """Zero `blocks` (B,) int64 in every layer.

        What is masked out must be finite all the same: zero times NaN is NaN.
        """
        if len(blocks):
            self.pool.view(torch.int32).index_fill_(1, blocks, 0)  # bytes take eight times as long

    def _rows(self, plane: Tensor, layer: AttentionLayer) -> Tensor:
        """View a plane (blocks, page_bytes) as rows (blocks * n, Hkv, numbers of a head)."""
        shape = (-1, layer.num_kv_heads)
        if self._format.is_scaled:
            row = self._format.row_bytes(1, layer.head_dim)
            return plane.view(*shape, row)
        return plane.view(self.stored).view(*shape, layer.head_dim)

    def _gather(self, plane: Tensor, blocks: Tensor) -> Tensor:
        # index_select copies whole blocks; indexing rows is several times slower.
        pages = plane.view(self.num_blocks, -1, *plane.shape[1:]).index_select(0, blocks)
        return self._decode(pages[:, : self.block_size].flatten(0, 1))

    def encode(self, states: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return states (T, Hkv, D) as they are stored, and scales (T, Hkv) float32 if the format has them."""
        if self._format.largest is None:
            return states.to(self.stored), None
        numbers = states.float()
        scales = numbers.abs().amax(dim=-1).clamp(min=1e-12) / self._format.largest
        numbers = numbers / scales.unsqueeze(-1)
        if self.stored == torch.int8:
            numbers = numbers.round()
        return numbers.to(self.stored), scales

    def _decode(self, rows: Tensor) -> Tensor:
        """Return rows as states (T, Hkv, D)."""
        if self._format.largest is None:
            return rows.to(self._dtype)
        head_dim = rows.shape[-1] - torch.float32.itemsize
        numbers = rows[..., :head_dim].contiguous().view(self.stored).float()
        scales = rows[..., head_dim:].contiguous().view(torch.float32)
        return (numbers * scales).to(self._dtype)


def _zeros(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Return bytes of zero, which on the CPU take memory only once they are touched."""
    if device.type == "cpu":
        # Not numpy's zeros: it asks for pages of 2 MiB, and each plane has some of every step.
        pages = mmap.mmap(-1, math.prod(shape))
        return torch.from_numpy(np.frombuffer(pages, dtype=np.uint8).reshape(shape))
    return torch.zeros(shape, dtype=torch.uint8, device=device)
