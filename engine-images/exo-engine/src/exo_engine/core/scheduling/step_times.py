"""How many prompt tokens fit into a step beside answers in progress, from how long steps took.

On a CPU the time of a step grows with its tokens, so any fixed number of them is too many for one model
and too few for another. A step that carries prompt tokens may take `_STRETCH` times what it takes
without them: those who are being answered hardly notice, and a prompt still gets three sevenths of
the time. No clock: times are told.

What a step takes without prompts is measured, not guessed: by such steps as they come, and where
prompts leave none for a while, by one step in `_STALE_AFTER` that leaves prompts out.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

_STRETCH = 1.75
"""With it, others wait less than twice as long, and a prompt takes 7/3 of its time alone."""
_SHORT_STEP_SECONDS = 0.02
"""Steps need not be shorter than this for anybody's sake."""
_LEAST_TOKENS = 8
"""A prompt moves on by at least so many, and fewer say little about the time of each."""
_STALE_AFTER = 64
"""Steps after which what was measured is to be measured again."""
_ALIKE = 1.25
"""Steps whose numbers of sequences differ by less than this factor take about as long."""
_NUM_KEPT = 5
"""Times of which the median counts, so that a single hiccup does not."""


@dataclass(slots=True)
class _Kept:
    """The latest times of one kind, in seconds, and when the last one was taken."""

    times: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_KEPT))
    step: int = 0


class StepTimes:
    """Times of steps by what was in them."""

    def __init__(self) -> None:
        self._num_steps = 0
        self._without_prompts: dict[int, _Kept] = {}
        self._per_token = _Kept()
        self._alone_per_token = 0.0
        self._last_tokens = _LEAST_TOKENS

    def take(self, num_decodes: int, num_prompt_tokens: int, seconds: float) -> None:
        """Remember how long a step took.

        Args:
            num_decodes: its tokens of sequences that are being answered.
            num_prompt_tokens: its other tokens.
            seconds: its time.
        """
        self._num_steps += 1
        if num_prompt_tokens == 0:
            kept = self._without_prompts.setdefault(num_decodes, _Kept())
            kept.times.append(seconds)
            kept.step = self._num_steps
        elif num_decodes == 0:
            self._alone_per_token = seconds / num_prompt_tokens
        elif num_prompt_tokens >= _LEAST_TOKENS:
            self._take_mixed(num_decodes, num_prompt_tokens, seconds)

    def most_prompt_tokens(self, num_decodes: int) -> int:
        """Return how many may join a step; 0: none, so that it can be measured without any.

        Args:
            num_decodes: tokens of sequences being answered in the step, at least 1.
        """
        seconds = self._seconds_without_prompts(num_decodes)
        if seconds is None:
            return 0
        spare = max(_STRETCH * seconds, _SHORT_STEP_SECONDS) - seconds
        per_token = self._seconds_per_token()
        fitting = int(spare / per_token) if per_token > 0 else 2 * self._last_tokens
        if self._per_token.times:  # times so small that they drown in noise must not add up
            fitting = min(fitting, 2 * self._last_tokens)
        return max(fitting, _LEAST_TOKENS)

    def _take_mixed(self, num_decodes: int, num_prompt_tokens: int, seconds: float) -> None:
        alone = self._seconds_without_prompts(num_decodes)
        if alone is not None:
            self._per_token.times.append(max(0.0, seconds - alone) / num_prompt_tokens)
            self._last_tokens = num_prompt_tokens

    def _seconds_per_token(self) -> float:
        """Where the last step took longer it counts, as cost grows with what a prompt looks back at."""
        if times := self._per_token.times:
            return max(times[-1], statistics.median(times))
        return self._alone_per_token

    def _seconds_without_prompts(self, num_decodes: int) -> float | None:
        """Return the time of a step with about so many sequences, if it was measured lately."""
        fresh = {
            num: kept.times
            for num, kept in self._without_prompts.items()
            if self._num_steps - kept.step < _STALE_AFTER
            and max(num, num_decodes) <= _ALIKE * min(num, num_decodes)
        }
        if not fresh:
            return None
        return statistics.median(fresh[min(fresh, key=lambda num: abs(num - num_decodes))])
