"""Background work on releases: at most one task per release, named, guarded, cancelled at the end.

`apply` starts a job and returns; the next `apply` reads what came of it. What is remembered here is
only when to try again: a new process simply tries at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from exo_inference.errors import ExoError, PlatformError

logger = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 60.0
MAX_REFUSED_SECONDS = 600.0
"""A change that was refused as it is waits longer: each try makes a revision in Helm's history."""


@dataclass(slots=True)
class Failure:
    """What the last job of a release came to, if it failed.

    Attributes:
        what: hash of what was tried; another one is tried at once.
        count: how often in a row.
        retry_at: on the event loop's clock.
    """

    what: str
    error: ExoError
    count: int
    retry_at: float


class Jobs:
    """The jobs of all releases.

    Args:
        on_done: called with the release's name when its job ended.
    """

    def __init__(self, on_done: Callable[[str], None] = lambda release: None) -> None:
        self._on_done = on_done
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._names: dict[str, str] = {}
        self._failures: dict[str, Failure] = {}

    def running(self, release: str) -> str:
        """Return what is being done to a release, for people; empty is nothing."""
        return self._names.get(release, "")

    def failure(self, release: str, what: str) -> Failure | None:
        """Return why the last job on a release failed, if it was about the same."""
        found = self._failures.get(release)
        return found if found is not None and found.what == what else None

    def wait_seconds(self, release: str, what: str) -> float:
        """Return how long to wait before the same is tried again; 0 is now."""
        found = self.failure(release, what)
        if found is None:
            return 0.0
        return max(0.0, found.retry_at - asyncio.get_running_loop().time())

    def forget(self, release: str) -> None:
        """Forget the failures of a release."""
        self._failures.pop(release, None)

    def start(self, release: str, name: str, what: str, work: Coroutine[Any, Any, None]) -> None:
        """Begin a job, unless one is running.

        Args:
            release: its name.
            name: what is done, for people.
            what: hash of it.
            work: raises `ExoError` when it failed.
        """
        if release in self._tasks:
            work.close()
            return
        self._names[release] = name
        task = asyncio.create_task(self._run(release, what, work), name=f"{name} {release}")
        self._tasks[release] = task
        task.add_done_callback(lambda _: self._end(release, work))

    async def wait(self, release: str) -> None:
        """Wait until no job of a release is running."""
        while (task := self._tasks.get(release)) is not None:
            await asyncio.wait({task})
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Stop all jobs. What they left half-way is repaired by whoever comes next."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, release: str, what: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
            self._failures.pop(release, None)
        except ExoError as exc:
            self._note(release, what, exc)
        except Exception as exc:  # a bug: it is tried again, and must be seen
            logger.exception("work on release %s failed unexpectedly", release)
            self._note(release, what, PlatformError(f"unexpected failure: {exc!r}"[:300]))

    def _end(self, release: str, work: Coroutine[Any, Any, None]) -> None:
        work.close()  # a task that was cancelled at once has never begun it
        self._tasks.pop(release, None)
        self._names.pop(release, None)
        self._on_done(release)

    def _note(self, release: str, what: str, error: ExoError) -> None:
        before = self.failure(release, what)
        count = 1 if before is None else before.count + 1
        transient = getattr(error, "transient", True)
        ceiling = MAX_RETRY_SECONDS if transient else MAX_REFUSED_SECONDS
        first = FIRST_RETRY_SECONDS if transient else 10 * FIRST_RETRY_SECONDS
        delay = min(ceiling, first * 2 ** min(count - 1, 10))
        retry_at = asyncio.get_running_loop().time() + delay
        self._failures[release] = Failure(what, error, count, retry_at)
        logger.warning("release %s: %s; again in %.0f s", release, error.message, delay)
