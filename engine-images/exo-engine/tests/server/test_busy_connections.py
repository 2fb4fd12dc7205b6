"""All connections that the engine may have are streams: who comes then is told so, and does not wait for ever."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import resource
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from aiohttp import web
from exo_engine.arguments import ServerOptions
from exo_engine.core.request import EngineRequest, RequestOutput
from exo_engine.server import listener as listener_module
from exo_engine.server.app import build_app
from exo_engine.server.listener import accept, listening_socket
from exo_engine.server.service import Service
from exo_engine.server.telemetry.metrics import Metrics

from .scripted_core import INFO, FakeCore, linked

pytestmark = pytest.mark.filterwarnings("ignore::aiohttp.web_exceptions.NotAppKeyWarning")

MANY = 1000
HEAD_WITHOUT_ITS_BODY = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
STREAM = {"model": "test/tiny", "prompt": [5], "max_tokens": 1, "stream": True}


class HeldCore(FakeCore):
    """Says nothing before it is released, and gets on meanwhile."""

    def __init__(self) -> None:
        super().__init__([5])
        self.released, self.is_full = threading.Event(), threading.Event()

    def add_request(self, request: EngineRequest) -> None:
        super().add_request(request)
        if len(self.requests) == 3:
            self.is_full.set()

    def step(self) -> list[RequestOutput]:
        return super().step() if self.released.wait(0.01) else []


@contextlib.asynccontextmanager
async def serving(path: Path, core: HeldCore, model_dir: Path, most: int) -> AsyncIterator[None]:
    """An engine on a unix socket, with so many connections at once."""
    options = ServerOptions(("test/tiny",), model_dir, model_dir, uds=str(path))
    info = dataclasses.replace(INFO, vocabulary_size=320, max_num_seqs=8)
    async with linked(core, info) as link:
        service = Service(options, link, Metrics("test/tiny"))
        await service.load_text_tools()
        service.become_ready()
        runner = web.AppRunner(build_app(service), handler_cancellation=True)
        await runner.setup()
        with listening_socket(options) as listener:
            try:
                await accept(runner, listener, most, service.room)
                yield
            finally:
                core.released.set()
                await runner.cleanup()
                await service.close()


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, path: Path) -> Client:
        return cls(*await asyncio.open_unix_connection(path))

    def send(self, method: str, target: str, body: object = None) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
        self.write(head.encode() + content)

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Return status, header and body of an answer after which the connection ends."""
        status, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        header = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines if line)}
        return int(status.split()[1]), header, await self._reader.read()

    async def status(self) -> int:
        """Return the status of an answer whose end does not matter."""
        return int((await self._reader.readuntil(b"\r\n\r\n")).split()[1])

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


async def hold(path: Path, core: HeldCore) -> list[Client]:
    """Return three clients that wait for their streams."""
    clients = [await Client.connect(path) for _ in range(3)]
    for client in clients:
        client.send("POST", "/v1/completions", STREAM)
    assert await asyncio.to_thread(core.is_full.wait, 30)
    return clients


def assert_told_to_come_again(told: tuple[int, dict[str, str], bytes]) -> None:
    status, header, body = told
    assert (status, header["retry-after"], header["connection"]) == (429, "1", "close")
    error = json.loads(body)["error"]
    assert (error["code"], error["type"]) == ("connections_busy", "rate_limit_error")


@pytest.mark.timeout(60)
async def test_who_comes_while_all_connections_are_streams_is_told_to_come_again(
    tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a probe is told that the engine is well. Then it serves as before."""
    monkeypatch.setattr(listener_module, "PATIENCE_SECONDS", 0.0)
    path, core = tmp_path / "engine.sock", HeldCore()
    async with serving(path, core, model_dir, 3):
        held = await hold(path, core)
        newcomers = [await Client.connect(path) for _ in range(5)]
        for each in newcomers:
            each.send("POST", "/v1/completions", STREAM)
        for each in newcomers:
            assert_told_to_come_again(await each.answer())
        probe = await Client.connect(path)
        probe.send("GET", "/health")
        assert (await probe.answer())[0] == 200
        assert len(core.requests) == 3
        core.released.set()
        assert [await each.status() for each in held] == [200] * 3
        for each in (*held, *newcomers, probe):
            await each.close()
        last = await Client.connect(path)
        last.send("POST", "/v1/completions", STREAM)
        assert await last.status() == 200
        await last.close()


@pytest.mark.timeout(60)
async def test_guests_that_send_no_request_or_no_body_do_not_keep_others_out(
    tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("PATIENCE", 0.0), ("SPARED", 0.05), ("GUEST", 0.2)):
        monkeypatch.setattr(listener_module, f"{name}_SECONDS", seconds)
    path, core = tmp_path / "engine.sock", HeldCore()
    async with serving(path, core, model_dir, 3):
        clients = await hold(path, core)
        for begin in (b"", b"POST /v1/comp", HEAD_WITHOUT_ITS_BODY):
            clients.append(await Client.connect(path))
            clients[-1].write(begin)
        told = None
        while told is None:  # on a busy machine one more may have been too slow to hear it
            clients.append(await Client.connect(path))
            clients[-1].send("POST", "/v1/completions", STREAM)
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                told = await clients[-1].answer()
        assert_told_to_come_again(told)
        for each in clients:
            await each.close()


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Have this process open nothing more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (MANY, hard))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.timeout(60)
async def test_the_same_holds_where_no_descriptor_is_left(
    tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is kept in reserve for it, and again after each."""
    monkeypatch.setattr(listener_module, "PATIENCE_SECONDS", 0.0)
    path, core = tmp_path / "engine.sock", HeldCore()
    async with serving(path, core, model_dir, MANY):
        clients = await hold(path, core)
        sockets = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        with no_descriptor_left():
            for each in sockets:
                each.setblocking(False)
                each.connect(str(path))
                clients.append(Client(*await asyncio.open_unix_connection(sock=each)))
                clients[-1].send("POST", "/v1/completions", STREAM)
                assert_told_to_come_again(await clients[-1].answer())
        for client in clients:
            await client.close()
