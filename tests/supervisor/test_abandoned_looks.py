"""A socket that a server's answer brings is closed where nobody waits for the answer any more."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from exo_inference.liveness import LivenessAnswer
from exo_inference.supervisor import server_process
from exo_inference.supervisor.server_process import _Look
from exo_inference.supervisor.watchdog import WatchPolicy


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
def test_what_an_answer_brings_is_closed(is_late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    listener, may_answer = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def answer(*arguments: object) -> tuple[LivenessAnswer, bool]:
        may_answer.wait(10)
        return LivenessAnswer(listener), False

    monkeypatch.setattr(server_process, "probe_server", answer)
    look = _Look()
    thread = threading.Thread(target=look.take, args=(Path("socket"), os.getpid(), WatchPolicy()))
    thread.start()
    if is_late:
        look.abandon()
        assert listener.fileno() >= 0
    may_answer.set()
    thread.join()
    assert (listener.fileno() < 0) == is_late
    look.abandon()
    assert listener.fileno() < 0
