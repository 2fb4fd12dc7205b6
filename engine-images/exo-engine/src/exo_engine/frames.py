"""Frames between processes of the engine: a length, then one msgpack message.

    | 4 bytes, big-endian: length n | n bytes: msgpack of [kind, payload] |

One frame carries a whole step. Both ends are the same installation, so there is no version in it.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgpack  # type: ignore[import-untyped]  # it ships no annotations

_LENGTH = struct.Struct("!I")
_CHUNK_BYTES = 256 * 1024

Message = tuple[str, Any]


class ConnectionEnded(Exception):
    """The process at the other end is gone."""


def encode(kind: str, payload: Any) -> bytes:
    """Return one message as a frame."""
    # Names of files may have bytes that are no UTF-8, and JSON halves of characters.
    body: bytes = msgpack.packb((kind, payload), use_bin_type=True, unicode_errors="surrogatepass")
    return _LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader) -> Message:
    """Read the next message.

    Raises:
        ConnectionEnded: no whole frame came any more.
    """
    try:
        header = await reader.readexactly(_LENGTH.size)
        body = await reader.readexactly(_LENGTH.unpack(header)[0])
    except (asyncio.IncompleteReadError, ConnectionError) as exc:
        raise ConnectionEnded from exc
    return _decode(body)


class FrameSocket:
    """The core's end: a blocking socket, read between steps without waiting."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = bytearray()

    def send(self, kind: str, payload: Any, *, takes_in: bool = False) -> None:
        """Send one message; waits while the other end is behind.

        Args:
            kind: of message.
            payload: what goes with it.
            takes_in: read meanwhile what comes, which `receive` returns: the other end may be waiting for
                that, before it reads. Only where no other thread receives.

        Raises:
            ConnectionEnded: the other end is gone.
        """
        try:
            if takes_in:
                self._send_and_take_in(encode(kind, payload))
            else:
                self._connection.sendall(encode(kind, payload))
        except OSError as exc:
            raise ConnectionEnded from exc

    def wait(self, seconds: float) -> None:
        """Wait until something has come that was not returned yet, at most so long."""
        if self._first_end() is None:
            self._is_readable(seconds)

    def wait_beside(self, others: Sequence[int]) -> None:
        """Wait until something has come, or one of these other sockets was left by its other end."""
        if self._first_end() is not None:
            return
        poller = select.poll()
        poller.register(self._connection, select.POLLIN)
        for each in others:
            poller.register(each, 0)  # which tells of hang-ups alone
        poller.poll()

    def receive(self, *, is_waiting: bool) -> list[Message]:
        """Return the messages that have come.

        Args:
            is_waiting: wait until there is at least one; otherwise return at once.

        Raises:
            ConnectionEnded: the other end is gone.
        """
        messages = self._whole_messages()
        while (is_waiting and not messages) or self._is_readable():
            try:
                chunk = self._connection.recv(_CHUNK_BYTES)
            except OSError as exc:  # a reset, where the other end left something unread
                if messages:
                    return messages
                raise ConnectionEnded from exc
            if not chunk:
                if messages:  # the last words; the next call tells that nothing follows
                    return messages
                raise ConnectionEnded
            self._buffer += chunk
            messages += self._whole_messages()
        return messages

    def _send_and_take_in(self, frame: bytes) -> None:
        poller = select.poll()
        poller.register(self._connection, select.POLLIN | select.POLLOUT)
        rest = memoryview(frame)
        while True:
            with suppress(BlockingIOError):
                rest = rest[self._connection.send(rest, socket.MSG_DONTWAIT) :]
            if not rest:
                return
            ((_, events),) = poller.poll()
            if events & select.POLLIN:
                chunk = self._connection.recv(_CHUNK_BYTES)
                if not chunk:
                    raise ConnectionEnded
                self._buffer += chunk

    def _is_readable(self, seconds: float = 0.0) -> bool:
        # poll, not select: a descriptor may be above select's limit of 1024.
        poller = select.poll()
        poller.register(self._connection, select.POLLIN)
        return bool(poller.poll(1000 * seconds))

    def _whole_messages(self) -> list[Message]:
        messages = []
        while (end := self._first_end()) is not None:
            messages.append(_decode(bytes(self._buffer[_LENGTH.size : end])))
            del self._buffer[:end]
        return messages

    def _first_end(self) -> int | None:
        """Return where the first message in the buffer ends; None: it is not there as a whole."""
        if len(self._buffer) < _LENGTH.size:
            return None
        end: int = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
        return end if end <= len(self._buffer) else None


def _decode(body: bytes) -> Message:
    kind, payload = msgpack.unpackb(
        body, raw=False, strict_map_key=False, unicode_errors="surrogatepass"
    )
    return kind, payload
