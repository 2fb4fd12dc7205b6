"""What of a write is remembered, for how long, and what it costs."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
import requests
from exoscale_auth import ExoscaleV2Auth
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from exo_inference.controller.http import refused_signatures, replays
from exo_inference.controller.http.auth import Verifier
from exo_inference.controller.http.middleware import RequestBoundary, SignatureGate
from exo_inference.controller.http.refused_signatures import RefusalLog
from exo_inference.controller.http.replays import Answer, Forgotten, ReplayMemory, Superseded


class FakeClock:
    """A clock that is set by hand."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def ask(memory: ReplayMemory, signature: str, status: int = 200, body: bytes = b"x") -> str:
    """Return whether a write was executed, or its answer came from before."""

    async def first() -> Answer:
        return Answer(status, (), body)

    return "new" if await memory.once(signature, 1600.0, first) is None else "old"


async def test_signatures_are_forgotten_when_they_end() -> None:
    clock, monotonic = FakeClock(), FakeClock()
    memory = ReplayMemory(clock, monotonic=monotonic)
    assert [await ask(memory, "a"), await ask(memory, "a")] == ["new", "old"]
    clock.now = 1600.0
    monotonic.now += replays.KEEP_SECONDS
    await ask(memory, "b")
    assert len(memory) == 1
    assert await ask(memory, "a") == "new"


async def test_what_may_be_over_is_told_by_who_knows_it_and_one_at_a_time() -> None:
    """Three repeats at once: each is answered anew, after the other; a refusal of one is not kept."""
    clock = FakeClock()
    memory, running, answers = ReplayMemory(clock), 0, [200, 200, 200, 200, 409, 200]
    told = []

    async def first() -> Answer:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0)
        running -= 1
        told.append(answers[len(told)])
        return Answer(told[-1], (), b"value")

    async def send() -> Answer | None:
        return await memory.once("a", 1600.0, first, target="key", repeat=first)

    assert await send() is None
    assert await asyncio.gather(send(), send(), send()) == [None] * 3
    assert await send() is None
    clock.now += replays.REFUSAL_SECONDS
    assert await send() is None
    assert told == answers
    assert len(memory) == 1


async def test_a_refused_repeat_brings_no_earlier_change_back(tmp_path: Path) -> None:
    """PATCH a, PATCH b, rotate; another controller rotates; the repeat of this rotation is refused."""
    refusals = RefusalLog(tmp_path / "refused", FakeClock())
    memory = ReplayMemory(FakeClock(), refusals=refusals)

    def answering(status: int) -> Callable[[], Awaitable[Answer]]:
        async def answer() -> Answer:
            return Answer(status, (), b"value")

        return answer

    async def change(signature: str) -> Answer | None:
        repeat = answering(409) if signature == "rotate" else None
        return await memory.once(signature, 1600.0, answering(200), target="key", repeat=repeat)

    for signature in ("name a", "name b", "rotate", "rotate"):
        assert await change(signature) is None
    with pytest.raises(Superseded):
        await change("name a")
    assert len(refusals) == 0


async def test_a_repeat_that_breaks_off_leaves_the_next_to_be_told() -> None:
    memory, hangs, told = ReplayMemory(FakeClock()), asyncio.Event(), []

    async def answer() -> Answer:
        return Answer(200, (), b"value")

    async def hang() -> None:
        hangs.set()
        await asyncio.Event().wait()

    async def tell() -> None:
        told.append(1)

    await memory.once("a", 1600.0, answer, repeat=tell)
    broken = asyncio.create_task(memory.once("a", 1600.0, answer, repeat=hang))
    await hangs.wait()
    waiting = [asyncio.create_task(memory.once("a", 1600.0, answer, repeat=tell)) for _ in "abc"]
    await asyncio.sleep(0)
    assert told == []
    broken.cancel()
    assert await asyncio.gather(*waiting) == [None] * 3
    assert len(told) == 3


async def test_a_clock_that_jumps_forth_and_back_forgets_nothing() -> None:
    clock, monotonic = FakeClock(), FakeClock()
    memory = ReplayMemory(clock, monotonic=monotonic)
    assert await ask(memory, "a") == "new"
    clock.now += 100_000
    await ask(memory, "b")
    clock.now -= 100_000
    assert await ask(memory, "a") == "old"


def test_refusals_are_kept_until_they_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_signatures, "MAX_LINES", 10)
    clock, path = FakeClock(), tmp_path / "refused"
    log = RefusalLog(path, clock)
    for number in range(8):
        log.add(f"key {number}", 1100.0 if number < 4 else 1600.0)
    assert all(f"key {number}" in RefusalLog(path, clock) for number in range(8))
    clock.now = 1200.0
    log = RefusalLog(path, clock)
    assert [f"key {number}" in log for number in (3, 4)] == [False, True]
    for number in range(8, 30):
        log.add(f"key {number}", 1600.0)
    assert len(path.read_text().splitlines()) <= 10
    assert "key 29" in RefusalLog(path, clock)
    path.write_bytes(b"\xff\0 torn\n" + path.read_bytes()[:-9])
    assert "key 27" in RefusalLog(path, clock)


def test_refusals_that_cannot_be_kept_are_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused_signatures, "MAX_LINES", 10)
    log = RefusalLog(tmp_path / "nowhere" / "refused", FakeClock())
    for number in range(100):
        log.add(f"key {number}", 1600.0)
    assert "key 99" in log
    assert len(log) <= 11, "nor do they fill the memory"


