"""How many prompt tokens fit into a step beside answers in progress, from how long steps took.

On a CPU the time of a step grows with its tokens, so any fixed number of them is too many for one model
and too few for another. Two promises are kept to those who are being answered beside a long prompt: half of their
tokens come in twice the time of a step without prompts, and all but one in a hundred in three times that. So a step
with prompt tokens aims at a little below twice, and lower where steps have lately taken so much longer than
they were expected to that the second promise would be broken. A prompt gets nearly half of the time. Where several
wait, each adds the time of a step without prompts, up to five times that: somebody waits for their first tokens, too.
So it is for a short prompt, for which a few such steps have room: others wait for it a few times only.

No clock: times are told.

What a step takes without prompts is measured, not guessed: by such steps as they come, and where
prompts leave none for a while, by one step in `_STALE_AFTER` that leaves prompts out.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field

_USUAL, _MOST = 2.0, 3.0
"""Promised: how many times longer others wait, half of the time and all but a hundredth of it."""
_LONGEST = 5.0
"""How many times longer a step may be for short prompts, or where several wait."""
_FEW_STEPS = 3
"""Of that length, in which a short prompt is computed."""
_MARGIN = 0.03
"""Of the first promise, since medians of noisy times are compared."""
_LEAST_STRETCH = 1.5
"""However much steps differ, a prompt gets a third of the time."""
_SHORT_STEP_SECONDS = 0.02
"""Steps need not be shorter than this for anybody's sake."""
_LEAST_TOKENS = 8
"""A prompt moves on by at least so many, and fewer say little about the time of each."""
_STALE_AFTER = 64
"""Steps after which what was measured is to be measured again."""
_ALIKE = 1.25
"""Steps whose numbers of sequences differ by less than this factor take about as long."""
_SURPRISE = 2.0
"""A token that takes so many times longer than the ones before counts at once; less of it is noise."""
_NUM_KEPT = 15
"""Times of which the median counts, so that a single hiccup does not."""
_NUM_EXCESSES, _RARE = 100, 0.98
"""Steps that are held against what was expected of them, and which of them, in order, counts."""
_ENOUGH_EXCESSES, _UNKNOWN_EXCESS = 50, 1.25
"""With fewer steps than that, rare ones may take so many steps without prompts longer than expected."""


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
        self._sizes: deque[int] = deque(maxlen=_NUM_KEPT)
        self._left_over = 0.0
        self._excesses: deque[float] = deque(maxlen=_NUM_EXCESSES)

    def take(self, num_decodes: int, num_prompt_tokens: int, seconds: float) -> None:
        """Remember how long a step took.

        Args:
            num_decodes: its tokens of sequences that are being answered.
            num_prompt_tokens: its other tokens.
            seconds: its time.
        """
        self._num_steps += 1
        self._compare(num_decodes, num_prompt_tokens, seconds)
        if num_prompt_tokens == 0:
            kept = self._without_prompts.setdefault(num_decodes, _Kept())
            kept.times.append(seconds)
            kept.step = self._num_steps
        elif num_decodes == 0:
            self._alone_per_token = seconds / num_prompt_tokens
        elif num_prompt_tokens >= _LEAST_TOKENS:
            self._take_mixed(num_decodes, num_prompt_tokens, seconds)

    def most_prompt_tokens(
        self, num_decodes: int, num_prompts: int = 1, length: float = math.inf
    ) -> int:
        """Return how many may join a step; 0: none, so that it can be measured without any.

        Args:
            num_decodes: tokens of sequences being answered in the step, at least 1.
            num_prompts: prompts that are under way or wait.
            length: tokens of the prompt in question that were not cached when it came.
        """
        seconds = self._seconds_without_prompts(num_decodes)
        if seconds is None:
            return 0
        if length <= _FEW_STEPS * (short := self._most_short_tokens(seconds)):
            return short
        usual, most = self._longest(seconds, 1.0 + num_prompts)
        per_token = self._seconds_per_token()
        fitting = 2.0 * self._last_tokens
        if per_token > 0:
            fitting = (usual - seconds) / per_token + self._left_over
            fitting = min(fitting, (most - seconds) / per_token)
        if self._per_token.times:  # times so small that they drown in noise must not add up
            fitting = min(fitting, 2.0 * self._last_tokens)
        self._left_over = fitting % 1.0
        return max(int(fitting), _LEAST_TOKENS)

    def _most_short_tokens(self, seconds: float) -> int:
        """Return how many may join a step for short prompts that takes `seconds` without prompts."""
        per_token = self._seconds_per_token()
        most = 2.0 * max(self._sizes, default=_LEAST_TOKENS)
        if per_token > 0:
            fitting = max((_LONGEST - 1) * seconds, _SHORT_STEP_SECONDS) / per_token
            most = min(fitting, most) if self._sizes else fitting
        return max(int(most), _LEAST_TOKENS)

    def _longest(self, seconds: float, stretch: float) -> tuple[float, float]:
        """Return how long a step may be on average, and ever, that takes `seconds` without prompts.

        `stretch`: how many times longer it would be if each prompt had as much time as all answers.
        """
        least = max(_LEAST_STRETCH * seconds, _SHORT_STEP_SECONDS)
        stretch = min(max(_USUAL, stretch), _LONGEST)
        usual = max(stretch * (1 - _MARGIN) * seconds, least)
        excess = self._excess()
        if len(self._excesses) < _ENOUGH_EXCESSES:
            excess = max(excess, _UNKNOWN_EXCESS * seconds)
        return usual, max(_MOST / _USUAL * stretch * seconds - excess, least)

    def _excess(self) -> float:
        """Return by how much rare steps have taken longer than was expected."""
        if not self._excesses:
            return 0.0
        return sorted(self._excesses)[math.ceil(_RARE * (len(self._excesses) - 1))]

    def _compare(self, num_decodes: int, num_prompt_tokens: int, seconds: float) -> None:
        """Remember by how much a step took longer than steps like it, of which some were measured."""
        alone = self._seconds_without_prompts(num_decodes) if num_decodes else None
        if alone is not None and (num_prompt_tokens == 0 or self._per_token.times):
            per_token = statistics.median(self._per_token.times or (0.0,))
            self._excesses.append(max(0.0, seconds - alone - per_token * num_prompt_tokens))

    def _take_mixed(self, num_decodes: int, num_prompt_tokens: int, seconds: float) -> None:
        alone = self._seconds_without_prompts(num_decodes)
        if alone is not None:
            self._per_token.times.append(max(0.0, seconds - alone) / num_prompt_tokens)
            self._last_tokens = num_prompt_tokens
            self._sizes.append(num_prompt_tokens)

    def _seconds_per_token(self) -> float:
        """Return what counts for the next step; cost grows with what a prompt looks back at."""
        if times := self._per_token.times:
            usual = statistics.median(times)
            return times[-1] if times[-1] > _SURPRISE * usual else usual
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
