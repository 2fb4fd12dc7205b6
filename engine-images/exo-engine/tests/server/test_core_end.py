"""What is told of a core that died without a word is what is known."""

from __future__ import annotations

import signal

import pytest
from exo_engine.server import core_link


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
