"""A TCP proxy between one client and the API server, whose connections a test can cut.

It knows nothing of what goes through: TLS is between the two ends. Runs on a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any

_CHUNK = 65536


class TcpProxy:
    """Forwards connections to a port of this machine, from `start` to `close`.

    Args:
        target: port to forward to.

    Attributes:
        port: that it listens on.
    """

    def __init__(self, target: int) -> None:
        self.port = 0
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._is_open = True

    def start(self) -> TcpProxy:
        """Listen on a free port."""
        self._thread.start()
        self._call(self._listen())
        return self

    def cut(self) -> int:
        """Break all connections off, as a firewall's restart would; return how many."""
        return int(self._call(self._abort()))

    def shut(self) -> None:
        """Break all connections off and take no new ones until `open`."""
        self._is_open = False
        self.cut()

    def open(self) -> None:
        """Undo `shut`."""
        self._is_open = True

    def close(self) -> None:
        """End it."""
        self.shut()
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._begin, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None, "it was started"
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _abort(self) -> int:
        count = len(self._writers)
        for writer in list(self._writers):
            writer.transport.abort()
        return count // 2

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._forward(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with self._held(writer):
            if not self._is_open:
                return
            try:
                up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target)
            except OSError:
                return
            with self._held(up_writer):
                await asyncio.gather(_pump(reader, up_writer), _pump(up_reader, writer))

    @contextlib.contextmanager
    def _held(self, writer: asyncio.StreamWriter) -> Any:
        self._writers.add(writer)
        try:
            yield
        finally:
            self._writers.discard(writer)
            writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
    writer.close()
