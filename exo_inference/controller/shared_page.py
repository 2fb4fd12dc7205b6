"""A page that takes work to make, shared by all who ask for it at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

PAGE_SECONDS = 1.0
"""How long one page is given to all who ask."""


class SharedPage:
    """The page of metrics: made by one request at a time, and shared for a second.

    Args:
        clock: in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._making = asyncio.Lock()
        self._page = b""
        self._until = float("-inf")

    async def get(self, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the page that was made last, or make another."""
        async with self._making:
            if self._clock() >= self._until:
                self._page = await make()
                self._until = self._clock() + PAGE_SECONDS
            return self._page
