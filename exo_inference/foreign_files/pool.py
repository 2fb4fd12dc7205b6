"""A few children for all who ask: as many requests run at once as there are threads here, others wait.

The threads are daemons and the children end with their stdin, so that nothing waits for a slow file
when the process ends.
"""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from exo_inference.foreign_files.child import Child

NUM_CHILDREN = 2
"""One slow file does not hold up all others; more would take what the machine is for."""


@dataclass(frozen=True, slots=True)
class _Job:
    task: str
    arguments: dict[str, Any]
    blobs: tuple[bytes, ...]
    future: Future[Any]


class Pool:
    """Children, started when they are needed.

    Args:
        num_children: how many there are at most.
    """

    def __init__(self, num_children: int = NUM_CHILDREN) -> None:
        self._max_children = num_children
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._num_threads = 0
        self._num_pending = 0

    @property
    def num_children(self) -> int:
        """How many children there are, or will be once they are asked."""
        return self._num_threads

    def submit(
        self, task: str, arguments: dict[str, Any], blobs: tuple[bytes, ...] = ()
    ) -> Future[Any]:
        """Have a task done; the future has its value, or the errors of `Child.ask`."""
        future: Future[Any] = Future()
        with self._lock:
            self._num_pending += 1
            if self._num_threads < min(self._num_pending, self._max_children):
                self._num_threads += 1
                name = f"foreign-files-{self._num_threads}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
        self._jobs.put(_Job(task, arguments, blobs, future))
        return future

    def _work(self) -> None:
        child = Child()
        while True:
            job = self._jobs.get()
            if job.future.set_running_or_notify_cancel():
                try:
                    job.future.set_result(child.ask(job.task, job.arguments, job.blobs))
                except BaseException as error:
                    job.future.set_exception(error)
            with self._lock:
                self._num_pending -= 1
            del job


pool = Pool()
"""Of this process."""
