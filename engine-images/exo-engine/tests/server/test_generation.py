"""A server on a scripted core: what comes out of steps, and what goes back to the core."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

import pytest
from exo_engine.config import EngineConfig
from exo_engine.core.request import EngineRequest, EngineStats, RequestOutput
from exo_engine.errors import OutOfMemory, PromptTooLong
from exo_engine.frames import FrameSocket
from exo_engine.sampling_params import SamplingParams
from exo_engine.server.api_errors import ApiError
from exo_engine.server.core_link import CoreLink
from exo_engine.server.core_process import Core, serve
from exo_engine.server.generation import Delta, Generation
from exo_engine.server.messages import CoreInfo
from exo_engine.server.metrics import Metrics
from exo_engine.server.sampling import Sampling
from exo_engine.tokenizer import Tokenizer

INFO = CoreInfo(300, 512, 4, 8, 16, "float32", "cpu", 0.9, True)
CONFIG = EngineConfig(model_dir=Path("fake"))


class FakeCore:
    """Says the tokens of a script, one per step, to every request."""

    def __init__(self, script: list[int]) -> None:
        self.script = script
        self.aborted: list[str] = []
        self.step_error: Exception | None = None
        self._positions: dict[str, int] = {}

    def add_request(self, request: EngineRequest) -> None:
        if len(request.prompt_token_ids) > 9:
            raise PromptTooLong("too long for the fake", param="prompt")
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
            reason = "length" if is_last else None
            outputs.append(RequestOutput(each, (self.script[position],), None, reason))
            self._positions[each] = position + 1
            if is_last:
                del self._positions[each]
        return outputs

    def stats(self) -> EngineStats:
        return EngineStats(num_running=len(self._positions))


@contextlib.asynccontextmanager
async def linked(core: FakeCore) -> AsyncIterator[CoreLink]:
    """A link to a fake core that runs the real loop in a thread."""

    def build(config: EngineConfig, progress: Callable[[str], None]) -> tuple[Core, CoreInfo]:
        progress("loading weights 43 %")
        return core, INFO

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


@pytest.fixture
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer(model_dir)


def generation(
    link: CoreLink, tokenizer: Tokenizer, *, stop: tuple[str, ...] = (), n: int = 1, size: int = 1
) -> Generation:
    sampling = Sampling(SamplingParams(max_tokens=50), n, stop, False, True, 0, None)
    return Generation(
        link, Metrics("m"), tokenizer,
        request_id="r", prompts=[[5] * size], sampling=sampling, max_tokens=[50],
    )  # fmt: skip


async def collect(running: Generation) -> list[Delta]:
    return [delta async for deltas in running.run() for delta in deltas]


async def test_text_of_all_choices_comes_out(tokenizer: Tokenizer) -> None:
    script = tokenizer.encode("naïve 🙂 fox", add_special_tokens=False)
    async with linked(FakeCore(script)) as link:
        assert link.progress == "loading weights 43 %"
        running = generation(link, tokenizer, n=3)
        deltas = await collect(running)
        assert link.num_unfinished == 0
    for index in range(3):
        mine = [delta for delta in deltas if delta.index == index]
        assert "".join(delta.text for delta in mine) == "naïve 🙂 fox"
        assert mine[-1].finish_reason == "length"
    assert running.usage.num_completion_tokens == 3 * len(script)
    assert running.usage.num_prompt_tokens == 1


async def test_stop_string_aborts_in_the_core_and_counts_no_token_after_it(
    tokenizer: Tokenizer,
) -> None:
    script = tokenizer.encode("one two STOP", add_special_tokens=False)
    core = FakeCore([*script, *([260] * 10_000)])
    async with linked(core) as link:
        running = generation(link, tokenizer, stop=(" STOP",))
        deltas = await collect(running)
        await _until(lambda: bool(core.aborted))
    assert "".join(delta.text for delta in deltas) == "one two"
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", " STOP")
    assert running.usage.num_completion_tokens == len(script)
    assert core.aborted == ["r-0"]


async def test_leaving_early_aborts_what_is_left(tokenizer: Tokenizer) -> None:
    core = FakeCore([65] * 100_000)
    async with linked(core) as link:
        running = generation(link, tokenizer, n=2)
        async with contextlib.aclosing(running.run()) as deltas:
            await anext(deltas)
        assert link.num_unfinished == 0
        await _until(lambda: len(core.aborted) == 2)
    assert sorted(core.aborted) == ["r-0", "r-1"]


async def test_refusal_of_the_core_is_an_error_of_that_request_only(tokenizer: Tokenizer) -> None:
    async with linked(FakeCore([65])) as link:
        with pytest.raises(ApiError) as caught:
            await collect(generation(link, tokenizer, size=10))
        assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")
        assert (await collect(generation(link, tokenizer)))[-1].finish_reason == "length"


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (OutOfMemory("no room", hint="free some"), 71, "no room"),
        (MemoryError(), 71, "ran out of memory"),
        (ZeroDivisionError("oops"), 70, "ZeroDivisionError: oops"),
    ],
    ids=["ours", "python", "bug"],
)
async def test_failing_step_ends_everything_with_its_reason(
    tokenizer: Tokenizer, error: Exception, status: int, text: str
) -> None:
    core = FakeCore([65] * 1000)
    async with linked(core) as link:
        running = asyncio.ensure_future(collect(generation(link, tokenizer)))
        core.step_error = error
        with pytest.raises(ApiError) as caught:
            await running
        assert caught.value.code == "engine_stopped"
        assert caught.value.headers["x-exo-failed"] == "1"  # another replica may answer
        failure = await link.wait_closed()
        assert failure is not None
        assert failure.exit_code == status
        assert text in failure.message
        with pytest.raises(ApiError):  # and later requests end at once
            await collect(generation(link, tokenizer))


async def _until(is_true: Callable[[], bool]) -> None:
    for _ in range(2000):
        if is_true():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("waited too long")