def test_a_clock_that_is_ahead_at_a_start_forgets_no_refusal(tmp_path: Path) -> None:
    clock, path = FakeClock(), tmp_path / "refused"
    RefusalLog(path, clock).add("key", 1600.0)
    clock.now += 3600.0
    log = RefusalLog(path, clock)
    assert "key" not in log
    clock.now -= 3600.0
    assert "key" in log


async def test_the_memory_is_bounded_in_number_and_size() -> None:
    memory = ReplayMemory(FakeClock(), max_signatures=100, max_answer_bytes=1000)
    for number in range(50):
        await ask(memory, f"{number:03}", body=b"x" * 100)
    assert await ask(memory, "049") == "old"
    with pytest.raises(Forgotten):
        await ask(memory, "000")
    for number in range(50, 1000):
        await ask(memory, f"{number:03}", body=b"x" * 100)
    assert len(memory) == 100
    assert memory._answer_bytes <= 1000


@pytest.mark.parametrize("status", [408, 429, 500, 503])
async def test_what_asks_to_be_repeated_is_done_again(status: int) -> None:
    memory = ReplayMemory(FakeClock())
    assert await ask(memory, "a", status) == "new"
    assert len(memory) == 0
    assert [await ask(memory, "a"), await ask(memory, "a", 500)] == ["new", "old"]


async def test_a_refusal_is_judged_again_for_two_seconds() -> None:
    """Clients sign in whole seconds: delete, refused; mend the cause; delete."""
    clock = FakeClock()
    memory = ReplayMemory(clock)
    assert [await ask(memory, "a", 412), await ask(memory, "a", 412)] == ["new", "new"]
    clock.now += replays.REFUSAL_SECONDS
    assert await ask(memory, "a") == "old"


async def test_repeats_do_not_keep_a_refusal_open() -> None:
    clock = FakeClock()
    memory = ReplayMemory(clock)
    outcomes = []
    for _ in range(100):
        outcomes.append(await ask(memory, "a", 412))
        clock.now += 0.5
    assert outcomes == ["new"] * 4 + ["old"] * 96
    assert len(memory._ends) == 1


async def test_what_succeeds_after_a_refusal_is_done_once() -> None:
    memory = ReplayMemory(FakeClock())
    answers = [await ask(memory, "a", status) for status in (412, 412, 200, 200)]
    assert answers == ["new", "new", "new", "old"]


async def test_one_that_breaks_off_leaves_the_next_to_do_it() -> None:
    memory = ReplayMemory(FakeClock())
    begun, is_first_run = asyncio.Event(), []

    async def hang() -> Answer:
        begun.set()
        await asyncio.sleep(3600)
        raise AssertionError

    async def work() -> Answer:
        is_first_run.append(1)
        return Answer(200, (), b"")

    broken = asyncio.create_task(memory.once("a", 1600.0, hang))
    await begun.wait()
    waiting = [asyncio.create_task(memory.once("a", 1600.0, work)) for _ in range(5)]
    await asyncio.sleep(0)
    broken.cancel()
    answers = await asyncio.gather(*waiting)
    assert len(is_first_run) == 1
    assert sum(answer is None for answer in answers) == 1


async def test_a_burst_costs_little() -> None:
    memory = ReplayMemory(FakeClock())
    before = time.process_time()
    for number in range(20_000):
        await ask(memory, str(number))
    assert len(memory) == 20_000
    assert time.process_time() - before < 20  # a hang guard: it takes a fraction of a second


def test_a_named_pipe_as_memory_of_refusals_is_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(tmp_path / "refused")
    log = RefusalLog(tmp_path / "refused", lambda: 0.0)
    log.add("signature", 10.0)
    assert "signature" in log
    assert "what was refused before is not known: it is not a regular file" in caplog.text
    assert "a refused write is not remembered over a restart" in caplog.text


async def test_a_write_that_is_refused_among_many_is_judged_once_at_a_time() -> None:
    memory, running, most = ReplayMemory(FakeClock()), 0, 0

    async def refuse() -> Answer:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        running -= 1
        return Answer(412, (), b"x")

    await asyncio.gather(*(memory.once("a", 1600.0, refuse) for _ in range(5)))
    assert most == 1


async def test_writes_that_are_not_remembered_take_no_memory_for_ever() -> None:
    memory = ReplayMemory(FakeClock(), max_signatures=100)
    for number in range(500):
        await ask(memory, str(number), status=503)
    assert len(memory) == 0
    assert len(memory._ends) <= 100


@pytest.mark.parametrize(
    ("statuses", "num_shared"),
    [
        pytest.param([400], 1, id="a refusal"),
        pytest.param([200, 400, 409, 200], 0, id="refused repeats of a success"),
    ],
)
async def test_only_what_was_refused_at_first_is_told_to_other_controllers(
    statuses: list[int], num_shared: int
) -> None:
    shared, left = [], list(statuses)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("value", left.pop(0))(scope, receive, send)

    async def share(signature: str) -> None:
        shared.append(signature)

    verifier = Verifier(lambda _: "secret", time.time)
    gate = RequestBoundary(SignatureGate(app, verifier, ReplayMemory(time.time), share))
    url = "http://controller/v2/ai/api-key"
    signed = requests.Request("POST", url, auth=ExoscaleV2Auth("EXO1", "secret")).prepare()
    headers = {"Authorization": signed.headers["Authorization"]}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(gate)) as client:
        answers = [(await client.post(url, headers=headers)).status_code for _ in statuses]
    assert answers == statuses
    assert len(shared) == num_shared
