"""Where the states of a step's sequences are read, and where they are written.

A block of a group of states holds the state after its last token that is computed. The runner calls
`begin` once per step, then the model reads and writes once per layer.

Legend: S sequences in step.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from exo_engine.attention.kv_cache import KVCache
from exo_engine.attention.layout import StepLayout
from exo_engine.kernels.uploads import to_device


class States:
    """The states of one model's layers, over its cache."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._blocks: list[tuple[Tensor, Tensor]] = []
        self._is_new = torch.zeros(0)
        self.query_starts: list[int] = []
        """Of the step's sequences, the first token of each, and the end."""
        self.query_starts_on_device = torch.zeros(0)
        """The same, (S + 1,) int32."""
        self.num_decodes = 0
        """Leading sequences with one token."""

    def begin(self, layout: StepLayout) -> None:
        """Find the blocks of each sequence; valid until the next call."""
        if not self._cache.has_states:
            return
        host, size, device = layout.host, self._cache.block_size, self._cache.device
        starts = host.context_lens - np.diff(host.query_starts)
        rows = np.arange(len(starts))
        self.query_starts, self.num_decodes = host.query_starts.tolist(), layout.num_decodes
        self.query_starts_on_device = layout.query_starts
        self._is_new = to_device(starts == 0, device).unsqueeze(1)
        self._blocks = []
        for table in host.block_tables:
            write = table[rows, (host.context_lens - 1) // size].astype(np.int64)
            # A sequence without a state reads anything, which is not used.
            read = np.where(starts > 0, table[rows, np.maximum(starts - 1, 0) // size], write)
            read_from, write_to = (to_device(each, device) for each in (read, write))
            self._blocks.append((read_from, write_to))

    def read(self, layer: int) -> Tensor:
        """Return each sequence's state before the step, (S, numbers) float32; zeros at its start."""
        found = self._cache.read_states(layer, self._blocks[self._cache.group_of(layer)][0])
        return torch.where(self._is_new, 0.0, found)

    def write(self, layer: int, states: Tensor) -> None:
        """Keep each sequence's state after the step, (S, numbers) float32."""
        blocks = self._blocks[self._cache.group_of(layer)][1]
        self._cache.write_states(layer, blocks, states)
