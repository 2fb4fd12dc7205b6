"""A server's private socket `run/NAME.live`: says that its event loop turns, and hands over its listener.

Controller and gateway answer it; their supervisor asks. A supervisor that finds a server running has
not the socket that the server listens on, and needs it: whoever else holds it keeps connections waiting
while the server is started again. A descriptor that crosses a unix socket is the same socket, so both
needs are met by one answer. Standard library only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

_WORD = b"alive"
_RETRY_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class LivenessAnswer:
    """One answer of a server that lives. Whoever asked owns the listener, if there is one."""

    listener: socket.socket | None = None


@contextlib.asynccontextmanager
async def answering_probes(
    path: Path, listener: socket.socket | None = None
) -> AsyncIterator[None]:
    """Answer whoever asks on the socket file `path` until the block ends.

    Args:
        path: replaced where it is there already: only one server of a name runs at a time.
        listener: what the server listens on, handed over with each answer.
    """
    with _listening(path) as asked:
        task = asyncio.create_task(_answer_all(asked, listener), name="liveness")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def probe(path: Path, timeout_seconds: float) -> LivenessAnswer | None:
    """Return the answer of the server on the socket file `path`; None without one in time. Blocks."""
    try:
        with _through_directory(path) as short, socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_seconds)
            connection.connect(short)
            word, descriptors, _, _ = socket.recv_fds(connection, len(_WORD), 1)
    except OSError:
        return None
    listeners = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    for listener in listeners:
        listener.set_inheritable(False)
    return LivenessAnswer(*listeners) if word == _WORD else None


async def _answer_all(asked: socket.socket, listener: socket.socket | None) -> None:
    loop = asyncio.get_running_loop()
    while True:
        try:
            connection, _ = await loop.sock_accept(asked)
        except OSError:  # no descriptor is left at the moment
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        # A server that stops has closed its listener already, and then has no descriptor of it.
        passed = [] if listener is None or listener.fileno() < 0 else [listener.fileno()]
        with connection, contextlib.suppress(OSError):
            socket.send_fds(connection, [_WORD], passed)


@contextlib.contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    """Listen on the socket file `path`, which only its owner may open, and remove it again."""
    with socket.socket(socket.AF_UNIX) as listener:
        path.unlink(missing_ok=True)
        with _through_directory(path) as short:
            listener.bind(short)
        path.chmod(0o600)
        listener.listen(16)
        listener.setblocking(False)
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _through_directory(path: Path) -> Iterator[str]:
    """Give a path of less than 108 bytes, the most that a unix socket may have."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
