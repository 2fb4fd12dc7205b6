"""Runs a small model on long sequences: it sees only the end of each.

The scheduler's blocks are numbers without memory behind them. This runner keeps keys and values of
its own, in a small cache that does not grow with the simulated one, and computes only what is needed
for the next token: prompt chunks that do not reach the end of their prompt are skipped, and what the
scheduler found in its prefix cache or computes again after a preemption makes no difference.

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
from dataclasses import dataclass
from typing import Final

from exo_engine.core.block_manager import BlockManager
from exo_engine.core.loading import StepRunner
from exo_engine.core.scheduler import ScheduledSequence, ScheduledStep
from exo_engine.core.sequence import SampledToken

WINDOW_TOKENS: Final = 512
_MAX_TOKENS_AT_ONCE: Final = 2048
"""Computed in one go, so that many prompts at once need no memory for all their activations."""


@dataclass(slots=True)
class _Seen:
    """What of a sequence is in the small cache: tokens [first, end).

    The sequence itself is not kept: it may have ended, and a long one takes memory.
    """

    sequence_id: str
    arrival: int
    """Tells the sequence from another with its id."""
    first: int
    end: int


class WindowRunner:
    """A runner over the ends of sequences.

    Args:
        runner: computes, on a cache with the blocks of `blocks`.
        blocks: room for at least one window; used by nobody else.
        window_tokens: longest end that the model sees.
    """

    def __init__(self, runner: StepRunner, blocks: BlockManager, window_tokens: int) -> None:
        self._runner = runner
        self._blocks = blocks
        self._window = window_tokens
        # Least recently used first.
        self._seen: OrderedDict[str, _Seen] = OrderedDict()

    def run(self, step: ScheduledStep) -> dict[str, SampledToken]:
        """Return the next token of each sequence that reached its end in the step."""
        tokens: dict[str, SampledToken] = {}
        for part in self._parts([item for item in step.items.values() if item.samples]):
            tokens.update(self._runner.run(part))
        return tokens

    def _parts(self, items: list[ScheduledSequence]) -> Iterator[ScheduledStep]:
        """Cut a step into steps that the small cache has room for, each valid until the next."""
        part = ScheduledStep()
        for item in items:
            seen = self._place(item)
            is_full = part.num_tokens + item.end - seen.end > _MAX_TOKENS_AT_ONCE
            if part.items and (is_full or not self._make_room(seen, item.end, part)):
                yield part
                part = ScheduledStep()
            self._make_room(seen, item.end, part)
            part.add(self._take_in(seen, item))
        if part.items:
            yield part

    def _place(self, item: ScheduledSequence) -> _Seen:
        """Return what is seen of a sequence, beginning anew where that does not reach its end."""
        sequence_id, arrival = item.sequence.sequence_id, item.sequence.arrival
        seen = self._seen.get(sequence_id)
        if seen is not None and not (
            seen.arrival == arrival and seen.end < item.end <= seen.first + self._window
        ):
            self._forget(sequence_id)
            seen = None
        if seen is None:
            first = 0 if item.end <= self._window else item.end - self._window // 2
            seen = self._seen[sequence_id] = _Seen(sequence_id, arrival, first, first)
            self._blocks.open(sequence_id)
        self._seen.move_to_end(sequence_id)
        return seen

    def _make_room(self, seen: _Seen, end: int, part: ScheduledStep) -> bool:
        """Forget what was not seen for longest until a sequence can grow to `end`."""
        while self._num_missing_blocks(seen, end) > 0:
            oldest = next(iter(self._seen))
            if oldest == seen.sequence_id or oldest in part.items:
                return False
            self._forget(oldest)
        return True

    def _num_missing_blocks(self, seen: _Seen, end: int) -> int:
        needed = self._blocks.num_blocks_to_write(
            seen.sequence_id, seen.end - seen.first, end - seen.first
        )
        return needed - self._blocks.num_free_blocks

    def _take_in(self, seen: _Seen, item: ScheduledSequence) -> ScheduledSequence:
        start, seen.end = seen.end, item.end
        self._blocks.prepare_write(seen.sequence_id, start - seen.first, item.end - seen.first)
        table = tuple(self._blocks.table(seen.sequence_id))
        return ScheduledSequence(item.sequence, start, item.end, table, first_seen=seen.first)

    def _forget(self, sequence_id: str) -> None:
        del self._seen[sequence_id]
        self._blocks.close(sequence_id)
