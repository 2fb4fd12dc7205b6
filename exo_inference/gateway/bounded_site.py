"""The gateway's site on the public socket: no more connections than the process has descriptors for.

`app.py` makes it; `connections.py` has the connections.
"""

from __future__ import annotations

import asyncio
import socket
from typing import cast

from aiohttp import web

from exo_inference.acceptor import Acceptor
from exo_inference.connection_limits import BACKLOG
from exo_inference.gateway.connections import Server


class BoundedSite(web.BaseSite):
    """A site on a socket that is bound already.

    Args:
        runner: of a `Server`.
        listener: closed with the site.
        max_connections: so many at once; None is no bound.
    """

    __slots__ = ("_listener", "_max_connections")

    def __init__(
        self, runner: web.BaseRunner, listener: socket.socket, max_connections: int | None
    ) -> None:
        super().__init__(runner, backlog=BACKLOG)
        self._listener = listener
        self._max_connections = max_connections

    @property
    def name(self) -> str:
        """Return the address, as aiohttp's own sites do."""
        host, port = self._listener.getsockname()[:2]
        return f"http://{host}:{port}"

    async def start(self) -> None:
        """Listen and begin to take connections."""
        await super().start()
        server = self._runner.server
        assert isinstance(server, Server), "the runner of another kind of server"
        self._listener.setblocking(False)
        self._listener.listen(BACKLOG)
        acceptor = Acceptor(self._listener, server, self._max_connections)
        self._server = cast(asyncio.AbstractServer, acceptor)  # as much of one as sites use
        acceptor.resume()
