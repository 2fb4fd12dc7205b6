"""Which processes are ours, and that `down` ends all of them."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

from exo_inference.cli.control_plane.processes import find_all, find_replicas, find_servers
from exo_inference.state_dir import StateDir, process_start_ticks
from tests.cli.conftest import Exo
from tests.cli.control_plane.commands import status_of


def write_replica(state: StateDir, process: subprocess.Popen[bytes], **more: int) -> Path:
    directory = state.replicas_dir / "chat-0"
    state.create()
    directory.mkdir()
    ticks = process_start_ticks(process.pid)
    (directory / "record.json").write_text(json.dumps({"deployment": "d-1", "name": "chat-0"}))
    document = {"run": 2, "engine_pid": process.pid, "engine_start_ticks": ticks} | more
    (directory / "process.json").write_text(json.dumps(document))
    return directory


def test_engines_are_listed_with_deployment_replica_and_state(
    exo: Exo, state: StateDir, sleeper: subprocess.Popen[bytes]
) -> None:
    directory = write_replica(state, sleeper)
    engine = {"name": "chat-0", "pid": sleeper.pid, "state": "starting"}
    engine |= {"deployment": "d-1", "replica": "chat-0"}
    assert status_of(exo)["processes"][-1] == engine
    (directory / "ready").write_text("1")
    assert find_replicas(state)[0].state == "starting"
    (directory / "ready").write_text("2")
    assert find_replicas(state)[0].state == "ready"
    (directory / "draining").touch()
    assert find_replicas(state)[0].state == "draining"
    sleeper.kill()
    sleeper.wait()


def test_a_process_that_got_the_pid_of_an_engine_is_not_taken_for_it(
    exo: Exo, state: StateDir
) -> None:
    other = subprocess.Popen(["sleep", "60"])
    try:
        write_replica(state, other, engine_start_ticks=1)
        (state.run_dir / "supervisor.json").write_text(
            json.dumps({"name": "supervisor", "pid": other.pid, "start_ticks": 1})
        )
        assert find_replicas(state) == []
        assert not any(process.alive for process in find_servers(state))
        assert exo("ai", "down").out == "No control plane is running.\n"
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_down_ends_strays_that_no_record_names(
    exo: Exo, state: StateDir, sleeper: subprocess.Popen[bytes]
) -> None:
    state.create()
    assert [process.role for process in find_all(state)] == ["stray"]
    result = exo("ai", "down")
    assert (result.code, result.out) == (0, "The control plane is stopped.\n")
    assert sleeper.wait(timeout=5) == -signal.SIGKILL


def test_unreadable_records_are_no_processes(state: StateDir) -> None:
    state.create()
    (state.replicas_dir / "x").mkdir()
    for text in ("", "[]", '{"engine_pid": "7"}', "\x00"):
        (state.replicas_dir / "x" / "process.json").write_text(text)
        assert find_replicas(state) == []
    (state.run_dir / "controller.json").write_text("{")
    assert [process.state for process in find_servers(state)] == ["not running"] * 3


def test_a_replica_that_has_just_been_started_is_starting(
    exo: Exo, state: StateDir, sleeper: subprocess.Popen[bytes]
) -> None:
    """Its shim runs, and writes down its processes when it has started the engine."""
    directory = state.replicas_dir / "chat-0"
    state.create()
    directory.mkdir()
    (directory / "record.json").write_text(json.dumps({"deployment": "d-1", "name": "chat-0"}))
    launch, process = directory / "launch.json", directory / "process.json"
    starting = {"name": "chat-0", "pid": sleeper.pid, "state": "starting"}
    starting |= {"deployment": "d-1", "replica": "chat-0"}

    launch.write_text(json.dumps({"run": 1}))
    assert status_of(exo)["processes"][-1] == starting
    # Started again: what is written down is of the run before.
    launch.write_text(json.dumps({"run": 2}))
    process.write_text(json.dumps({"run": 1, "engine_pid": 1, "engine_start_ticks": 1}))
    assert status_of(exo)["processes"][-1] == starting
    # Of a run that was ready they were written down once, and deleted.
    (directory / "ready").write_text("2")
    process.unlink()
    assert status_of(exo)["processes"][-1]["details"] == "without a record"
    # Written down for this very run, and not among those that were.
    (directory / "ready").unlink()
    process.write_text(json.dumps({"run": 2, "engine_pid": 1, "engine_start_ticks": 1}))
    assert status_of(exo)["processes"][-1]["details"] == "without a record"
    sleeper.kill()
    sleeper.wait()


def test_a_replica_without_a_record_is_listed_and_alone_no_control_plane(
    exo: Exo, state: StateDir, sleeper: subprocess.Popen[bytes]
) -> None:
    status = exo("ai", "status", "-O", "json")
    found = json.loads(status.out)
    assert (status.code, found["state"]) == (4, "degraded")
    assert status.err == "Engines alone run. Run `exo dedicated-inference up`.\n"
    stray = found["processes"][-1]
    assert (stray["name"], stray["pid"]) == ("chat-0", sleeper.pid)
    sleeper.kill()
    sleeper.wait()
