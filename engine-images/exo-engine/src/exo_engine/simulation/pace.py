"""How long a step would take on the simulated GPUs, and holding it for that long.

`Pace` is the arithmetic, pure; `PacedRunner` puts it around a runner. A step of a real deployment
reads the weights once, however little it computes, so no step is shorter than one that gives a
single sequence its token; prompt tokens in the step come on top of the sequences being answered.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Sequence

from exo_engine import pulse
from exo_engine.clock import Clock
from exo_engine.core.executor import Pending, StepRunner
from exo_engine.core.step import StepFrame
from exo_engine.simulation.file import Simulation
from exo_engine.structured_output.states import GrammarStates

logger = logging.getLogger(__name__)

_LAYER_SECONDS = 1.0
"""The GPUs get on at least so often within a step."""

_TOLERANCE_SECONDS = 0.001
"""A step that is late by less is not worth a word."""


class Pace:
    """Durations of steps, by the figures of a simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self._steps = [(float(each.batch), each.seconds) for each in simulation.step_seconds]
        rate = simulation.prefill_seconds_per_token
        prompts = [(float(each.tokens), each.seconds) for each in simulation.prompt_seconds]
        self._prompts = [(0.0, 0.0), *([(1.0, rate)] if rate is not None else prompts)]

    def seconds(self, frame: StepFrame) -> float:
        """Return how long a step takes there."""
        spans = list(zip(frame.starts.tolist(), frame.num_tokens.tolist(), strict=True))
        num_decodes = sum(1 for _, num_tokens in spans if num_tokens == 1)
        prefill = sum(
            self._prompt(start + num_tokens) - self._prompt(start)
            for start, num_tokens in spans
            if num_tokens > 1
        )
        decode = _interpolated(self._steps, num_decodes) if num_decodes else 0.0
        return max(decode + prefill, self._steps[0][1])

    def _prompt(self, num_tokens: int) -> float:
        """Return how long the first `num_tokens` of a prompt take."""
        return _interpolated(self._prompts, num_tokens)


class PacedRunner:
    """A runner that is as slow as the simulated GPUs.

    It is never faster. Where this machine needs longer for the small model than the GPUs would for
    the big one, the step takes what it takes, and the log says so once.
    """

    def __init__(self, runner: StepRunner, pace: Pace, clock: Clock) -> None:
        self._runner = runner
        self._pace = pace
        self._clock = clock
        self._was_late = False
        self._last_slots: frozenset[int] = frozenset()
        self._last_end = 0.0

    @property
    def grammars(self) -> GrammarStates:
        """See `StepRunner.grammars`."""
        return self._runner.grammars

    def dispatch(self, frame: StepFrame) -> Pending:
        """See `StepRunner.dispatch`; returns when the step would be done."""
        begin = self._clock.now()
        slots = frozenset(frame.slots.tolist())
        if slots & self._last_slots - {added.slot for added in frame.added}:
            # Who was in the step before has waited since: scheduling is part of a step's time.
            begin = self._last_end
        result = self._runner.dispatch(frame)()
        wanted, taken = self._pace.seconds(frame), self._clock.now() - begin
        if taken > wanted + _TOLERANCE_SECONDS and not self._was_late:
            self._was_late = True
            logger.warning(
                "this machine is slower than what it simulates: a step of %d sequences and %d "
                "tokens took %.1f ms instead of %.1f; said once",
                len(slots),
                frame.total_tokens,
                taken * 1000,
                wanted * 1000,
            )
        while (left := begin + wanted - self._clock.now()) > 0:
            self._clock.sleep(min(left, _LAYER_SECONDS))
            pulse.OWN.beat()
        self._last_slots, self._last_end = slots, self._clock.now()
        return lambda: result


def _interpolated(points: Sequence[tuple[float, float]], x: float) -> float:
    """Return y at `x` on straight lines through points of rising x; the first y before them."""
    if len(points) == 1 or x <= points[0][0]:
        return points[0][1]
    # Beyond the last point, the last line goes on.
    right = min(bisect_left(points, (x,)), len(points) - 1)
    (x0, y0), (x1, y1) = points[right - 1], points[right]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
