"""Process records tell a living process from a reused pid; files are replaced whole."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from exo_inference.cli.control_plane.processes import find_all
from exo_inference.platforms.local import shim
from exo_inference.state_dir import (
    ProcessFailure,
    ProcessRecord,
    StateDir,
    default_state_dir,
    find_servers_in_proc,
    process_start_ticks,
    read_file,
    read_json,
    write_atomically,
)
from exo_inference.supervisor.processes import find_processes


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


@pytest.fixture
def link(state, tmp_path) -> Path:
    """Another name of the state directory."""
    link = tmp_path / "link"
    link.symlink_to(state.root, target_is_directory=True)
    return link


@contextlib.contextmanager
def idle(*words: str, **environment: str) -> Iterator[int]:
    """A process that does nothing, with these words in its command line."""
    code = "import sys, time; print(flush=True); time.sleep(60)"
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", code, *words],
        stdout=subprocess.PIPE,
        env=os.environ | environment,
    )
    try:
        process.stdout.readline()  # it runs, and so /proc shows its words
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def test_one_directory_has_one_name_however_it_is_spelt(state, link, tmp_path):
    assert StateDir(link).root == state.root
    assert StateDir(link / ".." / "state").root == state.root
    assert StateDir(tmp_path / "x" / ".." / "state").root == state.root


def test_a_loop_of_links_is_a_directory_that_is_not_there(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(OSError, match=r"symbolic links|File exists"):
        StateDir(loop).create()


@pytest.mark.parametrize("spelling", ["link", "x/../state", "state"])
def test_servers_of_another_spelling_are_found(state, link, tmp_path, spelling):
    (tmp_path / "x").mkdir()
    words = ("-m", "exo_inference.gateway", "--state-dir")
    with idle(*words, str(tmp_path / spelling)) as pid, idle(*words, str(tmp_path / "x")):
        assert [(r.name, r.pid) for r in find_servers_in_proc(state.root)] == [("gateway", pid)]
        argv = (sys.executable, "-S", "-c", "import sys, time; print(flush=True); time.sleep(60)")
        assert find_processes((*argv, *words, str(state.root))) == [pid]


@pytest.mark.parametrize("spelling", ["link", "state"])
def test_processes_of_a_replica_are_found_by_either_spelling(state, link, tmp_path, spelling):
    mark = {"EXO_REPLICA_DIR": str(tmp_path / spelling / "replicas" / "chat-0")}
    other = {"EXO_REPLICA_DIR": str(tmp_path / "other" / "replicas" / "chat-0")}
    (state.replicas_dir / "chat-0").mkdir()
    with idle(**mark) as pid, idle(**other):
        assert [(each.name, each.pid) for each in find_all(state)] == [("chat-0", pid)]
        assert shim.find_processes(state.replicas_dir / "chat-0") == [pid]


def test_only_a_regular_file_of_bounded_size_is_read(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"four")
    monkeypatch.setattr("exo_inference.state_dir.MAX_FILE_BYTES", 4)
    assert read_file(path) == b"four"
    path.write_bytes(b"fives")
    with pytest.raises(OSError, match="it is larger than"):
        read_file(path)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(OSError, match="it is not a regular file"):
            read_file(other)


def test_json_that_is_nested_too_deeply_is_a_value_error(tmp_path):
    path = tmp_path / "file"
    path.write_text("[" * 200_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        read_json(path)


def test_a_named_pipe_as_record_is_no_record(state):
    os.mkfifo(state.run_dir / "gateway.json")
    os.mkfifo(state.run_dir / "gateway.failure.json")
    assert state.read_record("gateway") is None
    assert state.read_failure("gateway") is None
