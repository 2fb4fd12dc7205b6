"""A gateway in this process and fake engines, real aiohttp servers on unix sockets."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop
from aiohttp import web

from exo_inference.gateway.app import Gateway
from exo_inference.gateway.held_requests import HoldSettings
from exo_inference.state_dir import StateDir, write_atomically

KEY = "sk-chat"
OTHER_KEY = "sk-other"
PUBLIC_KEY = "sk-public"

CHUNKS = tuple(
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":'
    b'[{"index":0,"delta":{"content":"%d "},"finish_reason":null}]}\n\n' % i
    for i in range(5)
)
USAGE = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[],'
    b'"usage":{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12}}\n\n'
)
DONE = b"data: [DONE]\n\n"

QUICK_HOLD = HoldSettings(seconds=20.0, unseen_seconds=0.2)
"""Tests that have no replica to reach need not wait long for what the controller would find."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def route_key(value: str) -> dict[str, str]:
    return {"id": f"key-of-{value}", "sha256": hashlib.sha256(value.encode()).hexdigest()}


@dataclass
class FakeEngine:
    """One engine: answers with `handler` and remembers every request it got."""

    name: str
    socket: Path
    handler: Handler | None = None
    requests: list[web.Request] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    runner: web.AppRunner | None = None

    async def start(self, backlog: int = 128) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self.runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await self.runner.setup()
        self.socket.parent.mkdir(exist_ok=True)
        await web.UnixSite(self.runner, str(self.socket), backlog=backlog).start()

    async def stop(self) -> None:
        if self.runner is not None:
            runner, self.runner = self.runner, None
            await runner.cleanup()

    def streams(self, *parts: bytes, gate: asyncio.Semaphore | None = None) -> None:
        """Answer with an event stream of these parts, one each time that `gate` lets it."""

        async def handle(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for part in parts:
                if gate is not None:
                    await gate.acquire()
                await response.write(part)
            return response

        self.handler = handle

    def breaks_off(self, *parts: bytes, headers: dict[str, str] | None = None) -> None:
        """Send these parts of an answer and hang up, as a killed engine does."""

        async def handle(request: web.Request) -> web.StreamResponse:
            if parts:
                response = web.StreamResponse(headers=headers)
                await response.prepare(request)
                for part in parts:
                    await response.write(part)
                await asyncio.sleep(0.05)  # let the kernel carry what was written
            assert request.transport is not None
            request.transport.abort()
            return web.Response()

        self.handler = handle

    def answers(self, status: int = 200, body: Any = None, **headers: str) -> None:
        """Answer with this JSON."""

        async def handle(_: web.Request) -> web.StreamResponse:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return web.json_response(body or {"engine": self.name}, status=status, headers=named)

        self.handler = handle

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(await request.read())
        if self.handler is None:
            return web.json_response({"engine": self.name})
        return await self.handler(request)


@dataclass
class Stack:
    """What a test works with."""

    state: StateDir
    engines: list[FakeEngine]
    gateway: Gateway
    client: aiohttp.ClientSession
    url: str = ""
    port: int = 0
    version: int = 0
    key: str = KEY
    other_key: str = OTHER_KEY
    public_key: str = PUBLIC_KEY
    chunks: tuple[bytes, ...] = CHUNKS
    usage: bytes = USAGE
    done: bytes = DONE

    def write_table(self, engines: list[FakeEngine] | None = None, **changes: Any) -> None:
        """Publish a table with deployment `chat`, a second one, and a public key."""
        self.version += 1
        chosen = self.engines if engines is None else engines
        chat = {
            "deployment-id": "d-1",
            "name": "chat",
            "model": "exo/tiny-chat",
            "state": "ready",
            "keys": [route_key(KEY)],
            "replicas": [
                {"name": e.name, "address": f"unix:{e.socket.relative_to(self.state.root)}"}
                for e in chosen
            ],
        }
        other = {**chat, "deployment-id": "d-2", "name": "other", "keys": [route_key(OTHER_KEY)]}
        table = {
            "version": self.version,
            "routes": [{**chat, **changes}, other],
            "public-keys": [route_key(PUBLIC_KEY)],
        }
        write_atomically(self.state.routes_file, json.dumps(table))

    def path(self, path: str = "/v1/chat/completions", deployment: str = "d-1") -> str:
        return f"{self.url}/{deployment}{path}"

    async def admin(self, path: str) -> str:
        connector = aiohttp.UnixConnector(str(self.state.gateway_socket))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(f"http://gateway{path}") as answer,
        ):
            assert answer.status == 200
            return await answer.text()

    async def status(self) -> dict[str, Any]:
        return json.loads(await self.admin("/status"))

    async def table_applied(self) -> None:
        """Wait until the gateway follows the table written last."""
        await until(self._is_applied)

    async def _is_applied(self) -> bool:
        return bool((await self.status())["table_version"] == self.version)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait as long as the test may take."""
    while not await condition():
        await asyncio.sleep(0.01)


@pytest.fixture
def state() -> Iterator[StateDir]:
    # Not tmp_path: the path of a unix socket has at most 107 bytes.
    state = StateDir(Path(tempfile.mkdtemp(prefix="exo-gw-", dir="/tmp")))
    state.create()
    yield state
    shutil.rmtree(state.root)


@pytest.fixture
async def stack(state: StateDir) -> AsyncIterator[Stack]:
    """Two engines, a gateway, and a client that has the key of `chat`."""
    async with running_stack(state) as stack:
        yield stack


@pytest.fixture
def on_uvloop(state: StateDir) -> Callable[[Callable[[Stack], Awaitable[None]]], None]:
    """Runs a test with a stack on the loop that gateways run on.

    It differs where it connects to a unix socket whose queue is full: asyncio takes that for a connection.
    """

    async def with_stack(test: Callable[[Stack], Awaitable[None]]) -> None:
        # uvloop wakes up for no signal of pytest-timeout.
        async with asyncio.timeout(110), running_stack(state) as stack:
            await test(stack)

    def run(test: Callable[[Stack], Awaitable[None]]) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(with_stack(test))

    return run


@asynccontextmanager
async def running_stack(state: StateDir) -> AsyncIterator[Stack]:
    engines = [
        FakeEngine(name, state.replicas_dir / name / "engine.sock") for name in ("chat-a", "chat-b")
    ]
    for engine in engines:
        await engine.start()
    client = aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {KEY}"}, timeout=aiohttp.ClientTimeout(total=20)
    )
    stack = Stack(state, engines, Gateway(state, holding=QUICK_HOLD), client)
    stack.write_table()
    port = await stack.gateway.start("127.0.0.1", 0)
    stack.url = f"http://127.0.0.1:{port}"
    yield stack
    await client.close()
    await stack.gateway.stop(grace_seconds=0.1)
    for engine in engines:
        await engine.stop()
