"""Hang up on clients that have stopped reading their stream.

What such a client asked for would go on being generated, and a shutdown would wait for it. `Service`
owns one `Readers`; a stream puts every write under its watch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

logger = logging.getLogger(__name__)


class Readers:
    """Watches writes that wait for a client to read."""

    def __init__(self, *, patience_seconds: float = 60.0, hurry_seconds: float = 5.0) -> None:
        """Prepare.

        Args:
            patience_seconds: how long a client may read nothing at all.
            hurry_seconds: the same while the server is shutting down.
        """
        self._seconds = patience_seconds
        self._hurry_seconds = hurry_seconds
        self._waiting: set[_Watch] = set()

    def hurry(self) -> None:
        """Have less patience from now on, because the server is shutting down."""
        self._seconds = min(self._seconds, self._hurry_seconds)
        for watch in self._waiting:
            watch.restart(self._seconds)

    @contextmanager
    def watch(self, request: web.Request) -> Iterator[None]:
        """Hang up if the client reads nothing for too long; the request is then cancelled."""
        transport = request.transport
        if transport is None:
            yield
            return
        watch = _Watch(transport, self._seconds, str(request.get("id")))
        self._waiting.add(watch)
        try:
            yield
        finally:
            self._waiting.discard(watch)
            watch.stop()


class _Watch:
    """One write; looks again and again whether less of it is left to send."""

    def __init__(self, transport: asyncio.Transport, seconds: float, request_id: str) -> None:
        self._transport = transport
        self._request_id = request_id
        self._num_left = 0
        self._timer: asyncio.TimerHandle | None = None
        self.restart(seconds)

    def restart(self, seconds: float) -> None:
        """Look after so many seconds."""
        self.stop()
        self._seconds = seconds
        self._num_left = self._transport.get_write_buffer_size()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        if self._transport.get_write_buffer_size() < self._num_left:
            self.restart(self._seconds)
            return
        logger.warning(
            "hanging up: the client does not read",
            extra={"id": self._request_id, "seconds": self._seconds},
        )
        self._transport.abort()
