"""Has frames computed, somewhere: results come in the order in which frames were submitted.

`EngineCore` owns one. `DirectExecutor` begins a step in the caller's thread, which is enough where the
device works by itself once it was told; `ThreadExecutor` has a thread for it, which a CPU needs so
that the next step can be scheduled meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Protocol

from exo_engine.core.step import StepFrame, StepResult

if TYPE_CHECKING:
    from exo_engine.structured_output.states import GrammarStates
    from exo_engine.structured_output.vocabulary import Vocabulary

Pending = Callable[[], StepResult]
"""A step that was begun; called once, it waits for the result."""


class StepRunner(Protocol):
    """What an executor needs of a runner."""

    @property
    def grammars(self) -> GrammarStates:
        """Where running answers are in their grammars."""

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

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Tell what tokens stand for; before the first grammar."""

    def prepare(self, grammar: str) -> Future[None]:
        """Compile a grammar beside the steps; the future fails with InvalidSamplingParams."""

    def wait(self, prepared: Future[None], seconds: float) -> None:
        """Wait for a grammar while there is no step to wait for, at most so long."""

    def check_processes(self) -> Sequence[int]:
        """Return sockets that hang up when a process that computes is gone; raises EngineError if one is."""

    def close(self) -> None:
        """Let go of what the executor holds; steps that are not asked for are lost."""


class _LocalExecutor:
    """What executors in this process share: the runner, and its grammars."""

    def __init__(self, runner: StepRunner) -> None:
        self.runner = runner

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """See `Executor.use_vocabulary`."""
        self.runner.grammars.compiler.use(vocabulary)

    def prepare(self, grammar: str) -> Future[None]:
        """See `Executor.prepare`."""
        return self.runner.grammars.compiler.prepare(grammar)

    def wait(self, prepared: Future[None], seconds: float) -> None:
        """See `Executor.wait`."""
        wait([prepared], timeout=seconds)

    def check_processes(self) -> Sequence[int]:
        """See `Executor.check_processes`; there is none but this one."""
        return ()


class DirectExecutor(_LocalExecutor):
    """Runs steps in the caller's thread."""

    def __init__(self, runner: StepRunner) -> None:
        super().__init__(runner)
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


class ThreadExecutor(_LocalExecutor):
    """Runs steps in a thread of its own, one after the other."""

    def __init__(self, runner: StepRunner) -> None:
        super().__init__(runner)
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
