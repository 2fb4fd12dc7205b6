"""The connections of the controller's HTTP server: how long a client may keep one without a request.

`server.py` gives the class to uvicorn, whose own bound is for the time between two requests alone, and ends
with the first byte of the next one.
"""

from __future__ import annotations

import asyncio
from typing import cast

import h11
from h11._receivebuffer import ReceiveBuffer
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from exo_inference.connection_limits import end_when_stalled

HEAD_SECONDS = 75.0
"""How long a connection may be without a whole request head, from its start or the last answer.

Clients poll every few seconds, and one that sends while the server hangs up sees a failure that it must not
repeat blindly.
"""


class StrictBuffer(ReceiveBuffer):
    """h11's buffer, which takes no head whose lines end otherwise than RFC 9112 (2.2) says.

    h11 takes a bare line feed for the end of a line, and a proxy before it may not: they would not agree
    where a head ends.
    """

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Return the lines of a head once it is whole.

        Raises:
            RemoteProtocolError: one ends with a bare line feed.
        """
        before = bytes(self)
        lines = super().maybe_extract_lines()
        head = before[: len(before) - len(self)]
        if head.count(b"\n") != head.count(b"\r\n"):
            raise h11.RemoteProtocolError("a line of the head ends with a bare line feed")
        return lines


class Connection(H11Protocol):
    """One connection of a client."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(  # type: ignore[override]  # as uvicorn has it
        self, transport: asyncio.Transport
    ) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        self.conn._receive_buffer = StrictBuffer()
        if (own := transport.get_extra_info("socket")) is not None:
            end_when_stalled(own)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        super().connection_lost(exc)
        self._stop_waiting()

    def handle_events(self) -> None:
        """Take what came."""
        super().handle_events()
        cycle = cast(RequestResponseCycle | None, self.cycle)  # None before the first request
        if cycle is not None and not cycle.response_complete:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request, if it is not there already."""
        super().on_response_complete()
        if self.cycle.response_complete:
            self._wait()

    def _wait(self) -> None:
        self._stop_waiting()
        self._waiting = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
