"""Steps of single tokens, told to the device in one go: captured once per size of batch, then repeated.

A graph reads and writes memory at fixed places. A step's numbers go there in one copy; a batch that is
smaller than its graph is filled up with sequences that have no context and no slot. Greedy tokens are chosen
inside; other ways to choose begin from the logits.

Legend: S sequences of a step, N of a graph, M blocks of the longest table, G cache groups, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from exo_engine.attention.base import AttentionBackend
from exo_engine.attention.kv_cache import KVCache
from exo_engine.attention.layout import StepArrays, StepLayout
from exo_engine.core.batch import BatchInputs
from exo_engine.core.graphs.device import Captured, DeviceOps, Outputs
from exo_engine.models.decoder import Decoder

_FIELDS = 5  # tokens, positions, context lengths, slots of the runner, whether the token is unknown


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a step gave; overwritten by the next one."""

    logits: Tensor
    """(S, V) float32."""
    tokens: Tensor
    """(S,) int64: the likeliest."""
    is_valid: Tensor
    """(S,) bool: whether there are finite logits."""
    owners: Tensor
    """(S,) int64: the slot of each."""


@dataclass(frozen=True, slots=True)
class _Graph:
    size: int
    captured: Captured


class DecodeGraphs:
    """Graphs of one model over one cache.

    Args:
        decoder: the model.
        attention: its backend, which can be captured.
        cache: keys and values.
        ops: of the device.
        chosen: (slots + 1,) int32: the token chosen last in each slot; the last place is nobody's.
        max_num_seqs: most sequences of a step.
        max_context: most tokens of a sequence.
    """

    def __init__(
        self,
        decoder: Decoder,
        attention: AttentionBackend,
        cache: KVCache,
        ops: DeviceOps,
        chosen: Tensor,
        *,
        max_num_seqs: int,
        max_context: int,
    ) -> None:
        self._decoder, self._attention, self._ops = decoder, attention, ops
        self._chosen = chosen
        self._block_size, self._groups = cache.block_size, cache.num_groups
        self._max_context = max_context
        most, width = max_num_seqs, -(-max_context // cache.block_size)
        empty = torch.zeros
        self._staged = empty(
            most * (_FIELDS + self._groups * (1 + width)), dtype=torch.int32, device=cache.device
        )
        self._fields = empty((_FIELDS, most), dtype=torch.int32, device=cache.device)
        self._slots = empty((self._groups, most), dtype=torch.int64, device=cache.device)
        shape = (self._groups, most, width)
        self._tables = empty(shape, dtype=torch.int32, device=cache.device)
        self._starts = torch.arange(most + 1, dtype=torch.int32, device=cache.device)
        self._graphs: list[_Graph] = []

    @staticmethod
    def can_serve(
        decoder: Decoder, attention: AttentionBackend, cache: KVCache, ops: DeviceOps
    ) -> bool:
        """Whether steps of this model can be captured: nothing in them asks the host."""
        is_asking = cache.has_states or any(each.asks_host for each in decoder.weighted_layers)
        return ops.can_capture and attention.can_be_captured and not is_asking

    @torch.inference_mode()
    def capture(self) -> None:
        """Capture every size, the largest first, whose memory the others use again."""
        for size in reversed(graph_sizes(len(self._starts) - 1)):
            # As a step of nobody: no token is stored, no slot is written.
            self._fields[:, :size] = 0
            self._fields[3, :size] = len(self._chosen) - 1
            self._slots[:, :size] = -1
            captured = self._ops.capture(partial(self._run, size))
            self._graphs.insert(0, _Graph(size, captured))

    def find(self, batch: BatchInputs) -> int | None:
        """Return which graph computes a step; None: none does."""
        num_sequences = len(batch.slots)
        if len(batch.token_ids) != num_sequences:
            return None
        sizes = (place for place, each in enumerate(self._graphs) if each.size >= num_sequences)
        return next(sizes, None)

    def run(self, place: int, batch: BatchInputs) -> Decoded:
        """Compute a step by a graph that `find` gave."""
        graph, num_sequences = self._graphs[place], len(batch.slots)
        self._stage(graph.size, batch)
        graph.captured.replay()
        return Decoded(*(part[:num_sequences] for part in graph.captured.outputs))

    def _stage(self, size: int, batch: BatchInputs) -> None:
        """Bring a step's numbers to where the graph reads them: one copy, the rest on the device."""
        num, width = len(batch.slots), batch.block_tables[0].shape[1]
        fields = np.zeros((_FIELDS, size), dtype=np.int32)
        fields[0, :num] = batch.token_ids
        fields[1, :num] = positions = batch.context_lens - 1
        fields[2, :num] = batch.context_lens
        fields[3] = len(self._chosen) - 1
        fields[3, :num] = batch.slots
        fields[4, batch.unknown_rows] = 1
        rows, (index, offset) = np.arange(num), np.divmod(positions, self._block_size)
        slots = np.full((self._groups, size), -1, dtype=np.int32)
        for own, table in zip(slots, batch.block_tables, strict=True):
            own[:num] = table[rows, index] * self._block_size + offset
        packed = np.concatenate(
            [fields.ravel(), slots.ravel(), *(t.ravel() for t in batch.block_tables)]
        )
        self._ops.upload(torch.from_numpy(packed), self._staged)
        ends = np.cumsum([0, fields.size, slots.size, self._groups * num * width]).tolist()
        parts = [self._staged[start:stop] for start, stop in pairwise(ends)]
        self._fields[:, :size].copy_(parts[0].view(_FIELDS, size))
        self._slots[:, :size].copy_(parts[1].view(self._groups, size))
        self._tables[:, :num, :width].copy_(parts[2].view(self._groups, num, width))

    def _run(self, size: int) -> Outputs:
        """What a graph does; reads nothing but memory at fixed places."""
        token_ids, positions, context_lens, owners, is_unknown = self._fields[:, :size]
        owners = owners.long()
        token_ids = torch.where(is_unknown > 0, self._chosen[owners], token_ids)
        self._attention.begin(self._layout(size, context_lens))
        hidden = self._decoder.forward(token_ids, positions, self._attention)
        logits = self._decoder.logits(hidden)
        values, tokens = logits.max(dim=-1)
        self._chosen.index_copy_(0, owners, tokens.int())
        return logits, tokens, torch.isfinite(values), owners

    def _layout(self, size: int, context_lens: Tensor) -> StepLayout:
        nothing = np.zeros(0, dtype=np.int32)
        return StepLayout(
            host=StepArrays(nothing, nothing, ()),
            query_starts=self._starts[: size + 1],
            context_lens=context_lens,
            block_tables=tuple(self._tables[:, :size]),
            slots=tuple(self._slots[:, :size]),
            fresh_blocks=self._starts[:0].long(),
            num_decodes=size,
            max_query_len=1,
            max_context_len=self._max_context,
        )


def graph_sizes(most: int) -> list[int]:
    """Return for how many sequences there are graphs: few kinds, and little to fill up."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 257, 16), *range(288, 513, 32)]
    return [size for size in sizes if size < most] + [most] if most <= 512 else sizes
