"""The socket that the server listens on: TCP or a unix socket file, and its removal afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import select
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from aiohttp import web

from exo_engine.arguments import ServerOptions
from exo_engine.errors import AddressUnavailable

BACKLOG = 1024
"""Connections that may wait to be accepted; the kernel's own limit (`net.core.somaxconn`) may be lower."""

_OWN_DESCRIPTORS = 64
"""What the server has open beside its clients: the core, processes that template and tokenize, files."""

_LEAST_CONNECTIONS = 8
"""So many are taken even where the limit on descriptors leaves none; more wait in the kernel's queue."""

SPARED_SECONDS = 1.0
"""A connection without a request is given up for one that waits only if it has been so for this long."""

_BATCH = 64
"""So many connections are taken before other work gets on."""

PATIENCE_SECONDS = 5.0
"""So long all connections may be busy while others wait, before those are told to come again."""

GUEST_SECONDS = 2.0
"""So long each of them may take for it."""

_FULL_SECONDS = 0.02
"""How long a server that has all the connections it may have waits until it looks whether one has ended."""

_Waiter = asyncio.Future[None]

logger = logging.getLogger(__name__)


class Room:
    """Whether connections wait that there is no room for: then an answer is the last one on its connection.

    Without that, a few clients that keep their connections busy would keep all others out.

    Attributes:
        is_short: some wait.
        guest: one beyond the bound, taken only to be told to come again, or that the server is well.
    """

    def __init__(self) -> None:
        self.is_short = False
        self.guest: web.RequestHandler | None = None

    def close_after(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Have a response end its connection, and say so, while others wait for one."""
        if self.is_short or self.is_guest(request):
            response.force_close()
            response.headers["Connection"] = "close"

    def is_guest(self, request: web.BaseRequest) -> bool:
        """Whether a request came on a connection that nothing is computed for."""
        return request.protocol is self.guest


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


async def accept(
    runner: web.BaseRunner,
    listener: socket.socket,
    max_connections: int | None = None,
    room: Room | None = None,
) -> None:
    """Give what connects to the server, and let what is too much wait in the kernel's queue.

    The event loop's own way takes all that come: uvloop, once it has no descriptor left, hangs up on
    everything that waits. For what waits, connections without a request are given up, the one first that
    has been so for the longest. Where all are busy for long, those that wait become guests, one at a time.

    Args:
        runner: of the server.
        listener: where connections come.
        max_connections: so many at once; None is as many as the process has descriptors for.
        room: told when there is none, and who is a guest.
    """
    bound = max_connections or _count_connections()
    await _Site(runner, listener, bound, room or Room()).start()


def _count_connections() -> int:
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(_LEAST_CONNECTIONS, descriptors - _OWN_DESCRIPTORS)


class _Site(web.BaseSite):
    """aiohttp's SockSite with a bound."""

    __slots__ = ("_listener", "_max_connections", "_room")

    def __init__(
        self, runner: web.BaseRunner, listener: socket.socket, max_connections: int, room: Room
    ) -> None:
        super().__init__(runner, backlog=BACKLOG)
        self._listener = listener
        self._max_connections = max_connections
        self._room = room

    @property
    def name(self) -> str:
        return str(self._listener.getsockname())

    async def start(self) -> None:
        await super().start()
        server = self._runner.server
        assert server is not None, "the runner was not set up"
        self._listener.setblocking(False)
        self._listener.listen(BACKLOG)
        acceptor = _Acceptor(self._listener, server, self._max_connections, self._room)
        self._server = cast(asyncio.AbstractServer, acceptor)  # as much of one as sites use
        acceptor.resume()


class _Reserve:
    """A descriptor that is kept for when there is no other."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self.open()

    def open(self) -> None:
        """Keep one, if there is one."""
        if self._descriptor is None:
            with contextlib.suppress(OSError):
                self._descriptor = os.open(os.devnull, os.O_RDONLY)

    def close(self) -> None:
        """Let go of it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class _Acceptor:
    """Takes connections as long as there are fewer than the bound."""

    def __init__(
        self, listener: socket.socket, server: web.Server, max_connections: int, room: Room
    ) -> None:
        self._listener = listener
        self._server = server
        self._max_connections = max_connections
        self._room = room
        self._idle: dict[_Waiter, float] = {}  # since when each has been seen
        self._loop = asyncio.get_running_loop()
        self._beginning: dict[asyncio.Task[None], web.RequestHandler] = {}
        self._later: asyncio.TimerHandle | None = None
        self._full_since: float | None = None
        self._guest_until = 0.0
        self._reserve = _Reserve()  # the descriptor of a guest

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        return () if self._listener.fileno() < 0 else (self._listener,)

    def close(self) -> None:
        if self._later is not None:
            self._later.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
            self._listener.close()
        self._reserve.close()

    async def wait_closed(self) -> None:
        """Return at once: what was taken ends with the server."""

    def resume(self) -> None:
        self._later = None
        self._loop.add_reader(self._listener, self._take)

    def _take(self) -> None:
        self._room.is_short = False
        self._see_guest_off()
        for _ in range(_BATCH):
            if not _has_waiting(self._listener):  # which accept does not tell without a descriptor
                return
            if self._num_connections() < self._max_connections and self._accept():
                self._full_since = None
                continue
            self._make_room()
            self._take_guest()
            self._wait()
            return

    def _accept(self, *, as_guest: bool = False) -> bool:
        """Take one connection; return False where there is no descriptor for it."""
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return True  # it has hung up
        except OSError as exc:
            if exc.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                raise
            if self._full_since is None:
                logger.warning("no connection can be taken for a moment: %s", exc.strerror)
            return False
        client.setblocking(False)
        connection = self._server()
        if as_guest:
            self._room.guest = connection
        task = self._loop.create_task(self._begin(connection, client), name="connection")
        self._beginning[task] = connection
        task.add_done_callback(self._beginning.pop)
        return True

    def _take_guest(self) -> None:
        """Take one connection beyond the bound, if all have been busy for long; there is one at a time."""
        now = self._loop.time()
        if self._full_since is None:
            self._full_since = now
        is_hopeless = not self._idle and now - self._full_since >= PATIENCE_SECONDS
        if self._room.guest is None and is_hopeless:
            self._reserve.close()
            self._guest_until = now + GUEST_SECONDS
            self._accept(as_guest=True)
            self._room.is_short = _has_waiting(self._listener)
            if self._room.guest is None:
                self._reserve.open()

    def _see_guest_off(self) -> None:
        guest = self._room.guest
        if guest is None:
            return
        if guest in self._server.connections or guest in self._beginning.values():
            if self._loop.time() >= self._guest_until:  # as one whose body does not come
                guest.force_close()
            return
        self._room.guest = None
        self._reserve.open()

    def _num_connections(self) -> int:
        """Count each once: the server knows one that begins before its task has ended. A guest does not count."""
        known = {*self._server.connections, *self._beginning.values()}
        return len(known - {self._room.guest})

    def _make_room(self) -> None:
        """Give up a connection without a request, and let those that have one end with their answer."""
        self._room.is_short = True
        now = self._loop.time()
        idle = {
            waiter: one
            for one in self._server.connections
            if (waiter := _request_waiter(one)) is not None
        }
        self._idle = {waiter: self._idle.get(waiter, now) for waiter in idle}
        longest = min(self._idle, key=self._idle.__getitem__, default=None)
        if longest is not None and now - self._idle[longest] >= SPARED_SECONDS:
            idle[longest].force_close()

    async def _begin(self, connection: web.RequestHandler, client: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: connection, client)
        except OSError as exc:  # it has hung up already
            logger.debug("a connection ended as it began: %s", exc)
            client.close()

    def _wait(self) -> None:
        self._loop.remove_reader(self._listener)
        self._later = self._loop.call_later(_FULL_SECONDS, self.resume)


def _has_waiting(listener: socket.socket) -> bool:
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    return bool(poller.poll(0))


def _request_waiter(connection: web.RequestHandler) -> _Waiter | None:
    """Return what waits for a whole request head, a new one after each answer; None: one has come."""
    waiter = connection._waiter
    return None if waiter is None or waiter.done() else waiter


def address_of(listener: socket.socket, options: ServerOptions) -> str:
    """Return where a listener can be reached, in words."""
    if options.uds:
        return options.uds
    host, port = listener.getsockname()[:2]
    return f"http://{host}:{port}"
