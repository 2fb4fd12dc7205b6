"""The state directory of a control plane, and an engine that is none."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from exo_inference.cli.control_plane.processes import find_all
from exo_inference.state_dir import StateDir

from .commands import until


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StateDir]:
    """A state directory that the environment names; whatever still runs there at the end is killed."""
    state = StateDir(tmp_path / "state dir")
    monkeypatch.setenv("EXO_STATE_DIR", str(state.root))
    yield state
    left = find_all(state)
    for process in left:
        process.send(signal.SIGKILL, group=True)
    assert left == []


@pytest.fixture
def sleeper(state: StateDir) -> Iterator[subprocess.Popen[bytes]]:
    """A process with the mark of a replica of this state directory."""
    environment = os.environ | {"EXO_REPLICA_DIR": str(state.replicas_dir / "chat-0")}
    process = subprocess.Popen(["sleep", "60"], env=environment, start_new_session=True)
    try:
        # It runs another program already, but the kernel shows an empty environment for a moment.
        until(lambda: Path(f"/proc/{process.pid}/environ").read_bytes() != b"")
        yield process
    finally:
        process.kill()
        process.wait()
