"""What is told of a core that died without a word is what is known."""

from __future__ import annotations

import select
import signal
import socket

import pytest
from exo_engine.errors import CoreFailed
from exo_engine.server import core_link

from .scripted_core import FakeCore, linked


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
