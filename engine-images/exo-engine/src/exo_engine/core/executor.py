"""Has frames computed, somewhere: results come in the order in which frames were submitted.

`EngineCore` owns one. `DirectExecutor` begins a step in the caller's thread, which is enough where the
device works by itself once it was told; `ThreadExecutor` has a thread for it, which a CPU needs so
that the next step can be scheduled meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from exo_engine.core.step import StepFrame, StepResult

Pending = Callable[[], StepResult]
"""A step that was begun; called once, it waits for the result."""


class StepRunner(Protocol):
    """What an executor needs of a runner."""

    def dispatch(self, frame: StepFrame) -> Pending:
        """Begin a step; frames come in the order in which they were made.

        Raises:
            OutOfMemory: the device ran out of memory; here, or when the result is waited for.
        """


class Executor(Protocol):
    """What the core needs to have steps computed."""

    def submit(self, frame: StepFrame) -> None:
        """Take a step; raises what `StepRunner.dispatch` does, here or with the result."""

    def result(self) -> StepResult:
        """Wait for the earliest step that was submitted and not asked for."""

    def close(self) -> None:
        """Let go of what the executor holds; steps that are not asked for are lost."""


class DirectExecutor:
    """Runs steps in the caller's thread."""

    def __init__(self, runner: StepRunner) -> None:
        self.runner = runner
        self._begun: deque[Pending] = deque()

    def submit(self, frame: StepFrame) -> None:
        """See `Executor.submit`."""
        self._begun.append(self.runner.dispatch(frame))

    def result(self) -> StepResult:
        """See `Executor.result`."""
        return self._begun.popleft()()

    def close(self) -> None:
        """See `Executor.close`."""
        self._begun.clear()


class ThreadExecutor:
    """Runs steps in a thread of its own, one after the other."""

    def __init__(self, runner: StepRunner) -> None:
        self.runner = runner
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="runner")
        self._begun: deque[Future[StepResult]] = deque()

    def submit(self, frame: StepFrame) -> None:
        """See `Executor.submit`."""
        self._begun.append(self._thread.submit(self._run, frame))

    def result(self) -> StepResult:
        """See `Executor.result`."""
        return self._begun.popleft().result()

    def close(self) -> None:
        """See `Executor.close`."""
        self._thread.shutdown(cancel_futures=True)

    def _run(self, frame: StepFrame) -> StepResult:
        return self.runner.dispatch(frame)()
