"""Steps of few tokens per sequence, told to the device in one go: captured once per size of batch, then repeated.

A graph reads and writes memory at fixed places. A step's numbers go there in one copy; a batch that is
smaller than its graph is filled up with sequences that have no context and no slot, and a sequence with fewer tokens
than its graph has with tokens of no meaning at the positions before its own: what they give is read by nobody, and
their keys and values are not stored. The likeliest tokens are chosen inside; `choice_graphs.py` chooses in other ways
from the logits.

Legend: S sequences of a step, N of a graph, Q tokens of each, T = N Q, M blocks of the longest table, G cache groups,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from exo_engine.attention.base import AttentionBackend
from exo_engine.attention.kv_cache import KVCache
from exo_engine.attention.layout import StepArrays, StepLayout
from exo_engine.core.batch import BatchInputs
from exo_engine.core.graphs.choice_graphs import ChoiceGraphs
from exo_engine.core.graphs.device import Captured, DeviceOps, Outputs
from exo_engine.models.decoder import Decoder

_Kind = TypeVar("_Kind")
_OF_TOKENS = 3  # token, position, whether the token is unknown
_OF_SEQUENCES = 2  # context length, slot of the runner


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a step gave; overwritten by the next one."""

    logits: Tensor
    """(S Q, V) float32."""
    tokens: Tensor
    """(S Q,) int64: the likeliest."""
    is_valid: Tensor
    """(S Q,) bool: whether there are finite logits."""
    owners: Tensor
    """(S,) int64: the slot of each."""
    tokens_each: int
    """Q. A sequence with fewer tokens in the step has the last of these rows."""


