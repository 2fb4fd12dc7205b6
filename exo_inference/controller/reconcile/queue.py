"""Which object is looked at next: serial per object, parallel across objects, back-off on failure.

The reconciler's workers call `get`, then `done` or `retry`. A key that is added while it is worked
on comes again afterwards; a key that waits already is not queued twice. Lives on one event loop.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """Keys with work to do.

    Args:
        first_delay_seconds: how long the first retry waits, about.
        max_delay_seconds: no retry waits longer.
        jitter: returns a factor for each delay, so that failures do not beat in step.
    """

    def __init__(
        self,
        *,
        first_delay_seconds: float = 0.2,
        max_delay_seconds: float = 30.0,
        jitter: Callable[[], float] = lambda: random.uniform(0.8, 1.2),  # noqa: S311
    ) -> None:
        self._first_delay = first_delay_seconds
        self._max_delay = max_delay_seconds
        self._jitter = jitter
        self._ready: deque[K] = deque()
        self._queued: set[K] = set()
        self._active: set[K] = set()
        self._again: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        """Keys that wait for a worker."""
        return len(self._queued)

    def add(self, key: K) -> None:
        """Have the key looked at as soon as a worker is free."""
        self._cancel_timer(key)
        if key in self._active:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._ready.append(key)
            self._wake_one()

    def add_after(self, key: K, delay_seconds: float) -> None:
        """Have the key looked at after a while; the earlier of two such wishes wins."""
        if key in self._queued or key in self._again:
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + delay_seconds
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= when:
            return
        self._cancel_timer(key)
        self._timers[key] = loop.call_at(when, self._fire, key)

    async def get(self) -> K:
        """Wait for a key and take it; nobody else gets it before `done` or `retry`."""
        while not self._ready:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        key = self._ready.popleft()
        self._queued.discard(key)
        self._active.add(key)
        return key

    def done(self, key: K, *, again_after_seconds: float | None = None) -> None:
        """Give the key back after success, to be looked at again after a while if wanted."""
        self._failures.pop(key, None)
        self._release(key, again_after_seconds)

    def retry(self, key: K) -> float:
        """Give the key back after a failure; return in how many seconds it comes again."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay: float = min(self._max_delay, self._first_delay * 2 ** min(failures, 30))
        delay *= self._jitter()
        self._release(key, delay)
        return delay

    def close(self) -> None:
        """Cancel all timers."""
        for key in list(self._timers):
            self._cancel_timer(key)

    def _release(self, key: K, delay_seconds: float | None) -> None:
        self._active.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)
        elif delay_seconds is not None:
            self.add_after(key, delay_seconds)

    def _fire(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _cancel_timer(self, key: K) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
