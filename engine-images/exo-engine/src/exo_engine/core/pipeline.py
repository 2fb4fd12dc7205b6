"""Keeps steps on their way: schedules the next one while the one before is computed.

With a depth of 1 each step is scheduled when the one before is done (synchronous). With 2, step k + 1
is scheduled and submitted before anybody has seen what step k gave, so that the device need not wait
for this process. What comes out is the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress

from exo_engine import pulse
from exo_engine.clock import Clock
from exo_engine.core.executor import Executor
from exo_engine.core.request import RequestOutput
from exo_engine.core.scheduled import ScheduledStep
from exo_engine.core.scheduling.scheduler import Scheduler


class Pipeline:
    """A scheduler and an executor, with up to `depth` steps between them.

    Args:
        scheduler: decides what each step computes.
        executor: computes it.
        depth: most steps on their way at once.
        clock: what steps are timed with, for a scheduler that wants to know.
    """

    def __init__(
        self, scheduler: Scheduler, executor: Executor, depth: int, clock: Clock | None = None
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self._depth = depth
        self._clock = clock or Clock()
        self._last_end = 0.0
        # With the moment of each.
        self._submitted: deque[tuple[ScheduledStep, float]] = deque()

    def has_unfinished(self) -> bool:
        """Whether another `step` has anything to do."""
        return self.scheduler.has_unfinished() or bool(self._submitted)

    def step(self) -> list[RequestOutput]:
        """Wait for one step, with the next ones submitted; return what it added, per request."""
        try:
            while len(self._submitted) < self._depth and self._submit():
                pass
            return self._take_result() if self._submitted else []
        except BaseException:
            self._abandon()
            raise

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop requests; they give no further output. Unknown ids are ignored."""
        self.scheduler.abort(request_ids)
        while self._submitted and not self.scheduler.has_unfinished():
            self.step()  # for nobody, but what it holds is to be given back

    def _submit(self) -> bool:
        step = self.scheduler.schedule()
        if step.frame is None:
            return False
        begun = self._clock.now()
        for sequence in step.admitted:
            sequence.scheduled_at = begun
        self.executor.submit(step.frame)
        self._submitted.append((step, begun))
        return True

    def _take_result(self) -> list[RequestOutput]:
        step, begun = self._submitted.popleft()
        result = self.executor.result()
        pulse.OWN.beat()
        now = self._clock.now()
        if self.scheduler.times is not None:
            seconds = now - max(begun, self._last_end)
            self.scheduler.times.take(step.num_decode_tokens, step.num_prompt_tokens, seconds)
        self._last_end = now
        return self.scheduler.update(step, result)

    def _abandon(self) -> None:
        """Forget the steps that have no result; their requests start over, should anybody go on."""
        for _ in self._submitted:
            with suppress(Exception):
                self.executor.result()
        self._submitted.clear()
        self.scheduler.abandon()
