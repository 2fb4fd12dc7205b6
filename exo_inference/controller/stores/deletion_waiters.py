"""Who waits until an object is gone, and telling them. No I/O; every store has one.

A write that only marks an object for deletion is answered when the object has gone, if that takes
no longer than a moment. One look-up per deletion, however many wait at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class DeletionWaiters:
    """Waiters by the uid of the object."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[asyncio.Event]] = {}

    def tell(self, uid: str) -> None:
        """Wake whoever waits for this object to go."""
        for event in self._waiting.get(uid, ()):
            event.set()

    async def wait(
        self, uid: str, is_gone: Callable[[], Awaitable[bool]], timeout_seconds: float
    ) -> bool:
        """Return whether an object is gone within the time.

        Args:
            uid: of the object.
            is_gone: looks once, after the waiting has begun, so that nothing falls between.
            timeout_seconds: how long to wait.
        """
        event = asyncio.Event()
        self._waiting.setdefault(uid, []).append(event)
        try:
            if await is_gone():
                return True
            async with asyncio.timeout(timeout_seconds):
                await event.wait()
        except TimeoutError:
            return False
        finally:
            self._waiting[uid].remove(event)
            if not self._waiting[uid]:
                del self._waiting[uid]
        return True
