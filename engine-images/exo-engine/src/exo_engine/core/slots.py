"""Gives running sequences their slots, and says in frames what runners do not know yet."""

from __future__ import annotations

import heapq
from array import array

import numpy as np

from exo_engine.core.block_manager import BlockManager
from exo_engine.core.scheduled import ScheduledSequence, ScheduledStep
from exo_engine.core.sequence import Sequence
from exo_engine.core.step import AddedSequence, StepFrame, TableChange, ints


class Slots:
    """The slots of all runners of an engine.

    Args:
        num_slots: most sequences that run at once.
        blocks: whose tables the frames follow.
    """

    def __init__(self, num_slots: int, blocks: BlockManager) -> None:
        self._blocks = blocks
        self._free = list(range(num_slots))
        self._num_taken = 0
        self._removed: list[int] = []

    def take(self, sequence: Sequence) -> None:
        """Give a sequence a slot; the next frame introduces it."""
        sequence.slot = heapq.heappop(self._free)
        sequence.epoch = self._num_taken
        self._num_taken += 1
        sequence.is_new_to_slot = True
        sequence.num_sent_blocks = 0

    def give_back(self, sequence: Sequence) -> None:
        """Take the slot away; results that are on their way no longer count."""
        if not sequence.is_new_to_slot:
            self._removed.append(sequence.slot)
        heapq.heappush(self._free, sequence.slot)
        sequence.slot = sequence.epoch = -1

    def frame(self, step: ScheduledStep) -> StepFrame:
        """Return what runners must know of a step, once per step and in order.

        Goes through the sequences: they are the scheduler's objects, of which this makes the numbers.
        """
        items = list(step.items.values())
        removed, self._removed = self._removed, []
        return StepFrame(
            slots=ints([item.sequence.slot for item in items]),
            starts=ints([item.start for item in items]),
            num_tokens=ints([item.num_tokens for item in items]),
            num_samples=np.array([item.num_samples for item in items], dtype=np.uint8),
            added=tuple(_introduce(i.sequence) for i in items if i.sequence.is_new_to_slot),
            removed=ints(removed),
            tables=self._table_changes(items),
            copies=(ints([n for i in items for c in i.copies for n in (c.source, c.target)]),),
            proposed=ints([t for i in items for t in i.sequence.proposed[: i.num_samples - 1]])
            if any(item.num_samples > 1 for item in items)
            else ints(()),
        )

    def _table_changes(self, items: list[ScheduledSequence]) -> TableChange:
        """Return the new entries in every group."""
        rows, firsts, counts = array("i"), array("i"), array("i")
        blocks: list[list[int]] = [[] for _ in self._blocks.reaches]
        for row, item in enumerate(items):
            sequence = item.sequence
            tables = self._blocks.tables(sequence.table_key)
            length, first = len(tables[0]), sequence.num_sent_blocks
            if item.copies:  # which have replaced blocks that were known
                first = min(first, item.start // self._blocks.block_size)
            if first < length:
                rows.append(row)
                firsts.append(first)
                counts.append(length - first)
                for new, table in zip(blocks, tables, strict=True):
                    new += table[first:]
                sequence.num_sent_blocks = length
        return TableChange(ints(rows), ints(firsts), ints(counts), tuple(map(ints, blocks)))


def _introduce(sequence: Sequence) -> AddedSequence:
    sequence.is_new_to_slot = False
    return AddedSequence(
        slot=sequence.slot,
        epoch=sequence.epoch,
        token_ids=ints(sequence.token_ids),
        num_prompt_tokens=sequence.num_prompt_tokens,
        params=sequence.request.params,
        sampling_key=sequence.sampling_key,
    )
