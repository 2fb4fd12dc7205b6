"""Runs an application until the process is asked to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import resource
import signal
import socket
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from exo_inference.acceptor import Acceptor
from exo_inference.connection_limits import BACKLOG, client_connections
from exo_inference.controller.http.connections import HEAD_SECONDS, Connection, Connections

logger = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 5
"""How long requests may take to end after SIGTERM; log streams end at once."""
_LOOK_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Running:
    """A controller that answers.

    Attributes:
        port: its TCP port.
        stop: ends it gracefully; to be called on its event loop.
    """

    port: int
    stop: Callable[[], None]


async def run_server(
    app: ASGIApp,
    stopping: asyncio.Event,
    work: Coroutine[Any, Any, None],
    listener: socket.socket,
    started: Callable[[Running], None],
) -> None:
    """Answer requests and do the background work until SIGTERM or SIGINT, or until the work ends.

    Args:
        app: what answers.
        stopping: set when the process is asked to stop.
        work: without it nothing would ever become ready: the process ends with it, to be started again.
        listener: where requests come.
        started: called once they are answered.
    """
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        http=Connection,
        timeout_keep_alive=math.ceil(HEAD_SECONDS),
    )
    server = _Server(config, stopping)
    port = int(listener.getsockname()[1])
    background = asyncio.create_task(work, name="background")
    background.add_done_callback(lambda _: server.stop())
    try:
        server.on_started = lambda: started(Running(port, server.stop))
        logger.info("listening on port %d", port)
        await server.serve(sockets=[listener])
    finally:
        ended = background.done()
        background.cancel()
        results = await asyncio.gather(background, return_exceptions=True)
        if ended and isinstance(results[0], Exception):
            raise results[0]
    logger.info("stopped")


class _Server(uvicorn.Server):
    """uvicorn that takes connections within bounds, ends streams first, and leaves signals to us."""

    def __init__(self, config: uvicorn.Config, stopping: asyncio.Event) -> None:
        super().__init__(config)
        self._stopping = stopping
        self.servers: list[asyncio.Server] = []
        self.on_started: Callable[[], None] = lambda: None

    def stop(self) -> None:
        """Stop accepting, end streams, wait a little for the rest."""
        self._stopping.set()
        self.should_exit = True

    async def main_loop(self) -> None:
        """Keep the date in answers' heads right until `stop`, which uvicorn's own notices 0.1 s later."""
        while not self._stopping.is_set():
            await self.on_tick(0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End each connection with its request; uvicorn's own waits 0.1 s even where there is none."""
        for server in (*self.servers, *(sockets or ())):
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_SECONDS):
                # They are uvicorn's sets, which tell nobody when they change.
                while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_SECONDS)
        for task in self.server_state.tasks:
            logger.warning(
                "a request took longer than %d s to end and is cut off", SHUTDOWN_SECONDS
            )
            task.cancel("the controller ends")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Take connections, as many as there are descriptors for, and say so."""
        most = client_connections(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        for listener in sockets or ():
            listener.setblocking(False)
            listener.listen(BACKLOG)
            connections = Connections(self.config, self.server_state, max_kept=most // 2)
            acceptor = Acceptor(listener, connections, most)
            self.servers.append(cast(asyncio.Server, acceptor))  # as much of one as uvicorn uses
            acceptor.resume()
        self.started = True
        self.on_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Stop on SIGTERM and SIGINT (uvicorn's own way would raise them again at the end)."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(ValueError, RuntimeError):  # not the main thread: tests
                loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                with contextlib.suppress(ValueError, RuntimeError):
                    loop.remove_signal_handler(number)
