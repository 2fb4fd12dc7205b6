"""A core that says what a test wants, behind the real link, and an HTTP server around it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

from aiohttp import test_utils
from exo_engine.arguments import ServerOptions
from exo_engine.config import EngineConfig
from exo_engine.core.request import EngineRequest, EngineStats, RequestOutput
from exo_engine.errors import PromptTooLong
from exo_engine.frames import FrameSocket
from exo_engine.server.app import build_app
from exo_engine.server.core_link import CoreLink
from exo_engine.server.core_process import Core, serve
from exo_engine.server.messages import CoreInfo, PoolingInfo
from exo_engine.server.service import Service
from exo_engine.server.telemetry.metrics import Metrics
from exo_engine.server.telemetry.tracing import Tracing

INFO = CoreInfo(300, 512, 4, 8, 16, "float32", "cpu", 0.9, True)
CONFIG = EngineConfig(model_dir=Path("fake"))


class FakeCore:
    """Says the tokens of a script, one per step, to every request."""

    def __init__(
        self, script: list[int], *, most_prompt_tokens: int = 9, reason: str = "length"
    ) -> None:
        self.script = script
        self.requests: list[EngineRequest] = []
        self._most_prompt_tokens = most_prompt_tokens
        self._reason = reason
        self.aborted: list[str] = []
        self.step_error: Exception | None = None
        self._positions: dict[str, int] = {}

    def add_request(self, request: EngineRequest) -> None:
        if len(request.prompt_token_ids) > self._most_prompt_tokens:
            raise PromptTooLong("too long for the fake", param="prompt")
        self.requests.append(request)
        self._positions[request.request_id] = 0

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        for each in request_ids:
            self.aborted.append(each)
            self._positions.pop(each, None)

    def has_unfinished_requests(self) -> bool:
        return bool(self._positions)

    def step(self) -> list[RequestOutput]:
        if self.step_error is not None:
            raise self.step_error
        outputs = []
        for each, position in list(self._positions.items()):
            is_last = position == len(self.script) - 1
            reason = self._reason if is_last else None
            outputs.append(RequestOutput(each, (self.script[position],), None, reason))
            self._positions[each] = position + 1
            if is_last:
                del self._positions[each]
        return outputs

    def check_processes(self) -> list[int]:
        return []

    def stats(self) -> EngineStats:
        return EngineStats(num_running=len(self._positions))


@contextlib.asynccontextmanager
async def linked(core: Core, info: CoreInfo = INFO) -> AsyncIterator[CoreLink]:
    """A link to a fake core that runs the real loop in a thread."""

    def build(config: EngineConfig, progress: Callable[[str], None]) -> tuple[Core, CoreInfo]:
        progress("loading weights 43 %")
        return core, info

    ours, theirs = socket.socketpair()
    with theirs:
        thread = threading.Thread(target=serve, args=(FrameSocket(theirs), build), daemon=True)
        thread.start()
        link = CoreLink()
        await link.attach(ours, CONFIG)
        await link.wait_ready()
        try:
            yield link
        finally:
            await link.close()
            await asyncio.to_thread(thread.join)


@contextlib.asynccontextmanager
async def serving(
    core: Core,
    model_dir: Path,
    tracing: Tracing | None = None,
    max_model_len: int = 4096,
    pooling: PoolingInfo | None = None,
    **options: object,
) -> AsyncIterator[test_utils.TestServer]:
    """A server on a loopback port, ready."""
    info = CoreInfo(320, max_model_len, 4, 8, 16, "float32", "cpu", 0.9, True, pooling=pooling)
    settings = ServerOptions(("test/tiny",), model_dir, model_dir, **options)
    async with linked(core, info) as link:
        service = Service(settings, link, Metrics("test/tiny"))
        service.tracing = tracing
        await service.load_text_tools()
        service.become_ready()
        try:
            async with test_utils.TestServer(build_app(service)) as server:
                yield server
        finally:
            await service.close()
