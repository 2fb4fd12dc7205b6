"""What is told of a core that died without a word is what is known."""

from __future__ import annotations

import asyncio
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import uvloop
from exo_engine import pulse
from exo_engine.errors import MEMORY_HINT, CoreFailed, OutOfMemory
from exo_engine.frames import ConnectionEnded, FrameSocket
from exo_engine.server import core_link, core_process, lifecycle
from exo_engine.server.core_link import CoreLink
from exo_engine.server.core_start import StartedCore

from .scripted_core import CONFIG, INFO, FakeCore, linked

_FOREVER = 60.0


@pytest.mark.parametrize(
    ("before", "after", "exit_code", "words"),
    [
        (None, None, 71, "signal 9"),
        (0, None, 71, "signal 9"),
        (2, 3, 71, "signal 9: memory ran out"),
        (2, 2, 70, "not by the kernel for want of memory"),
    ],
)
def test_killed_core_is_explained_by_the_kernels_count(
    monkeypatch, before, after, exit_code, words
):
    monkeypatch.setattr(core_link, "num_oom_kills", lambda: after)
    failure = core_link._failure_from_status(-signal.SIGKILL, before)
    assert failure.exit_code == exit_code
    assert words in failure.message
    assert (failure.hint is None) == (exit_code == 70)


def test_a_core_without_memory_to_say_so_says_it_by_its_status() -> None:
    class Full:
        def send(self, kind: str, payload: object) -> None:
            raise MemoryError

    assert core_process._report(Full(), MemoryError()) == OutOfMemory.exit_code  # type: ignore[arg-type]
    failure = core_link._failure_from_status(OutOfMemory.exit_code, None)
    assert "ran out of memory" in failure.message
    assert failure.hint == MEMORY_HINT


async def test_idle_core_ends_with_a_process_that_computes_for_it() -> None:
    """Nobody need send a request first."""

    class Helped(FakeCore):
        def check_processes(self) -> list[int]:
            if select.select([ours], [], [], 0)[0]:
                raise CoreFailed("the process that computes steps ended with SIGKILL", exit_code=70)
            return [ours.fileno()]

    ours, theirs = socket.socketpair()
    with ours, theirs:
        async with linked(Helped([5])) as link:
            theirs.close()
            failure = await link.wait_closed()
    assert failure is not None
    assert (failure.exit_code, failure.message) == (
        70,
        "the process that computes steps ended with SIGKILL",
    )


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_closing_waits_for_no_core_that_sends_and_does_not_read(run: Callable[..., None]) -> None:
    """The core was in the middle of a step's outputs, and the API waited for it to read commands, for ever."""
    ours, theirs = socket.socketpair()
    may_send, has_seen_the_end = threading.Event(), threading.Event()

    def send_steps() -> None:
        link = FrameSocket(theirs)
        link.receive(is_waiting=True)
        may_send.wait(_FOREVER)
        try:
            while True:
                link.send("progress", "x" * 100_000)
        except ConnectionEnded:
            has_seen_the_end.set()

    async def close() -> None:
        link = CoreLink()
        await link.attach(ours, CONFIG)
        for _ in range(200):
            link.reset_prefix_cache()
            link._tell("abort", ["x" * 50_000])
        asyncio.get_running_loop().call_soon(may_send.set)
        await asyncio.wait_for(link.close(), _FOREVER)
        assert await link.wait_closed() is None

    with theirs:
        core = threading.Thread(target=send_steps, daemon=True)
        core.start()
        run(close())
        core.join(_FOREVER)
    assert has_seen_the_end.is_set()


@pytest.fixture
def deaf_core() -> Iterator[StartedCore]:
    """A process that ends by no hanging up."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", f"import time; time.sleep({_FOREVER})"]
    with theirs, subprocess.Popen(command) as process:
        yield StartedCore(process, ours, pulse.OWN)
        process.kill()


async def test_second_signal_ends_a_core_that_does_not_end_by_itself(
    deaf_core: StartedCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_link, "_REAP_SECONDS", _FOREVER)
    link, stop = CoreLink(), lifecycle._Stop()
    await link.adopt(deaf_core, CONFIG)
    link.info = INFO  # it is loaded, so closing has it end by itself
    stop.ask()
    closing = asyncio.create_task(lifecycle._close(link, stop))
    await asyncio.sleep(0)
    assert deaf_core.process.poll() is None
    stop.ask()
    await closing
    assert deaf_core.process.returncode == -signal.SIGKILL


async def test_core_that_does_not_end_by_itself_is_killed(
    deaf_core: StartedCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_link, "_REAP_SECONDS", 0.01)
    link = CoreLink()
    await link.adopt(deaf_core, CONFIG)
    link.info = INFO
    await link.close()
    assert deaf_core.process.returncode == -signal.SIGKILL
