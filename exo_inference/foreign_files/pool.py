"""A few children for all who ask: as many requests run at once as there are threads here, others wait.

Whoever publishes a model decides how long it is read. So who asks is served in turn with others, and what
takes longer than nearly all models do begins anew where such requests wait for each other: at any time one
child is there for those that are soon done.

The threads are daemons and the children end with their stdin, so that nothing waits for a slow file
when the process ends.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from exo_inference.foreign_files.child import (
    DEADLINE_SECONDS,
    MAX_PROCESSOR_SECONDS,
    Child,
    TookTooLong,
)

T = TypeVar("T")

NUM_CHILDREN = 2
"""One slow file does not hold up all others; more would take what the machine is for."""

QUICK_PROCESSOR_SECONDS = 1
QUICK_DEADLINE_SECONDS = 10.0
"""What is not done by then begins anew among the slow ones. The largest models in use take one second."""


class Reader(Protocol):
    """What does the tasks; see `Child`."""

    def ask(
        self,
        task: str,
        arguments: dict[str, Any],
        blobs: tuple[bytes, ...],
        *,
        processor_seconds: int,
        deadline_seconds: float,
    ) -> Any:
        """Have a task done within limits."""
        ...


@dataclass(frozen=True, slots=True)
class _Job:
    task: str
    arguments: dict[str, Any]
    blobs: tuple[bytes, ...]
    future: Future[Any]
    owner: str
    is_slow: bool = False

    def ask(self, child: Reader) -> Any:
        """Have it done; see `Child.ask`."""
        return child.ask(
            self.task,
            self.arguments,
            self.blobs,
            processor_seconds=MAX_PROCESSOR_SECONDS if self.is_slow else QUICK_PROCESSOR_SECONDS,
            deadline_seconds=DEADLINE_SECONDS if self.is_slow else QUICK_DEADLINE_SECONDS,
        )


class Turns(Generic[T]):
    """A queue of each owner in turn, of one owner in order; nobody waits for more than one thing of each other owner.

    Not for several threads.
    """

    def __init__(self) -> None:
        self._by_owner: dict[str, deque[T]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_owner)

    def put(self, owner: str, item: T) -> None:
        """Put something behind what its owner has waiting."""
        self._by_owner.setdefault(owner, deque()).append(item)

    def take(self) -> T:
        """Return the first thing of the owner whose turn it is; there is one."""
        owner = next(iter(self._by_owner))
        waiting = self._by_owner.pop(owner)
        item = waiting.popleft()
        if waiting:
            self._by_owner[owner] = waiting  # behind all others
        return item

    def count(self, owner: str) -> int:
        """Return how many things of an owner wait."""
        return len(self._by_owner.get(owner, ()))


class Pool:
    """Children, started when they are needed.

    Args:
        num_children: how many there are at most.
        make_child: makes one.
    """

    def __init__(
        self, num_children: int = NUM_CHILDREN, make_child: Callable[[], Reader] = Child
    ) -> None:
        self._max_children = num_children
        self._make_child = make_child
        self._quick: Turns[_Job] = Turns()
        self._slow: Turns[_Job] = Turns()
        self._news = threading.Condition()
        self._num_threads = 0
        self._num_pending = 0
        self._num_slow = 0

    @property
    def num_children(self) -> int:
        """How many children there are, or will be once they are asked."""
        return self._num_threads

    def num_waiting(self, owner: str) -> int:
        """Return how many requests of somebody wait."""
        with self._news:
            return self._quick.count(owner) + self._slow.count(owner)

    def submit(
        self,
        task: str,
        arguments: dict[str, Any],
        blobs: tuple[bytes, ...] = (),
        owner: str = "",
    ) -> Future[Any]:
        """Have a task done; the future has its value, or the errors of `Child.ask`.

        Args:
            task: of `tasks.py`.
            arguments: of the task.
            blobs: of the task.
            owner: who asks; all owners are served in turn.
        """
        job = _Job(task, arguments, blobs, Future(), owner)
        with self._news:
            self._num_pending += 1
            if self._num_threads < min(self._num_pending, self._max_children):
                self._num_threads += 1
                name = f"foreign-files-{self._num_threads}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
            self._quick.put(owner, job)
            self._news.notify()
        return job.future

    def _work(self) -> None:
        child = self._make_child()
        while True:
            job = self._take()
            is_over = self._run(job, child)
            with self._news:
                self._num_slow -= job.is_slow
                if is_over:
                    self._num_pending -= 1
                else:
                    self._slow.put(job.owner, replace(job, is_slow=True))
                self._news.notify_all()
            del job

    def _take(self) -> _Job:
        """Wait for a request; slow ones never have all children."""
        with self._news:
            while True:
                if self._slow and self._num_slow < max(1, self._max_children - 1):
                    self._num_slow += 1
                    return self._slow.take()
                if self._quick:
                    return self._quick.take()
                self._news.wait()

    def _run(self, job: _Job, child: Reader) -> bool:
        """Run a request; return False if it has to begin anew among the slow ones."""
        if not job.is_slow and not job.future.set_running_or_notify_cancel():
            return True
        try:
            job.future.set_result(job.ask(child))
        except BaseException as error:
            if isinstance(error, TookTooLong) and not job.is_slow:
                return False
            job.future.set_exception(error)
        return True


pool = Pool()
"""Of this process."""