@dataclass(frozen=True, slots=True)
class _Graph:
    tokens_each: int
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
        tokens_each: for how many tokens of each sequence there are graphs; with guesses to be verified more than 1.
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
        tokens_each: Sequence[int] = (1,),
    ) -> None:
        self._decoder, self._attention, self._ops = decoder, attention, ops
        self._chosen = chosen
        self._block_size, self._groups = cache.block_size, cache.num_groups
        self._windows = [each for each in cache.reaches if not each.sees_all]
        self._max_context = max_context
        self._sizes = graph_sizes(max_num_seqs)
        self._tokens_each = sorted(tokens_each)
        most, width = self._sizes[-1], -(-max_context // cache.block_size)
        most_tokens = most * self._tokens_each[-1]
        numbers, device = partial(torch.zeros, dtype=torch.int32, device=cache.device), cache.device
        per_sequence = _OF_SEQUENCES + self._groups * width
        self._staged = numbers(most_tokens * (_OF_TOKENS + self._groups) + most * per_sequence)
        self._of_tokens = numbers((_OF_TOKENS, most_tokens))
        self._of_sequences = numbers((_OF_SEQUENCES, most))
        self._slots = torch.zeros(self._groups, most_tokens, dtype=torch.int64, device=device)
        self._tables = numbers((self._groups, most, width))
        self._starts = torch.arange(most_tokens + 1, dtype=torch.int32, device=device)
        shape = most_tokens, decoder.spec.vocab_size
        self._logits = torch.zeros(shape, dtype=torch.float32, device=device)
        self._graphs: list[_Graph] = []
        self.choices = ChoiceGraphs(self._logits, ops)
        """From the logits of the step that was run last."""

    @staticmethod
    def can_serve(
        decoder: Decoder, attention: AttentionBackend, cache: KVCache, ops: DeviceOps
    ) -> bool:
        """Whether steps of this model can be captured: nothing in them asks the host."""
        is_asking = cache.has_states or any(each.asks_host for each in decoder.weighted_layers)
        return ops.can_capture and attention.can_be_captured and not is_asking

    def capture(self) -> None:
        """Capture every size, the largest first, whose memory the others use again."""
        for kind in self._kinds:
            self._capture(kind)
        for num_rows in self.choices.kinds:
            self.choices.capture(num_rows)

    def rehearse(self) -> int:
        """Capture the largest graphs; return how many bytes `capture` would take."""
        of_model = self._bytes_of_all(self._kinds, self._capture)
        return of_model + self._bytes_of_all(self.choices.kinds, self.choices.capture)

    @property
    def _kinds(self) -> list[tuple[int, int]]:
        """Tokens of each sequence and sequences, the most first."""
        return [(each, size) for each in self._tokens_each[::-1] for size in self._sizes[::-1]]

    @torch.inference_mode()
    def _capture(self, kind: tuple[int, int]) -> None:
        each, size = kind
        # As a step of nobody: no token is stored, no slot is written.
        self._of_tokens[:, : size * each] = 0
        self._of_sequences[0, :size] = 0
        self._of_sequences[1, :size] = len(self._chosen) - 1
        self._slots[:, : size * each] = -1
        captured = self._ops.capture(partial(self._run, each, size))
        self._graphs.insert(0, _Graph(each, size, captured))

    def _bytes_of_all(self, kinds: Sequence[_Kind], capture: Callable[[_Kind], None]) -> int:
        """Capture two kinds: all but the first use its memory again, and take what the second takes."""
        taken = []
        for kind in kinds[:2]:
            before = self._ops.used_bytes()
            capture(kind)
            taken.append(max(0, self._ops.used_bytes() - before))
        return taken[0] + sum(taken[1:]) * (len(kinds) - 1)

    def find(self, batch: BatchInputs) -> int | None:
        """Return which graph computes a step; None: none does."""
        num_sequences, longest = len(batch.slots), int(np.diff(batch.query_starts).max())
        for place, each in enumerate(self._graphs):
            if each.size >= num_sequences and each.tokens_each >= longest:
                is_filled = each.tokens_each == 1 or self._can_fill_up(batch, each.tokens_each)
                return place if is_filled else None
        return None

    def _can_fill_up(self, batch: BatchInputs, tokens_each: int) -> bool:
        """Whether tokens put before a sequence's own would have positions, and see no block that it does not.

        A block that only they see may have been given back by now: the table has no number of it, or that of
        a block of others, and what is no number there would reach the sequence's own tokens.
        """
        own = batch.context_lens - np.diff(batch.query_starts)
        filled = batch.context_lens - tokens_each
        size = self._block_size
        return filled.min() >= 0 and all(
            (reach.first_seen(filled) // size == reach.first_seen(own) // size).all()
            for reach in self._windows
        )

    def run(self, place: int, batch: BatchInputs) -> Decoded:
        """Compute a step by a graph that `find` gave."""
        graph, num_sequences = self._graphs[place], len(batch.slots)
        self._stage(graph, batch)
        graph.captured.replay()
        num_rows = num_sequences * graph.tokens_each
        tokens, is_valid, owners = graph.captured.outputs
        return Decoded(
            self._logits[:num_rows],
            tokens[:num_rows],
            is_valid[:num_rows],
            owners[:num_sequences],
            graph.tokens_each,
        )

    def _stage(self, graph: _Graph, batch: BatchInputs) -> None:
        """Bring a step's numbers to where the graph reads them: one copy, the rest on the device."""
        size, each = graph.size, graph.tokens_each
        num, width = len(batch.slots), batch.block_tables[0].shape[1]
        lengths = np.diff(batch.query_starts)
        rows = np.repeat(np.arange(num), lengths)
        # The tokens of a sequence are its last ones of the graph.
        places = np.arange(len(rows)) + ((np.arange(num) + 1) * each - batch.query_starts[1:])[rows]
        of_tokens = np.zeros((_OF_TOKENS, size * each), dtype=np.int32)
        of_tokens[0, places] = batch.token_ids
        positions = batch.context_lens[:, None] + np.arange(-each, 0)
        of_tokens[1, : num * each] = positions.ravel()
        of_tokens[2, places[batch.unknown_rows]] = 1
        of_sequences = np.zeros((_OF_SEQUENCES, size), dtype=np.int32)
        of_sequences[0, :num] = batch.context_lens
        of_sequences[1] = len(self._chosen) - 1
        of_sequences[1, :num] = batch.slots
        index, offset = np.divmod(of_tokens[1, places], self._block_size)
        slots = np.full((self._groups, size * each), -1, dtype=np.int32)
        for own, table in zip(slots, batch.block_tables, strict=True):
            own[places] = table[rows, index] * self._block_size + offset
        parts = [of_tokens, of_sequences, slots, *batch.block_tables]
        self._ops.upload(torch.from_numpy(np.concatenate([p.ravel() for p in parts])), self._staged)
        shapes = of_tokens.shape, of_sequences.shape, slots.shape, (self._groups, num, width)
        ends = np.cumsum([0, *map(np.prod, shapes)]).tolist()
        staged = [
            self._staged[start:stop].view(shape)
            for (start, stop), shape in zip(pairwise(ends), shapes, strict=True)
        ]
        self._of_tokens[:, : size * each].copy_(staged[0])
        self._of_sequences[:, :size].copy_(staged[1])
        self._slots[:, : size * each].copy_(staged[2])
        self._tables[:, :num, :width].copy_(staged[3])

    def _run(self, tokens_each: int, size: int) -> Outputs:
        """What a graph does; reads nothing but memory at fixed places."""
        num_tokens = size * tokens_each
        token_ids, positions, is_unknown = self._of_tokens[:, :num_tokens]
        context_lens, owners = self._of_sequences[:, :size]
        owners = owners.long()
        known = self._chosen[owners.unsqueeze(1).expand(size, tokens_each).reshape(-1)]
        token_ids = torch.where(is_unknown > 0, known, token_ids)
        self._attention.begin(self._layout(tokens_each, size, context_lens))
        hidden = self._decoder.forward(token_ids, positions, self._attention)
        logits = self._decoder.logits(hidden, self._logits[:num_tokens])
        values, tokens = logits.max(dim=-1)
        self._chosen.index_copy_(0, owners, tokens[tokens_each - 1 :: tokens_each].int())
        return tokens, torch.isfinite(values), owners

    def _layout(self, tokens_each: int, size: int, context_lens: Tensor) -> StepLayout:
        nothing = np.zeros(0, dtype=np.int32)
        is_single = tokens_each == 1
        return StepLayout(
            host=StepArrays(nothing, nothing, ()),
            query_starts=self._starts[: size * tokens_each + 1 : tokens_each].contiguous(),
            context_lens=context_lens,
            block_tables=tuple(self._tables[:, :size]),
            slots=tuple(self._slots[:, : size * tokens_each]),
            fresh_blocks=self._starts[:0].long(),
            num_decodes=size if is_single else 0,
            max_query_len=tokens_each,
            max_context_len=self._max_context,
            uniform_tokens=0 if is_single else tokens_each,
        )


def graph_sizes(most: int) -> list[int]:
    """Return for how many sequences there are graphs: few kinds, and little to fill up."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 257, 16), *range(288, 513, 32)]
    return [size for size in sizes if size < most] + [most] if most <= 512 else sizes
