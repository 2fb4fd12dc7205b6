"""The socket that the server listens on: TCP or a unix socket file, and its removal afterwards."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from aiohttp import web

from exo_engine.arguments import ServerOptions
from exo_engine.errors import AddressUnavailable

BACKLOG = 1024
"""Connections that may wait to be accepted; the kernel's own limit (`net.core.somaxconn`) may be lower."""


@contextlib.contextmanager
def listening_socket(options: ServerOptions) -> Iterator[socket.socket]:
    """Listen, and leave no socket file behind.

    Raises:
        AddressUnavailable: somebody else listens there, or the address cannot be used.
    """
    try:
        listener = _bind_unix(options.uds) if options.uds else _bind_tcp(options.host, options.port)
    except OSError as exc:
        where = options.uds or f"{options.host}:{options.port}"
        taken = exc.errno == errno.EADDRINUSE
        raise AddressUnavailable(
            f"cannot listen on {where}: {'it is taken' if taken else exc.strerror or exc}",
            hint="Choose another address, or end what listens there.",
        ) from exc
    identity = _identity(options.uds)
    try:
        with listener:
            yield listener
    finally:
        if options.uds and identity is not None and _identity(options.uds) == identity:
            Path(options.uds).unlink(missing_ok=True)


def _bind_tcp(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _bind_unix(path: str) -> socket.socket:
    """Bind a socket file that only this user may open; a dead one is replaced."""
    if _is_dead_socket(path):
        Path(path).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        listener.bind(path)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(mask)
    return listener


def _is_dead_socket(path: str) -> bool:
    try:
        if not stat.S_ISSOCK(Path(path).stat().st_mode):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(path)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def _identity(path: str | None) -> tuple[int, int] | None:
    if path is None:
        return None
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


async def accept(runner: web.BaseRunner, listener: socket.socket) -> None:
    """Give what connects to the server.

    aiohttp listens a second time, and sets its own backlog with it where it is told none.
    """
    await web.SockSite(runner, listener, backlog=BACKLOG).start()


def address_of(listener: socket.socket, options: ServerOptions) -> str:
    """Return where a listener can be reached, in words."""
    if options.uds:
        return options.uds
    host, port = listener.getsockname()[:2]
    return f"http://{host}:{port}"
