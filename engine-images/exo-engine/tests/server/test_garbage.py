"""What stays as long as a process is never looked through for garbage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Engine

RECORDING = """
import gc, os, sys

def record(freeze=gc.freeze):
    was_paused = not gc.isenabled()
    freeze()
    with open({path!r}, "a") as file:
        print("core" if any("core_process" in word for word in sys.orig_argv) else "server",
              was_paused, gc.get_freeze_count() > 20_000, file=file)

gc.freeze = record
"""


def test_each_process_pauses_its_collector_while_it_starts(
    start_engine: Callable[..., Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "frozen"
    (tmp_path / "sitecustomize.py").write_text(RECORDING.format(path=str(path)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    start_engine().wait_ready()
    assert sorted(path.read_text().splitlines()) == ["core True True", "server True True"]
