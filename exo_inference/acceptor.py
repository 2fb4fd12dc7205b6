"""Takes connections from a listening socket, and no more than the process has descriptors for.

The event loop's own way takes all that come: uvloop, once it has no descriptor left, hangs up on everything
that waits in the kernel's queue, and asyncio leaves none for the rest of the process. Here what is too much stays
in that queue. The gateway's site (`gateway/bounded_site.py`) and the controller's server (`controller/http/server.py`)
make one; standard library only.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import select
import socket
from collections import Counter
from collections.abc import Callable
from typing import Protocol, cast

logger = logging.getLogger(__name__)

SPARED_SECONDS = 2.0
"""A connection without a request is given up for one that waits only if it has been so for this long."""

LOOK_SECONDS = 0.25
"""How often a server that has all the connections it may have looks whether one can be given up."""

_BATCH = 64
"""So many connections are taken before other work gets on."""

_OUT_OF_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Connection(Protocol):
    """One connection of a client: an `asyncio.Protocol` that says whether it waits for a request.

    Attributes:
        idle_since: when it last began to wait for its client, as for a whole request head, in the loop's time;
            None while a request is answered.
        address: where it comes from.
    """

    idle_since: float | None
    address: str

    def force_close(self) -> None:
        """Hang up."""
        ...


class Server(Protocol):
    """What makes the protocol of each new connection.

    Attributes:
        on_lost: called with each connection that has ended.
    """

    on_lost: Callable[[Connection], None]

    def __call__(self) -> Connection:
        """Return the protocol of one new connection."""
        ...


class Acceptor:
    """What takes the connections of one socket; lives on one event loop."""

    def __init__(
        self, listener: socket.socket, server: Server, max_connections: int | None
    ) -> None:
        self._listener = listener
        self._make_connection = server
        self._max_connections = max_connections
        self._loop = asyncio.get_running_loop()
        self._open: set[Connection] = set()
        self._beginning: set[asyncio.Task[None]] = set()
        self._is_reading = False
        self._later: asyncio.TimerHandle | None = None
        server.on_lost = self._forget

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """Return the socket that it listens on; none after the end."""
        return () if self._listener.fileno() < 0 else (self._listener,)

    def close(self) -> None:
        """Take no more; connections that were taken go on."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._listener.fileno() >= 0:
            self._pause()
            self._listener.close()

    async def wait_closed(self) -> None:
        """Return at once: nothing is left to end."""

    def resume(self) -> None:
        """Take connections as long as there is room."""
        if not self._is_reading and self._listener.fileno() >= 0:
            self._is_reading = True
            self._loop.add_reader(self._listener, self._take)

    def _pause(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._listener)

    def _take(self) -> None:
        for _ in range(_BATCH):
            if self._max_connections is not None and len(self._open) >= self._max_connections:
                self._pause()
                self._make_room()
                return
            try:
                client, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                if exc.errno not in _OUT_OF_ROOM:
                    raise
                logger.warning("no connection can be taken for a moment: %s", exc.strerror)
                self._pause()
                self._look_again()
                return
            self._begin(client)

    def _begin(self, client: socket.socket) -> None:
        client.setblocking(False)
        connection = self._make_connection()
        self._open.add(connection)
        task = self._loop.create_task(self._connect(connection, client), name="connection")
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _connect(self, connection: Connection, client: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: cast(asyncio.Protocol, connection), client
            )
        except OSError as exc:  # it has hung up already
            logger.debug("a connection ended as it began: %s", exc)
            client.close()
            self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        if connection in self._open:
            self._open.discard(connection)
            self._loop.call_soon(self.resume)  # its descriptor is closed by then

    def _look_again(self) -> None:
        if self._later is None and self._listener.fileno() >= 0:
            self._later = self._loop.call_later(LOOK_SECONDS, self._after_a_while)

    def _after_a_while(self) -> None:
        self._later = None
        self.resume()

    def _make_room(self) -> None:
        """Give up a connection without a request for one that waits, of the client that has most of them."""
        if not _has_waiting(self._listener):
            self._look_again()
            return
        latest = self._loop.time() - SPARED_SECONDS
        idle = [one for one in self._open if one.idle_since is not None]
        idle = [one for one in idle if one.idle_since is not None and one.idle_since <= latest]
        if idle:
            of_client = Counter(one.address for one in idle)
            chosen = max(idle, key=lambda one: (of_client[one.address], -(one.idle_since or 0.0)))
            chosen.force_close()
        self._look_again()


def _has_waiting(listener: socket.socket) -> bool:
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    return bool(poll.poll(0))
