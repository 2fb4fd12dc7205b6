"""Requests to the Hub end in time, whatever the server does; a byte every few seconds is not silence.

The HTTP library's limits are for each read, so a server that drips holds its thread for ever. Here a timer shuts
the connections down that a block makes, which ends every read on them, of a header, of a body or of a TLS
handshake. A block has a client of its own, so that all connections in its pool are known to it: the library tells
of each that it makes (httpx2's `trace` extension). `huggingface.py`, `remote_architecture.py` and `download.py`
are the callers; huggingface_hub's own functions take the client of the block by `_Session`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx2
from huggingface_hub import is_offline_mode, set_client_factory
from huggingface_hub.errors import OfflineModeIsEnabled

_LIMITS = httpx2.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=1.0)
"""A connection that lies longer is not used again: servers close such after two seconds and more."""


class TooSlow(Exception):
    """The Hub's answer was not there in time, or came too slowly. A network disk raises TimeoutError; this is none."""


class Bound:
    """The time that the requests of one block have together.

    Attributes:
        seconds: the time.
        is_over: the time is up, or `cut` was called: what was under way was cut off.
        least_rate: bytes a second that have to come; 0 before `watch_rate`.
        client: with connections of its own; for all threads of the block. Follows redirects.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.is_over = seconds <= 0
        self.client = httpx2.Client(
            verify=_trusted(),
            follow_redirects=True,
            timeout=max(seconds, 0.001),
            limits=_LIMITS,
            event_hooks={"request": [_refuse_offline, self._follow]},
        )
        self._lock = threading.Lock()
        self._connections: list[_Connection] = []
        self._num_bytes, self.least_rate = 0, 0
        self._has_ended = False
        self._timer = self._started(self.cut)

    def cut(self) -> None:
        """End what is under way, from any thread: it raises TooSlow, and so does all that follows."""
        with self._lock:
            self.is_over = True
            for each in self._connections:
                each.shut()

    def watch_rate(self, bytes_per_second: int) -> None:
        """Let what is under way take as long as it takes, if it brings so much; `cut` still ends it.

        From now on each span of `seconds` has to, on average, by what `count` is told.
        """
        self._timer.cancel()
        self.least_rate = bytes_per_second
        self._timer = self._started(self._look)

    def count(self, num_bytes: int) -> None:
        """Say that so much came."""
        with self._lock:
            self._num_bytes += num_bytes

    def _look(self) -> None:
        with self._lock:
            came, self._num_bytes = self._num_bytes, 0
            is_too_slow = came < self.least_rate * self.seconds
            if not (is_too_slow or self._has_ended):
                self._timer = self._started(self._look)
        if is_too_slow:
            self.cut()

    def _started(self, act: Callable[[], None]) -> threading.Timer:
        timer = threading.Timer(max(self.seconds, 0.0), act)
        timer.daemon = True
        timer.start()
        return timer

    def end(self) -> None:
        """Close all connections. No thread may use them any more."""
        with self._lock:
            self._has_ended = True
            self._timer.cancel()
        self.client.close()
        with self._lock:
            for each in self._connections:
                each.copy.close()
            self._connections.clear()

    def _follow(self, request: httpx2.Request) -> None:
        if self.is_over:
            raise _too_slow(self)
        request.extensions = {**request.extensions, "trace": self._watcher()}

    def _watcher(self) -> Callable[[str, Mapping[str, Any]], None]:
        """Return what takes note of the connection that a request makes; see `trace` of httpcore2."""
        made: _Connection | None = None

        def watch(event: str, info: Mapping[str, Any]) -> None:
            nonlocal made
            step = event.partition(".")[2]
            with self._lock:
                if step == "connect_tcp.complete":
                    made = _Connection(_socket_of(info))
                    self._connections.append(made)
                    if self.is_over:
                        made.shut()
                elif made is not None and step.startswith("start_tls."):
                    made.is_in_handshake = step == "start_tls.started"
                    if step == "start_tls.complete":
                        made.own = _socket_of(info)
                if step in ("connect_tcp.complete", "start_tls.failed", "response_closed.complete"):
                    self._forget_closed()

        return watch

    def _forget_closed(self) -> None:
        closed = [each for each in self._connections if each.is_closed]
        for each in closed:
            each.copy.close()
        self._connections = [each for each in self._connections if each not in closed]


class _Connection:
    """The library's socket, and a copy of its descriptor, which stays valid when TLS takes the socket over.

    Nobody is given the socket of TLS before its handshake has ended; the one before it looks closed meanwhile.
    """

    def __init__(self, own: socket.socket) -> None:
        self.own = own
        self.copy = socket.socket(fileno=os.dup(own.fileno()))
        self.is_in_handshake = False

    @property
    def is_closed(self) -> bool:
        return not self.is_in_handshake and self.own.fileno() < 0

    def shut(self) -> None:
        with contextlib.suppress(OSError):
            self.copy.shutdown(socket.SHUT_RDWR)


class _Present(threading.local):
    bound: Bound | None = None


_present = _Present()


@contextlib.contextmanager
def bounded(seconds: float) -> Iterator[Bound]:
    """Bound the time of all requests of the block: those of its client, and this thread's of huggingface_hub.

    Raises:
        TooSlow: the time was up before the block had ended, whatever that looked like to the client.
    """
    before, bound = _present.bound, Bound(seconds)
    _present.bound = bound
    try:
        yield bound
    except Exception as error:
        if bound.is_over:
            raise _too_slow(bound) from error
        raise
    finally:
        _present.bound = before
        bound.end()
    if bound.is_over:  # an answer without a length ends well when it is cut off
        raise _too_slow(bound)


class _Session(httpx2.Client):
    """The client of huggingface_hub's functions: in a block it sends through the connections of the block."""

    def send(self, request: httpx2.Request, **how: Any) -> httpx2.Response:
        bound = _present.bound
        return super().send(request, **how) if bound is None else bound.client.send(request, **how)


@functools.cache
def _trusted() -> ssl.SSLContext:
    """Return the certificates to trust. They are read once, which takes longer than a request."""
    return httpx2.create_ssl_context()


def _refuse_offline(request: httpx2.Request) -> None:
    if is_offline_mode():
        raise OfflineModeIsEnabled(f"HF_HUB_OFFLINE is set, so nobody asks {request.url.host}")


def _too_slow(bound: Bound) -> TooSlow:
    if bound.least_rate:
        rate = f"{bound.least_rate} bytes a second"
        return TooSlow(f"less than {rate} came for {bound.seconds:.0f} s")
    return TooSlow(f"the answer was not there after {bound.seconds:.0f} s")


def _socket_of(info: Mapping[str, Any]) -> socket.socket:
    found: socket.socket = info["return_value"].get_extra_info("socket")
    return found


set_client_factory(
    lambda: _Session(
        verify=_trusted(),
        follow_redirects=True,
        timeout=None,
        event_hooks={"request": [_refuse_offline]},
    )
)
