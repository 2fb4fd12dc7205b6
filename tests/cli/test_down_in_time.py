"""`down --timeout`: engines are killed first, and everything is gone when it says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from exo_inference.cli.control_plane import down as module
from exo_inference.cli.control_plane.processes import LocalProcess, find_all
from exo_inference.state_dir import StateDir, process_start_ticks

from .conftest import Exo

STUBBORN = "import signal, time; signal.signal(15, 1); print('up', flush=True); time.sleep(300)"
NUM_REPLICAS = 12


class FakeTime:
    """Time that passes by sleeping alone, however long the rest takes on a busy machine."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        time.sleep(0.01)  # killed processes need a moment to end


def spawn(state: StateDir, marker: Path | None, *argv: str) -> int:
    environment = dict(os.environ)
    if marker is not None:
        environment["EXO_REPLICA_DIR"] = str(marker)
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", STUBBORN, *argv],
        env=environment,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    child.stdout.close()
    CHILDREN.append(child)
    return child.pid


CHILDREN: list[subprocess.Popen[bytes]] = []


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StateDir]:
    """A control plane whose processes all ignore SIGTERM, as on a machine that stands still."""
    state = StateDir(tmp_path / "state")
    state.create()
    monkeypatch.setenv("EXO_STATE_DIR", str(state.root))
    for name in ("supervisor", "controller", "gateway"):
        state.write_record(name, spawn(state, None))
    for number in range(NUM_REPLICAS):
        directory = state.replicas_dir / f"chat-{number}"
        directory.mkdir()
        (directory / "record.json").write_text(json.dumps({"deployment": "chat"}))
        engine, shim = spawn(state, directory), spawn(state, directory)
        process = {
            "run": 1,
            "engine_pid": engine,
            "engine_start_ticks": process_start_ticks(engine),
            "shim_pid": shim,
            "shim_start_ticks": process_start_ticks(shim),
        }
        (directory / "process.json").write_text(json.dumps(process))
    yield state
    left = find_all(state)
    for child in CHILDREN:
        child.kill()
        child.wait()
    CHILDREN.clear()
    assert left == []


def test_everything_is_gone_at_the_stated_time(
    exo: Exo, state: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[str] = []
    send = LocalProcess.send

    def note(self: LocalProcess, number: signal.Signals, *, group: bool = False) -> None:
        if number == signal.SIGKILL:
            killed.append(self.role)
        send(self, number, group=group)

    monkeypatch.setattr(LocalProcess, "send", note)
    fake_time = FakeTime()
    began = fake_time.now
    monkeypatch.setattr(module, "time", fake_time)
    result = exo("ai", "down", "--timeout", "5s")
    took = fake_time.now - began
    assert (result.code, result.out) == (0, "The control plane is stopped.\n")
    assert killed[:NUM_REPLICAS] == ["engine"] * NUM_REPLICAS
    assert killed.index("server") >= 2 * NUM_REPLICAS
    # Asking ends a second before the limit; each step waited for a limit of its own once: 25 seconds.
    assert 4.0 <= took < 5 + module.KILL_SECONDS


def test_next_to_no_time_is_enough(exo: Exo, state: StateDir) -> None:
    assert exo("ai", "down", "--timeout", "200ms").code == 0
    assert find_all(state) == []
