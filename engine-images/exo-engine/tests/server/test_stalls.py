"""When /health says that the engine hangs: work, and nothing computed for 4 s."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from exo_engine import pulse
from exo_engine.core.request import EngineRequest, EngineStats, RequestOutput
from exo_engine.frames import ConnectionEnded, FrameSocket, Message
from exo_engine.sampling_params import SamplingParams
from exo_engine.server import core_link
from exo_engine.server.core_process import _loop
from exo_engine.server.messages import pack_request, unpack_stats

from .scripted_core import FakeCore, serving

pytestmark = pytest.mark.filterwarnings("ignore:It is recommended to use web.RequestKey")


class HeldCore(FakeCore):
    """A core whose steps take until they are let go."""

    def __init__(self) -> None:
        super().__init__([5, 6])
        self.is_stepping = threading.Event()
        self.may_end = threading.Event()

    def step(self):
        self.is_stepping.set()
        self.may_end.wait(30)
        return super().step()


@pytest.fixture
def pass_seconds(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let time pass, for the link and for what is computed; no other passes for them."""
    now = [time.monotonic()]
    clock = SimpleNamespace(
        monotonic=lambda: now[0],
        monotonic_ns=lambda: int(now[0] * 1e9),
    )
    monkeypatch.setattr(core_link, "time", clock)
    monkeypatch.setattr(pulse, "time", clock)

    def wait(seconds: float) -> None:
        now[0] += seconds

    return wait


async def health(client: aiohttp.ClientSession) -> tuple[int, str]:
    async with client.get("/health") as answer:
        return answer.status, (await answer.json())["status"]


OK, STALLED = (200, "ok"), (503, "stalled")


async def test_work_without_a_layer_is_a_hang_until_the_next_one(model_dir, pass_seconds) -> None:
    core = HeldCore()
    async with (
        serving(core, model_dir) as server,
        aiohttp.ClientSession(server.make_url("/")) as client,
    ):
        pass_seconds(1000)
        assert await health(client) == OK, "it is idle"
        body = {"prompt": [1, 2], "max_tokens": 2}
        asked = asyncio.create_task(client.post("/v1/completions", json=body))
        await asyncio.to_thread(core.is_stepping.wait)
        pass_seconds(3.5)
        assert await health(client) == OK
        pulse.OWN.count_layer()
        pass_seconds(3.5)
        assert await health(client) == OK, "a long step gets on layer by layer"
        pass_seconds(1)
        assert await health(client) == STALLED
        pulse.OWN.count_layer()
        assert await health(client) == OK
        pass_seconds(5)
        assert await health(client) == STALLED
        core.may_end.set()
        assert (await asked).status == 200
        assert await health(client) == OK


async def test_a_core_that_takes_nothing_hangs_though_its_clients_have_left(
    model_dir, pass_seconds
) -> None:
    core = HeldCore()
    async with (
        serving(core, model_dir) as server,
        aiohttp.ClientSession(server.make_url("/")) as client,
    ):
        asked = asyncio.create_task(client.post("/v1/completions", json={"prompt": [1, 2]}))
        await asyncio.to_thread(core.is_stepping.wait)
        asked.cancel()
        async with asyncio.timeout(10):
            while 'num_requests_waiting{engine="0",model_name="test/tiny"} 0' not in (  # noqa: ASYNC110
                await (await client.get("/metrics")).text()
            ):
                await asyncio.sleep(0.01)
        pass_seconds(5)
        assert await health(client) == STALLED
        core.may_end.set()
        async with asyncio.timeout(10):
            while await health(client) != OK:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert core.aborted


def test_each_command_that_is_taken_is_progress() -> None:
    """Thousands of long texts come at once, and take longer to be taken than a layer may."""
    beats: list[int] = []

    class Taking(HeldCore):
        def abort_requests(self, request_ids: object) -> None:
            beats.append(pulse.OWN.num_commands)

    ours, theirs = socket.socketpair()
    link = FrameSocket(theirs)
    ours.close()
    with theirs, pytest.raises(ConnectionEnded):
        _loop(link, Taking(), [("abort", ["a"]), ("abort", ["b"]), ("abort", ["c"])])
    assert [each - beats[0] for each in beats] == [0, 1, 2]


def test_a_step_that_gives_nothing_yet_is_told_too() -> None:
    """A long prompt in chunks: the tokens of each are observed for themselves, not as one great step."""
    told: list[tuple[int, int]] = []

    class Chunked(FakeCore):
        def __init__(self) -> None:
            super().__init__([5])
            self.num_steps = 0

        def step(self) -> list[RequestOutput]:
            self.num_steps += 1
            return [] if self.num_steps < 3 else super().step()

        def stats(self) -> EngineStats:
            return EngineStats(
                num_steps_total=self.num_steps, computed_tokens_total=8 * self.num_steps
            )

    class Told:
        def send(self, kind: str, payload: Any) -> None:
            outputs, stats = payload
            told.append((len(outputs), unpack_stats(stats).num_steps_total))

        def receive(self, *, is_waiting: bool) -> list[Message]:
            if is_waiting:
                raise ConnectionEnded
            return []

        def wait_beside(self, sockets: object) -> None:
            """Nothing more comes."""

    request = EngineRequest("a", (1, 2), SamplingParams())
    with pytest.raises(ConnectionEnded):
        _loop(cast(FrameSocket, Told()), Chunked(), [("add", pack_request(request))])
    assert told == [(0, 1), (0, 2), (1, 3)]
