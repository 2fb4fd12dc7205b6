"""The tensors that hold keys and values, by block. Which block belongs to whom is not known here.

One K and one V tensor per layer, `[blocks, block_size, kv_heads, head_dim]`. A slot is
`block * block_size + offset`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from exo_engine.core.block_manager import BlockCopy
from exo_engine.models.spec import DecoderSpec


class KVCache:
    """Keys and values of all layers."""

    def __init__(
        self,
        spec: DecoderSpec,
        num_blocks: int,
        block_size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_blocks, block_size, spec.num_kv_heads, spec.head_dim)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.device = device
        # Zeros, not empty: a masked-out slot of NaN would still poison a weighted sum.
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        for _ in range(spec.num_layers):
            self.keys.append(torch.zeros(shape, dtype=dtype, device=device))
            self.values.append(torch.zeros(shape, dtype=dtype, device=device))

    @property
    def most_bytes_per_token(self) -> int:
        """Bytes of one token's keys and values in the layer that has the most."""
        return 2 * self.keys[0][0, 0].nbytes

    @staticmethod
    def group_of(layer: int) -> int:
        """Return the group that holds a layer's keys and values."""
        del layer
        return 0

    def read(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and the values of `blocks` (B,), each (B * block_size, Hkv, D)."""
        keys = self.keys[layer].index_select(0, blocks)
        values = self.values[layer].index_select(0, blocks)
        return keys.flatten(0, 1), values.flatten(0, 1)

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values (T, Hkv, D) of one layer at `slots` (T,) int64."""
        self.keys[layer].flatten(0, 1).index_copy_(0, slots, keys)
        self.values[layer].flatten(0, 1).index_copy_(0, slots, values)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Execute block copies in every layer; targets are distinct and never sources."""
        if not copies:
            return
        device = self.keys[0].device
        sources = torch.tensor([copy.source for copy in copies], device=device)
        targets = torch.tensor([copy.target for copy in copies], device=device)
        for tensor in (*self.keys, *self.values):
            tensor.index_copy_(0, targets, tensor.index_select(0, sources))

    def clear_broken(self, blocks: Sequence[int]) -> None:
        """Zero those of `blocks` that hold anything but finite numbers.

        Whoever gets the block next masks out what it has not written, but zero times NaN is NaN.
        """
        index = torch.tensor(list(blocks), device=self.keys[0].device)
        for tensor in (*self.keys, *self.values):
            is_broken = ~tensor[index].isfinite().flatten(1).all(dim=1)
            tensor[index[is_broken]] = 0
