"""A client that does not read its stream is hung up on; a slow one is not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from exo_engine.server.readers import Readers

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def stream(readers: Readers, num_bytes: int) -> AsyncIterator[tuple[socket.socket, Callable]]:  # type: ignore[type-arg]
    """A client that has asked for a stream of so many bytes, and a way to wait for its end."""
    ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        is_whole = False
        try:
            for _ in range(0, num_bytes, 10_000):
                with readers.watch(request):
                    await response.write(b"x" * 10_000)
            is_whole = True
        finally:
            ended.set_result(is_whole)
        return response

    app = web.Application()
    app.router.add_get("/", handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    site = web.SockSite(runner, listener)
    await site.start()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, listener.getsockname())
        await loop.sock_sendall(client, REQUEST)

        async def wait() -> bool:
            return await asyncio.wait_for(ended, 20)

        try:
            yield client, wait
        finally:
            await runner.cleanup()


async def test_client_that_never_reads_is_hung_up_on() -> None:
    async with stream(Readers(patience_seconds=0.2), 50_000_000) as (_, wait):
        assert await wait() is False


async def test_shutdown_shortens_the_wait_that_has_begun() -> None:
    readers = Readers(patience_seconds=1000, hurry_seconds=0.1)
    async with stream(readers, 50_000_000) as (_, wait):
        await asyncio.sleep(0.1)
        readers.hurry()
        assert await wait() is False


async def test_client_that_reads_gets_everything() -> None:
    async with stream(Readers(patience_seconds=2), 3_000_000) as (client, wait):
        loop = asyncio.get_running_loop()
        received = 0
        while received < 3_000_000:
            received += len(await loop.sock_recv(client, 65536))
        assert await wait() is True
