"""The loop behind every `wait_until_…`: look, report a change, sleep. Verdicts are `_waiting`'s."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from exo_inference.errors import NotFound
from exo_inference.sdk import _waiting
from exo_inference.sdk._http import AsyncTransport
from exo_inference.sdk._waiting import Waitable
from exo_inference.wire import Deployment, Operation

GONE = "gone"


async def wait_until_ready(
    http: AsyncTransport,
    get: Callable[[], Awaitable[Waitable]],
    timeout: float,
    on_change: Callable[[Waitable], None] | None,
    change: Operation | None = None,
    asked: Mapping[str, Any] | None = None,
) -> Waitable:
    """Look until the object is ready; see `Models.wait_until_ready`, `Deployments.wait_until_ready`."""

    def is_done(obj: Waitable) -> bool:
        return _waiting.is_in_effect(obj, change, asked) and _waiting.is_ready(obj)

    return await _look_until(http, get, timeout, on_change, is_done, "ready")


async def wait_until_scaled(
    http: AsyncTransport,
    get: Callable[[], Awaitable[Deployment]],
    timeout: float,
    on_change: Callable[[Deployment], None] | None,
    change: Operation | None = None,
    asked: Mapping[str, Any] | None = None,
    replaced: Collection[str] = (),
) -> Deployment:
    """Look until the wanted replicas are ready; see `Deployments.wait_until_scaled`."""

    def is_done(obj: Deployment) -> bool:
        is_scaled = _waiting.is_in_effect(obj, change, asked) and _waiting.is_scaled(obj)
        return is_scaled and not _waiting.has_any(obj, replaced)

    return await _look_until(http, get, timeout, on_change, is_done, "ready")


async def wait_until_deleted(
    http: AsyncTransport,
    get: Callable[[], Awaitable[Waitable]],
    timeout: float,
    on_change: Callable[[Waitable], None] | None,
) -> None:
    """Look until the object is gone; see `Models.wait_until_deleted`."""
    with suppress(NotFound):
        await _look_until(http, get, timeout, on_change, lambda _: False, GONE)


async def _look_until(
    http: AsyncTransport,
    get: Callable[[], Awaitable[Waitable]],
    timeout: float,
    on_change: Callable[[Waitable], None] | None,
    is_done: Callable[[Waitable], bool],
    wanted: str,
) -> Waitable:
    """Look until `is_done` says so; `wanted` is the word for it, should the time run out."""
    start, failures = http.monotonic(), 0
    last: Waitable | None = None
    while True:
        try:
            current = await get()
            failures = 0
        except NotFound as exc:
            if last is None or wanted == GONE:
                raise
            raise _waiting.deleted_meanwhile(last, wanted) from exc
        except _waiting.TOLERATED:
            failures += 1
            if failures >= _waiting.MAX_FAILED_POLLS:
                raise
        else:
            if on_change is not None and current != last:
                on_change(current)
            last = current
            if is_done(current):
                return current
        elapsed = http.monotonic() - start
        if elapsed >= timeout and last is not None:
            raise _waiting.not_ready_in_time(last, timeout, wanted)
        await http.sleep(_waiting.ready_interval(elapsed))
