"""The loop behind every `wait_until_…`: look, report a change, sleep. Verdicts are `_waiting`'s."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from exo_inference.errors import NotFound
from exo_inference.sdk import _waiting
from exo_inference.sdk._http import AsyncTransport
from exo_inference.sdk._waiting import Waitable


async def wait_until_ready(
    http: AsyncTransport,
    get: Callable[[], Awaitable[Waitable]],
    timeout: float,
    on_change: Callable[[Waitable], None] | None,
) -> Waitable:
    """Look until the object is ready; see `Models.wait_until_ready`."""
    start, failures = http.monotonic(), 0
    last: Waitable | None = None
    while True:
        try:
            current = await get()
            failures = 0
        except _waiting.TOLERATED:
            failures += 1
            if failures >= _waiting.MAX_FAILED_POLLS:
                raise
        else:
            if on_change is not None and current != last:
                on_change(current)
            last = current
            if _waiting.is_ready(current):
                return current
        elapsed = http.monotonic() - start
        if elapsed >= timeout and last is not None:
            raise _waiting.not_ready_in_time(last, timeout)
        await http.sleep(_waiting.ready_interval(elapsed))


async def wait_until_deleted(
    http: AsyncTransport,
    get: Callable[[], Awaitable[Waitable]],
    timeout: float,
    on_change: Callable[[Waitable], None] | None,
) -> None:
    """Look until the object is gone; see `Models.wait_until_deleted`."""
    start, failures = http.monotonic(), 0
    last: Waitable | None = None
    while True:
        try:
            current = await get()
            failures = 0
        except NotFound:
            return
        except _waiting.TOLERATED:
            failures += 1
            if failures >= _waiting.MAX_FAILED_POLLS:
                raise
        else:
            if on_change is not None and current != last:
                on_change(current)
            last = current
        elapsed = http.monotonic() - start
        if elapsed >= timeout and last is not None:
            raise _waiting.not_ready_in_time(last, timeout, "gone")
        await http.sleep(_waiting.ready_interval(elapsed))
