"""What a runner knows of the sequences in its slots, and a step's inputs made from that.

Every frame goes through `apply` once, in order; `inputs` then describes the step to the model. Arrays
over all slots, so that neither has a loop over sequences beyond those that are new.

Legend: T tokens in step, S sequences in step, M blocks of the longest table, G cache groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exo_engine.core.step import AddedSequence, Ints, StepFrame, TableChange
from exo_engine.errors import InternalError
from exo_engine.sampling_params import SamplingParams

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BatchInputs:
    """A step on the host; sequences with one token come first."""

    order: Indices
    """(S,): places in the frame, in the order of everything here."""
    slots: Indices
    """(S,): the sequences."""
    token_ids: Ints
    """(T,)."""
    unknown_rows: Indices
    """Which of the step's tokens are not known here yet: the last ones chosen."""
    unknown_slots: Indices
    """Whose they are."""
    query_starts: Ints
    """(S + 1,): sequence s has the step's tokens [query_starts[s], query_starts[s + 1])."""
    context_lens: Ints
    """(S,): tokens of each sequence up to and including its last one in the step."""
    block_tables: tuple[Ints, ...]
    """G tables (S, M). What lies past the end of a sequence may be anything."""


class Batch:
    """Sequences by slot.

    Args:
        num_slots: how many may be there at once.
        num_groups: cache groups, each with a block table per sequence.
        block_size: tokens per block.
    """

    def __init__(self, num_slots: int, *, num_groups: int, block_size: int) -> None:
        self.epochs = np.full(num_slots, -1, dtype=np.int64)
        """-1: nobody is there."""
        self.num_tokens = np.zeros(num_slots, dtype=np.int32)
        """Of each sequence, the ones that are still unknown included."""
        self.num_prompt_tokens = np.zeros(num_slots, dtype=np.int32)
        self.params: list[SamplingParams | None] = [None] * num_slots
        self.sampling_keys: list[int] = [0] * num_slots
        self.is_prompt_scored = np.zeros(num_slots, dtype=bool)
        """Of each sequence, whether log-probabilities of its prompt are wanted."""
        self._first_seen = np.zeros(num_slots, dtype=np.int32)
        # Less than num_tokens where the last token is still on the device.
        self._num_known = np.zeros(num_slots, dtype=np.int32)
        self._token_ids = np.zeros((num_slots, 64), dtype=np.int32)
        self._tables = [np.zeros((num_slots, 4), dtype=np.int32) for _ in range(num_groups)]
        self._table_lens = np.zeros(num_slots, dtype=np.int32)
        self._block_size = block_size

    def apply(self, frame: StepFrame) -> None:
        """Take in what has changed since the frame before."""
        for slot in frame.removed:
            self._remove(int(slot))
        for added in frame.added:
            self._add(added)
        if frame.tables.rows.size:
            self._change_tables(frame.slots, frame.tables)
        if frame.proposed.size:
            self._propose(frame)

    def inputs(self, frame: StepFrame) -> BatchInputs:
        """Describe the step of the frame that was applied last."""
        order = np.argsort(frame.num_tokens > 1, kind="stable")
        slots = frame.slots[order].astype(np.int64)
        starts, lengths = frame.starts[order], frame.num_tokens[order]
        query_starts = np.zeros(len(slots) + 1, dtype=np.int32)
        np.cumsum(lengths, out=query_starts[1:])
        rows = np.repeat(np.arange(len(slots)), lengths)
        places = np.arange(query_starts[-1], dtype=np.int32) + (starts - query_starts[:-1])[rows]
        owners = slots[rows]
        # Guesses lie beyond the sequence's own tokens, and are known.
        is_unknown = (places >= self._num_known[owners]) & (places < self.num_tokens[owners])
        context_lens = starts + lengths - self._first_seen[slots]
        num_blocks = -(-int(context_lens.max()) // self._block_size)
        return BatchInputs(
            order=order,
            slots=slots,
            token_ids=self._token_ids[owners, places],
            unknown_rows=np.flatnonzero(is_unknown),
            unknown_slots=owners[is_unknown],
            query_starts=query_starts,
            context_lens=context_lens,
            block_tables=tuple(table[slots, :num_blocks] for table in self._tables),
        )

    def expect(self, slots: Indices) -> None:
        """Count one more token of each of these sequences, which `fill` will tell."""
        self.num_tokens[slots] += 1
        self._grow_tokens(int(self.num_tokens[slots].max(initial=0)))

    def fill(self, slots: Indices, epochs: Indices, places: Ints, token_ids: Indices) -> None:
        """Tell tokens (N,) that were expected, one of each slot; nothing happens to sequences that are gone.

        Raises:
            InternalError: a place is not that of the token which its sequence expects.
        """
        is_there = self.epochs[slots] == epochs
        slots, places = slots[is_there], places[is_there]
        is_wrong = places != self._num_known[slots]
        if is_wrong.any():
            slot, place = int(slots[is_wrong][0]), int(places[is_wrong][0])
            raise InternalError(
                f"slot {slot} was told its token {place}, but expects {self._num_known[slot]}"
            )
        self._token_ids[slots, places] = token_ids[is_there]
        self._num_known[slots] = places + 1

    def token_ids(self, slot: int) -> Ints:
        """Return the tokens of a sequence that are known."""
        return self._token_ids[slot, : self._num_known[slot]]

    def _remove(self, slot: int) -> None:
        self.epochs[slot] = -1
        self.num_tokens[slot] = self._num_known[slot] = 0
        self._table_lens[slot] = 0
        self.params[slot] = None

    def _add(self, added: AddedSequence) -> None:
        slot, length = added.slot, len(added.token_ids)
        self._remove(slot)
        self._grow_tokens(length)
        self._token_ids[slot, :length] = added.token_ids
        self.epochs[slot] = added.epoch
        self.num_tokens[slot] = self._num_known[slot] = length
        self.num_prompt_tokens[slot] = added.num_prompt_tokens
        self.params[slot] = added.params
        self.sampling_keys[slot] = added.sampling_key
        self.is_prompt_scored[slot] = added.params.prompt_logprobs is not None
        self._first_seen[slot] = added.first_seen

    def _change_tables(self, slots: Ints, change: TableChange) -> None:
        owners = slots[change.rows]
        ends = change.firsts + change.counts
        offsets = np.cumsum(change.counts) - change.counts
        places = np.repeat(change.firsts - offsets, change.counts)
        places = places + np.arange(len(places))
        rows = np.repeat(owners, change.counts)
        for group, blocks in enumerate(change.blocks):
            table = _grown(self._tables[group], int(ends.max()), self._table_lens)
            table[rows, places] = blocks
            self._tables[group] = table
        self._table_lens[owners] = ends

    def _propose(self, frame: StepFrame) -> None:
        """Write guesses behind the known tokens; they do not count as the sequence's."""
        counts = np.maximum(frame.num_samples.astype(np.int32) - 1, 0)
        firsts = frame.starts + frame.num_tokens - counts
        self._grow_tokens(int((firsts + counts).max()))
        offsets = np.cumsum(counts) - counts
        places = np.arange(len(frame.proposed)) + np.repeat(firsts - offsets, counts)
        self._token_ids[np.repeat(frame.slots, counts), places] = frame.proposed

    def _grow_tokens(self, length: int) -> None:
        self._token_ids = _grown(self._token_ids, length, self._num_known)


def _grown(array: Ints, width: int, used: Ints) -> Ints:
    """Return an array whose rows have room for `width`, with what is `used` of each.

    The kernel gives memory to what is written only, so rows of short sequences cost little. That takes a copy per
    row, but only when the longest sequence gets twice as long.
    """
    if width <= array.shape[1]:
        return array
    larger = np.zeros((len(array), max(width, 2 * array.shape[1])), dtype=array.dtype)
    for row in np.flatnonzero(used):
        larger[row, : used[row]] = array[row, : used[row]]
    return larger
