"""What the scheduler remembers of a step until its result is there."""

from __future__ import annotations

from dataclasses import dataclass, field

from exo_engine.core.block_manager import BlockCopy
from exo_engine.core.sequence import Sequence
from exo_engine.core.step import StepFrame


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """Tokens [start, end) of one sequence, computed in one step."""

    sequence: Sequence
    start: int
    end: int
    num_samples: int
    """How many tokens it may yield: 0 where the step does not reach the last token."""
    epoch: int
    """Of the sequence at that time."""
    copies: tuple[BlockCopy, ...] = ()

    @property
    def num_tokens(self) -> int:
        """How much of the step's budget this takes."""
        return self.end - self.start

    @property
    def is_prompt(self) -> bool:
        """Whether it computes more than the last token and guesses of the next ones."""
        return self.num_tokens > self.num_samples


@dataclass(slots=True)
class ScheduledStep:
    """Everything that one step computes."""

    number: int
    """Counts steps from 1."""
    items: dict[str, ScheduledSequence] = field(default_factory=dict)
    """By request id, in the order of the frame."""
    num_tokens: int = 0
    """Tokens in the step."""
    num_prompt_tokens: int = 0
    """Those of prompts."""
    admitted: list[Sequence] = field(default_factory=list)
    """Those that are in a step for the first time."""
    preempted_ids: list[str] = field(default_factory=list)
    frame: StepFrame | None = None
    """What the runner gets; None while the step is made, and of one without items."""

    @property
    def num_decode_tokens(self) -> int:
        """Those of sequences that are being answered."""
        return self.num_tokens - self.num_prompt_tokens

    def add(self, item: ScheduledSequence) -> None:
        """Take one sequence in."""
        self.items[item.sequence.sequence_id] = item
        self._count(item, 1)

    def drop(self, sequence_id: str) -> None:
        """Take a sequence out again, if it is in."""
        item = self.items.pop(sequence_id, None)
        if item is not None:
            self._count(item, -1)

    def _count(self, item: ScheduledSequence, sign: int) -> None:
        self.num_tokens += sign * item.num_tokens
        if item.is_prompt:
            self.num_prompt_tokens += sign * item.num_tokens
