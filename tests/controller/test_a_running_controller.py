"""A controller of the tests ends with its test, also one that was slow to answer."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from exo_inference.state_dir import StateDir
from tests.controller import conftest
from tests.controller.conftest import Controller


def test_one_that_does_not_answer_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the time of a test runs out, the wait for the first answer is broken off."""
    begun, ended = threading.Event(), threading.Event()

    async def never_answer(*_: Any, **__: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    class TimeIsUp(Exception):
        pass

    class Impatient(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            begun.wait()
            raise TimeIsUp

    monkeypatch.setattr(conftest, "serve", never_answer)
    monkeypatch.setattr(conftest, "Event", Impatient)
    controller = Controller(StateDir(tmp_path))
    with pytest.raises(TimeIsUp), controller.running():
        raise AssertionError("it has not answered")
    assert ended.is_set()
    assert "controller" not in [thread.name for thread in threading.enumerate()]


def test_the_clients_of_others_are_not_loaded_before_they_are_needed() -> None:
    """They take a fifth of the time that a start does."""
    script = (
        "import sys, exo_inference.controller.local.server;"
        "print(sorted({'httpx', 'huggingface_hub', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout == b"[]\n"
