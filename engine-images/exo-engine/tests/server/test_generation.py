"""A server on a scripted core: what comes out of steps, and what goes back to the core."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from exo_engine.errors import OutOfMemory
from exo_engine.sampling_params import SamplingParams
from exo_engine.server.api_errors import ApiError
from exo_engine.server.core_link import CoreLink
from exo_engine.server.generation import Delta, Generation
from exo_engine.server.sampling import Sampling
from exo_engine.server.telemetry.metrics import Metrics
from exo_engine.tokenizer import Tokenizer

from .scripted_core import FakeCore, linked


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
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 71, "ran out of memory"),
        (ZeroDivisionError("oops"), 70, "ZeroDivisionError: oops"),
    ],
    ids=["ours", "python", "pytorch", "bug"],
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
