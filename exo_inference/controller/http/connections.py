"""The connections of the controller's HTTP server: how long a client may keep one without a request.

`server.py` has uvicorn make them here, whose own bound is for the time between two requests alone, and ends
with the first byte of the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import h11
from h11._receivebuffer import ReceiveBuffer
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from exo_inference import acceptor
from exo_inference.connection_limits import end_when_stalled

HEAD_SECONDS = 75.0
"""How long a connection may be without a whole request head, from its start or the last answer.

Clients poll every few seconds, and one that sends while the server hangs up sees a failure that it must not
repeat blindly.
"""


_CLOSE = (b"connection", b"close")


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


class Connections:
    """Makes the connections of one server.

    Args:
        config: of uvicorn.
        state: of uvicorn, which has all connections.
        max_kept: with more connections than this, none is kept after its answer.

    Attributes:
        on_lost: called with each connection that has ended.
    """

    def __init__(self, config: Config, state: ServerState, max_kept: int) -> None:
        self._config = config
        self._state = state
        self._max_kept = max_kept
        self.on_lost: Callable[[acceptor.Connection], None] = lambda _: None

    def __call__(self) -> Connection:
        """Return the protocol of one new connection."""
        connection = Connection(self._config, self._state, app_state={})
        connection.made_by = self
        return connection

    @property
    def are_many(self) -> bool:
        """Whether others wait for those that are kept."""
        return len(self._state.connections) > self._max_kept


class Connection(H11Protocol):
    """One connection of a client.

    Attributes:
        idle_since: when it last began to wait for a whole request head, or for a body; None while neither is
            missing.
        address: where it comes from.
        made_by: knows how many there are.
    """

    _waiting: asyncio.TimerHandle | None = None
    _body_since: float | None = None
    idle_since: float | None = None
    address = ""
    made_by: Connections | None = None

    def connection_made(  # type: ignore[override]  # as uvicorn has it
        self, transport: asyncio.Transport
    ) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        self.conn._receive_buffer = StrictBuffer()
        if (own := transport.get_extra_info("socket")) is not None:
            end_when_stalled(own)
        self.address = str((transport.get_extra_info("peername") or ("",))[0])
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        super().connection_lost(exc)
        self._stop_waiting()
        if self.made_by is not None:
            self.made_by.on_lost(self)

    def force_close(self) -> None:
        """Hang up."""
        self.transport.close()

    def handle_events(self) -> None:
        """Take what came."""
        super().handle_events()
        cycle = cast(RequestResponseCycle | None, self.cycle)  # None before the first request
        if cycle is not None and not cycle.response_complete:
            self._stop_waiting()
            # Somebody without a key may begin a body too.
            self._body_since = (self._body_since or self.loop.time()) if cycle.more_body else None
            self.idle_since = self._body_since
            if self.made_by is not None and self.made_by.are_many:
                cycle.default_headers = [*self.server_state.default_headers, _CLOSE]

    def on_response_complete(self) -> None:
        """Begin to wait for the next request, if it is not there already."""
        super().on_response_complete()
        if self.cycle.response_complete:
            self._wait()

    def _wait(self) -> None:
        self._stop_waiting()
        self.idle_since = self.loop.time()
        self._waiting = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        self.idle_since = None
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
