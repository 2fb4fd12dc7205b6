"""What `status` says of a replica in the moment in which its shim runs and nothing is written down of it yet."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from exo_inference.cli.control_plane.processes import LocalProcess, find_replicas, find_strays
from exo_inference.state_dir import StateDir

from .conftest import Stack, clean_environment

pytestmark = pytest.mark.timeout(300)

NAME = "young"


@contextmanager
def caught(state: StateDir) -> Iterator[LocalProcess | None]:
    """Stop the shim of the only replica of `NAME` before it wrote down its processes; None if it was quicker."""
    known = find_replicas(state)
    while True:
        recorded = find_replicas(state)
        new = [each for each in find_strays(state, recorded) if each.role == "stray"]
        if new:
            break
        if len(recorded) > len(known):
            yield None
            return
    shim = new[0]
    assert shim.pid is not None
    os.kill(shim.pid, signal.SIGSTOP)
    try:
        # SIGSTOP returns before the process has stopped.
        while shim.alive and _state_of(shim.pid) != "T":
            time.sleep(0.001)
        is_early = not (state.replicas_dir / shim.name / "process.json").exists()
        yield shim if is_early and shim.alive else None
    finally:
        os.kill(shim.pid, signal.SIGCONT)


def _state_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def test_a_replica_that_has_just_been_started_is_called_starting(stack: Stack) -> None:
    state = StateDir(stack.state_dir)
    stack.exo("model", "create", "exo/tiny-chat", "--wait", check=False)  # another test may have
    create = [
        *(sys.executable, "-m", "exo_inference.cli", "ai", "deployment", "create", NAME),
        *("--model-name", "exo/tiny-chat", "--gpu-type", "cpu", "--gpu-count", "1"),
    ]
    is_seen = False
    while not is_seen:
        creating = subprocess.Popen(create, env=clean_environment(stack.state_dir))
        try:
            with caught(state) as shim:
                if shim is not None:
                    is_seen = True
                    found = json.loads(stack.exo("status", "-O", "json").stdout)
                    replicas = {each["name"]: each for each in found["processes"]}
                    assert replicas[shim.name]["state"] == "starting", replicas
                    assert "details" not in replicas[shim.name], replicas
                    assert found["state"] == "running"
        finally:
            assert creating.wait() == 0
            stack.exo("deployment", "delete", NAME, "-f")
