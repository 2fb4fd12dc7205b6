"""Process records tell a living process from a reused pid; files are replaced whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from exo_inference.state_dir import (
    ProcessFailure,
    ProcessRecord,
    StateDir,
    default_state_dir,
    process_start_ticks,
    write_atomically,
)


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    state = StateDir(tmp_path / "state")
    state.create()
    return state


def test_tree_is_readable_by_its_owner_alone(state):
    assert {p.name for p in state.root.iterdir()} == {"run", "models", "replicas", "logs"}
    assert all(p.stat().st_mode & 0o777 == 0o700 for p in [state.root, *state.root.iterdir()])
    state.create()  # again: nothing happens


def test_record_of_a_running_process_is_alive(state):
    written = state.write_record("gateway", os.getpid())
    assert written.alive
    assert state.read_record("gateway") == written
    state.remove_record("gateway")
    state.remove_record("gateway")
    assert state.read_record("gateway") is None


def test_reused_pid_is_not_the_recorded_process():
    ticks = process_start_ticks(os.getpid())
    assert ticks is not None
    assert not ProcessRecord("gateway", os.getpid(), ticks - 1).alive


def test_zombie_and_gone_processes_are_not_alive():
    child = subprocess.Popen([sys.executable, "-S", "-c", "pass"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, not yet reaped
    assert process_start_ticks(child.pid) is None
    child.wait()
    assert process_start_ticks(child.pid) is None


def test_command_name_with_blanks_and_parentheses_is_read_past(tmp_path):
    program = tmp_path / "a) R (b"
    program.symlink_to("/bin/sleep")
    child = subprocess.Popen([program, "60"])
    try:
        ticks = process_start_ticks(child.pid)
        assert ticks is not None
        assert ticks > 1
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"name": "x"}'])
def test_damaged_record_is_no_record(state, content):
    (state.run_dir / "gateway.json").write_text(content)
    assert state.read_record("gateway") is None


def test_write_replaces_whole_and_leaves_no_temporary_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    write_atomically(path, "new", mode=0o640)
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_default_directory_follows_xdg():
    assert default_state_dir({"XDG_STATE_HOME": "/srv/state"}) == Path("/srv/state/exo-inference")
    assert default_state_dir({"HOME": "/home/a"}) == Path("/home/a/.local/state/exo-inference")


def test_failure_is_kept_until_the_process_stays_up(state):
    failure = ProcessFailure("gateway", attempts=3, exit_code=78, message="the port is taken")
    state.write_failure(failure)
    assert state.read_failure("gateway") == failure
    assert state.read_failure("controller") is None
    state.remove_failure("gateway")
    state.remove_failure("gateway")
    assert state.read_failure("gateway") is None
