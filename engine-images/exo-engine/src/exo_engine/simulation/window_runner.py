"""Runs a small model on long sequences: it sees only the end of each.

The scheduler's blocks are numbers without memory behind them. This runner keeps keys and values of
its own, in a small cache that does not grow with the simulated one, and computes only what is needed
for the next token: prompt chunks that do not reach the end of their prompt are skipped, and what the
scheduler found in its prefix cache makes no difference.

A sequence of up to `WINDOW_TOKENS` is seen whole, and its answer is the small model's own. From a
longer one the model sees at least the last half of the window: when the window is full, the second
half is computed again as if the sequence began there. Positions therefore stay within what the model
was trained for, and a token costs the same after 100 tokens as after 100,000.

Where more sequences run at once than the small cache has room for, the least recently seen are
forgotten and computed again: right, but slow.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

import numpy as np

from exo_engine.core.batch import Batch
from exo_engine.core.block_manager import BlockManager
from exo_engine.core.executor import Pending, StepRunner
from exo_engine.core.step import (
    AddedSequence,
    SequenceResult,
    StepFrame,
    StepResult,
    TableChange,
    ints,
)
from exo_engine.structured_output.states import GrammarStates

WINDOW_TOKENS: Final = 512
_MAX_TOKENS_AT_ONCE: Final = 2048
"""Computed in one go, so that many prompts at once need no memory for all their activations."""


@dataclass(slots=True)
class _Seen:
    """What of a sequence is in the small cache: tokens [first, end)."""

    slot: int
    first: int
    end: int
    num_sent_blocks: int = 0

    @property
    def key(self) -> str:
        return str(self.slot)


@dataclass(slots=True)
class _Part:
    """A step of the small model, while it is put together."""

    slots: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    num_samples: list[int] = field(default_factory=list)
    added: list[AddedSequence] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    blocks: list[list[list[int]]] = field(default_factory=list)
    """Of each sequence, the new ones by cache group."""

    def frame(self) -> StepFrame:
        rows, firsts = ints(range(len(self.slots))), ints(self.firsts)
        counts = ints([len(new[0]) for new in self.blocks])
        groups = (ints(list(chain(*new))) for new in zip(*self.blocks, strict=True))
        return StepFrame(
            slots=ints(self.slots),
            starts=ints(self.starts),
            num_tokens=ints(self.num_tokens),
            num_samples=np.array(self.num_samples, dtype=np.uint8),
            added=tuple(self.added),
            tables=TableChange(rows, firsts, counts, tuple(groups)),
        )


class WindowRunner:
    """A runner over the ends of sequences.

    Args:
        runner: computes, on a cache with the blocks of `blocks`.
        blocks: room for at least one window; used by nobody else.
        window_tokens: longest end that the model sees.
        num_slots: most sequences at once.
    """

    def __init__(
        self, runner: StepRunner, blocks: BlockManager, window_tokens: int, num_slots: int
    ) -> None:
        self._runner = runner
        self._blocks = blocks
        self._window = window_tokens
        self._batch = Batch(num_slots, num_groups=0, block_size=1)
        # By slot, least recently used first.
        self._seen: OrderedDict[int, _Seen] = OrderedDict()

    @property
    def grammars(self) -> GrammarStates:
        """See `StepRunner.grammars`."""
        return self._runner.grammars

    def dispatch(self, frame: StepFrame) -> Pending:
        """See `StepRunner.dispatch`; guesses are left aside."""
        # The simulated blocks have no memory behind them.
        self._batch.apply(replace(frame, tables=TableChange(), copies=(), proposed=ints(())))
        for slot in {*frame.removed.tolist(), *(added.slot for added in frame.added)}:
            if slot in self._seen:
                self._forget(slot)
        given: dict[int, SequenceResult] = {}
        for part in self._parts(frame):
            for each in self._runner.dispatch(part.frame())().sequences:
                given[each.slot] = each
                self._keep(each)
        result = StepResult(
            tuple(
                self._result(slot, num_tokens, given.get(slot))
                for slot, num_tokens in zip(
                    frame.slots.tolist(), frame.num_tokens.tolist(), strict=True
                )
            )
        )
        return lambda: result

    def _keep(self, result: SequenceResult) -> None:
        slot = result.slot
        for token_id in result.token_ids:
            slots, epochs = np.array([slot]), np.array([result.epoch])
            self._batch.expect(slots)
            places = self._batch.num_tokens[slots] - 1
            self._batch.fill(slots, epochs, places, np.array([token_id]))

    def _result(self, slot: int, num_tokens: int, given: SequenceResult | None) -> SequenceResult:
        if given is None:
            return SequenceResult(slot, int(self._batch.epochs[slot]))
        # More may have been computed again than was asked for.
        return replace(given, prompt_logprobs=given.prompt_logprobs[-num_tokens:])

    def _parts(self, frame: StepFrame) -> Iterator[_Part]:
        """Cut a step into steps that the small cache has room for, each valid until the next."""
        part = _Part()
        ends = frame.starts + frame.num_tokens - np.maximum(frame.num_samples.astype(int) - 1, 0)
        is_needed = (frame.num_samples > 0) | self._batch.is_prompt_scored[frame.slots]
        for row in np.flatnonzero(is_needed).tolist():
            end, num_samples = int(ends[row]), min(1, int(frame.num_samples[row]))
            seen = self._place(int(frame.slots[row]), end)
            is_full = sum(part.num_tokens) + end - seen.end > _MAX_TOKENS_AT_ONCE
            if part.slots and (is_full or not self._make_room(seen, end, part)):
                yield part
                part = _Part()
            self._make_room(seen, end, part)
            self._take_in(seen, end, num_samples, part)
        if part.slots:
            yield part

    def _place(self, slot: int, end: int) -> _Seen:
        """Return what is seen of a sequence, beginning anew where that does not reach its end."""
        seen = self._seen.get(slot)
        if seen is not None and not seen.end < end <= seen.first + self._window:
            self._forget(slot)
            seen = None
        if seen is None:
            first = 0 if end <= self._window else end - self._window // 2
            seen = self._seen[slot] = _Seen(slot, first, first)
            self._blocks.open(seen.key)
        self._seen.move_to_end(slot)
        return seen

    def _make_room(self, seen: _Seen, end: int, part: _Part) -> bool:
        """Forget what was not seen for longest until a sequence can grow to `end`."""
        while self._num_missing_blocks(seen, end) > 0:
            oldest = next(iter(self._seen))
            if oldest == seen.slot or oldest in part.slots:
                return False
            self._forget(oldest)
        return True

    def _num_missing_blocks(self, seen: _Seen, end: int) -> int:
        needed = self._blocks.num_blocks_to_write(seen.key, seen.end - seen.first, end - seen.first)
        return needed - self._blocks.num_free_blocks

    def _take_in(self, seen: _Seen, end: int, num_samples: int, part: _Part) -> None:
        start, seen.end = seen.end, end
        self._blocks.prepare_write(seen.key, start - seen.first, end - seen.first)
        if start == seen.first:
            part.added.append(self._introduce(seen))
        tables = self._blocks.tables(seen.key)
        part.slots.append(seen.slot)
        part.starts.append(start)
        part.num_tokens.append(end - start)
        part.num_samples.append(num_samples)
        part.firsts.append(seen.num_sent_blocks)
        part.blocks.append([table[seen.num_sent_blocks :] for table in tables])
        seen.num_sent_blocks = len(tables[0])

    def _introduce(self, seen: _Seen) -> AddedSequence:
        params = self._batch.params[seen.slot]
        assert params is not None, "a sequence is in the slot"
        return AddedSequence(
            slot=seen.slot,
            epoch=int(self._batch.epochs[seen.slot]),
            token_ids=self._batch.token_ids(seen.slot),
            num_prompt_tokens=int(self._batch.num_prompt_tokens[seen.slot]),
            params=params,
            sampling_key=self._batch.sampling_keys[seen.slot],
            first_seen=seen.first,
        )

    def _forget(self, slot: int) -> None:
        self._blocks.close(self._seen.pop(slot).key)
