"""Requests to the Hub end in time, whatever the server does; a byte every few seconds is not silence.

The HTTP library's limits are for each read, so a server that drips holds its thread for ever. Here a timer shuts
the sockets down that the requests of a block use, which ends every read on them, of a header, of a body or of a
TLS handshake. The library tells of each connection that it makes (httpx's `trace` extension), and of one that it
takes from its pool it does not: so these requests close theirs. `huggingface.py`, `remote_architecture.py` and
`download.py` are the callers.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from huggingface_hub import set_client_factory
from huggingface_hub.utils._http import default_client_factory

_CONNECTED = "connection.connect_tcp.complete"


class Bound:
    """The time that the requests of one block have together. Its sockets are this thread's; the timer is not.

    Attributes:
        is_over: the time is up, and what was under way was cut off.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.is_over = False
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(max(0.0, seconds), self._cut)
        self._timer.daemon = True
        self._timer.start()

    def watch(self, event: str, info: Mapping[str, Any]) -> None:
        """Take note of a connection; see the `trace` extension of httpcore."""
        if event != _CONNECTED:
            return
        own = info["return_value"].get_extra_info("socket")
        # TLS takes the descriptor over into an object that nobody is given before its handshake has ended.
        copy = socket.socket(fileno=os.dup(own.fileno()))
        with self._lock:
            self._sockets.append(copy)
            if self.is_over:
                _shut(copy)

    def release(self) -> None:
        """Let what is under way take as long as it takes."""
        self._timer.cancel()

    def end(self) -> None:
        """Forget the sockets; the library has closed its own, or will."""
        self._timer.cancel()
        with self._lock:
            for each in self._sockets:
                each.close()
            self._sockets.clear()

    def _cut(self) -> None:
        with self._lock:
            self.is_over = True
            for each in self._sockets:
                _shut(each)


class _Present(threading.local):
    bound: Bound | None = None


_present = _Present()


@contextlib.contextmanager
def bounded(seconds: float) -> Iterator[Bound]:
    """Bound the time of all requests that this thread makes in the block, through the Hub's client.

    Raises:
        TimeoutError: it was up before the block had ended, whatever that looked like to the client.
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


def add_bounds(client: Any) -> Any:
    """Have a client of httpx keep to the bounds of the threads that use it; return it."""
    hooks = client.event_hooks
    hooks["request"] = [*hooks.get("request", ()), _bind]
    client.event_hooks = hooks
    return client


def _bind(request: Any) -> None:
    bound = _present.bound
    if bound is None:
        return
    if bound.is_over:
        raise _too_slow(bound)
    request.headers["Connection"] = "close"
    request.extensions = {**request.extensions, "trace": bound.watch}


def _too_slow(bound: Bound) -> TimeoutError:
    return TimeoutError(f"the answer was not there after {bound.seconds:.0f} s")


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


set_client_factory(lambda: add_bounds(default_client_factory()))
