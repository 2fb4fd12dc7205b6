"""`up`, `down`, `status` and `serve`, with the real supervisor, controller and gateway."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from exo_inference.cli.control_plane.down import is_ours
from exo_inference.cli.control_plane.processes import find_all, find_replicas, find_servers
from exo_inference.state_dir import StateDir, process_start_ticks

from .conftest import Exo, Result


def up(*argv: str) -> Result:
    """Run `exo ai up` as a process of its own: it leaves a child behind, as it should."""
    done = subprocess.run(
        [sys.executable, "-m", "exo_inference.cli", "ai", "up", *argv],
        capture_output=True,
        text=True,
        timeout=60,
    )
    return Result(done.returncode, done.stdout, done.stderr)


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


def status_of(exo: Exo) -> dict[str, Any]:
    status: dict[str, Any] = json.loads(exo("ai", "status", "-O", "json").out)
    return status


def pids(status: dict[str, Any]) -> dict[str, int]:
    return {process["name"]: process["pid"] for process in status["processes"]}


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def until_gone(*gone: int) -> None:
    deadline = time.monotonic() + 10
    while any(process_start_ticks(pid) is not None for pid in gone):
        assert time.monotonic() < deadline, gone
        time.sleep(0.01)


def is_refused(url: str) -> bool:
    address = urlsplit(url)
    try:
        socket.create_connection((address.hostname, address.port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        pass
    return False


def test_up_status_up_down(exo: Exo, state: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    first = up()
    assert first.code == 0, first.err
    assert first.out.startswith("The control plane is running.\n| State")
    assert "exo dedicated-inference chat demo" in first.out
    assert "Starting the control plane...\n" in first.err

    status = status_of(exo)
    assert status["state"] == "running"
    assert status["endpoint"].endswith("/v2")
    assert status["zone"] == "ch-dk-2"
    assert status["gateway"].startswith("http://127.0.0.1:")
    assert status["config_file"] == str(state.config_file)
    assert status["state_dir"] == str(state.root)
    assert [p["name"] for p in status["processes"]] == ["supervisor", "controller", "gateway"]
    assert {p["state"] for p in status["processes"]} == {"running"}

    config = state.config_file.read_text()
    secret = config.split('secret = "')[1].split('"')[0]
    assert status["api_key"] in config
    assert stat.S_IMODE(state.config_file.stat().st_mode) == 0o600
    assert secret not in json.dumps(status) + first.out + first.err
    assert exo("ai", "model", "list", "-O", "json").out == "[]\n"

    again = up()
    assert again.code == 0
    assert again.out.startswith("The control plane is already running.\n")
    assert again.err == ""
    assert pids(status_of(exo)) == pids(status)
    other_port = exo("ai", "up", "--port", "1")
    assert other_port.code == 2
    assert "--port is 1, but the control plane is running with" in other_port.err

    down = exo("ai", "down")
    assert (down.code, down.out) == (0, "The control plane is stopped.\n")
    assert find_all(state) == []
    assert list(state.run_dir.iterdir()) == []
    assert not list(state.root.glob(".*"))
    gone = exo("ai", "deployment", "show", "chat")
    assert gone.code == 4  # as where none was ever started
    assert gone.err == (
        f"error: no control plane is running in {state.root}\nRun `exo dedicated-inference up`.\n"
    )
    stopped = exo("ai", "status", "-O", "json")
    assert stopped.code == 3
    assert json.loads(stopped.out)["endpoint"] == status["endpoint"]
    for url in (status["endpoint"], status["gateway"]):
        port = int(url.split(":")[2].split("/")[0])
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
    monkeypatch.delenv("EXO_STATE_DIR")
    by_file = exo("-C", str(state.config_file), "ai", "status", "-O", "json")
    assert (by_file.code, json.loads(by_file.out)["endpoint"]) == (3, status["endpoint"])
    named = exo("ai", "model", "list", "--state-dir", str(state.root))
    assert named.err.endswith(f"Run `exo dedicated-inference up --state-dir '{state.root}'`.\n")


def test_simulated_gpus_are_kept_shown_and_not_changed_while_it_runs(
    exo: Exo, state: StateDir
) -> None:
    first = up("--simulate-gpus", "gpua5000=4,H100=8", "--simulate-speedup", "20")
    assert first.code == 0, first.err
    status = status_of(exo)
    assert status["simulated_gpus"] == "gpua5000=4,h100=8, 20 times faster"
    assert "Simulated GPUs" in exo("ai", "status").out
    listed = exo("ai", "deployment", "instance-type", "-O", "json")
    types = {each["family"]: each["description"] for each in json.loads(listed.out)}
    assert types["gpua5000"].endswith("(simulated)")
    assert "(simulated)" not in types["cpu"]
    assert listed.err == "note: simulated, not real GPUs: gpua5000, h100\n"

    assert up().code == 0
    for value in ("gpua5000=5", "none"):
        changed = exo("ai", "up", "--simulate-gpus", value)
        assert changed.code == 2
        assert f"--simulate-gpus is {value}, but the control plane is running" in changed.err
    assert exo("ai", "up", "--simulate-speedup", "2").code == 2

    assert exo("ai", "down").code == 0
    assert up("--simulate-gpus", "none").code == 0
    assert "simulated_gpus" not in status_of(exo)
    assert exo("ai", "down").code == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--simulate-gpus", "gpua5000"), "'gpua5000', expected FAMILY=COUNT"),
        (("--simulate-gpus", "gpua9000=2"), "no GPU 'gpua9000'"),
        (("--simulate-gpus", "gpua5000=0"), "expected a number from 1 to 64"),
        (("--simulate-speedup", "0"), "not in the range"),
    ],
    ids=["syntax", "family", "count", "speed-up"],
)
def test_simulated_gpus_that_make_no_sense_are_refused(
    exo: Exo, state: StateDir, arguments: tuple[str, ...], complaint: str
) -> None:
    refused = exo("ai", "up", *arguments)
    assert refused.code == 2
    assert complaint in refused.err
    assert not state.root.exists()


def test_down_ends_what_a_killed_supervisor_left(exo: Exo, state: StateDir) -> None:
    assert up("-Q").code == 0
    running = pids(status_of(exo))
    os.kill(running["supervisor"], signal.SIGKILL)
    until_gone(running["supervisor"])
    degraded = status_of(exo)
    assert degraded["state"] == "degraded"
    assert pids(degraded)["controller"] == running["controller"]
    for name in ("controller", "gateway"):
        (state.run_dir / f"{name}.json").unlink()
    down = exo("ai", "down")
    assert (down.code, down.out) == (0, "The control plane is stopped.\n")
    until_gone(*running.values())
    assert list(state.run_dir.iterdir()) == []


@pytest.mark.slow
def test_up_adopts_what_a_killed_supervisor_left(exo: Exo, state: StateDir) -> None:
    assert up("-Q").code == 0
    before = pids(status_of(exo))
    os.kill(before["supervisor"], signal.SIGKILL)
    until_gone(before["supervisor"])
    assert up().code == 0
    after = pids(status_of(exo))
    assert (after["controller"], after["gateway"]) == (before["controller"], before["gateway"])
    assert after["supervisor"] != before["supervisor"]
    assert exo("ai", "down").code == 0


def test_serve_runs_in_the_foreground_until_a_signal(exo: Exo, state: StateDir) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "exo_inference.cli", "ai", "serve", "-z", "at-vie-2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stderr is not None
    log = b""
    while b"listening on port" not in log:
        line = process.stderr.readline()
        assert line, log
        log += line
    status = status_of(exo)
    assert status["zone"] == "at-vie-2"
    assert pids(status)["supervisor"] == process.pid
    second = exo("ai", "serve")
    assert second.code == 1
    assert "already running" in second.err
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert out.startswith(b"Endpoint http://127.0.0.1:")
    assert find_all(state) == []


@pytest.mark.parametrize("flag", ["--port", "--gateway-port"])
@pytest.mark.parametrize("verb", ["up", "serve"])
def test_a_port_that_is_taken_is_refused_with_the_flag(
    exo: Exo, state: StateDir, verb: str, flag: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = exo("ai", verb, flag, str(port))
    assert (result.code, result.out) == (2, "")
    assert f"cannot listen on 127.0.0.1:{port}: the port is held by" in result.err
    assert flag in result.err
    assert not state.root.exists()


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (("--zone", "mars-1"), "unknown zone 'mars-1' for --zone"),
        (("--port", "70000"), "70000 is not in the range"),
        (("--host", "192.0.2.1"), "cannot listen on '192.0.2.1'"),
        (("--timeout", "never"), "'never' is not a positive duration"),
    ],
)
def test_up_refuses_bad_flags(exo: Exo, state: StateDir, argv: tuple[str, str], found: str) -> None:
    result = exo("ai", "up", *argv)
    assert result.code == 2
    assert found in result.err
    assert not state.root.exists()


def test_up_without_the_server_packages_names_the_pip_command(
    exo: Exo, state: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name, *rest: None if name in ("starlette", "uvicorn") else real(name, *rest),
    )
    result = exo("ai", "up")
    assert result.code == 1
    assert "not installed: starlette, uvicorn" in result.err
    assert "pip install 'exo-inference[server,engine]'" in result.err
    assert not state.root.exists()


def test_up_in_a_directory_that_cannot_be_used(exo: Exo, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = exo("ai", "up", "--state-dir", f"{tmp_path}/file/state")
    assert result.code == 2
    assert "as state directory: Not a directory" in result.err


@pytest.mark.slow
def test_up_with_a_start_that_fails_shows_why(exo: Exo, state: StateDir) -> None:
    state.create()
    state.database_file.write_bytes(b"this is no database, and never was one" * 100)
    result = up("--timeout", "20s")
    assert result.code in (1, 8)
    assert "controller" in result.err
    assert "Traceback" not in result.err
    exo("ai", "down")


def test_status_and_down_where_nothing_ever_ran(exo: Exo, state: StateDir) -> None:
    status = exo("ai", "status")
    assert status.code == 3
    assert "| State           | stopped" in status.out
    assert "Run `exo dedicated-inference up`." in status.err
    down = exo("ai", "down", "--purge", "-f")
    assert (down.code, down.out) == (0, "No control plane is running.\n")
    assert not state.root.exists()


def test_purge_asks_and_removes_only_what_is_ours(exo: Exo, state: StateDir) -> None:
    state.create()
    (state.root / "settings.json").write_text("{}")
    (state.root / "controller.db-wal").write_text("")
    (state.root / "holiday.jpg").write_text("mine")
    assert exo("ai", "down", "--purge", stdin="n\n").code == 0
    assert (state.root / "settings.json").exists()
    result = exo("ai", "down", "--purge", stdin="y\n")
    assert result.code == 0
    assert "holds other files: holiday.jpg" in result.err
    assert [path.name for path in state.root.iterdir()] == ["holiday.jpg"]
    (state.root / "holiday.jpg").unlink()
    assert exo("ai", "down", "--purge", "--force").out.endswith("is deleted.\n")
    assert not state.root.exists()


def test_purge_does_not_follow_links(exo: Exo, state: StateDir, tmp_path: Path) -> None:
    state.create()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("mine")
    (state.models_dir / "uid").symlink_to(tmp_path / "precious")
    state.cache_dir.symlink_to(tmp_path / "precious")
    assert exo("ai", "down", "--purge", "-f").code == 0
    assert (tmp_path / "precious" / "file").read_text() == "mine"
    assert not state.root.exists()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("exoscale.toml", True),
        ("controller.db", True),
        ("controller.db-shm", True),
        (".routes.json.x1y2", True),
        ("models", True),
        ("usage.json", True),
        ("controller.db.backup", False),
        (".bashrc", False),
        ("notes.txt", False),
    ],
)
def test_what_is_ours(state: StateDir, name: str, expected: bool) -> None:
    assert is_ours(state, state.root / name) is expected


@pytest.fixture
def sleeper(state: StateDir) -> Iterator[subprocess.Popen[bytes]]:
    """A process with the mark of a replica of this state directory."""
    environment = os.environ | {"EXO_REPLICA_DIR": str(state.replicas_dir / "chat-0")}
    process = subprocess.Popen(["sleep", "60"], env=environment, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


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


def test_broken_settings_are_named(exo: Exo, state: StateDir) -> None:
    state.create()
    state.settings_file.write_text('{"port": "x"}')
    result = exo("ai", "status")
    assert result.code == 2
    assert str(state.settings_file) in result.err


def test_deleted_records_hide_nothing(exo: Exo, state: StateDir) -> None:
    assert up("-Q").code == 0
    before = status_of(exo)
    shutil.rmtree(state.run_dir)
    assert status_of(exo) == before
    again = up()
    assert again.out.startswith("The control plane is already running.\n")
    assert status_of(exo) == before
    until(lambda: all(process.alive for process in find_servers(state)))
    until(lambda: (state.run_dir / "supervisor.json").exists())
    assert exo("ai", "down").out == "The control plane is stopped.\n"


def test_deleted_settings_are_restored_and_credentials_made_anew(exo: Exo, state: StateDir) -> None:
    assert up("-Q", "-z", "at-vie-2").code == 0
    before = status_of(exo)
    saved = state.settings_file.read_text()
    state.settings_file.unlink()
    state.config_file.unlink()
    degraded = exo("ai", "status", "-O", "json")
    found = json.loads(degraded.out)
    assert (found["state"], found["endpoint"], found["zone"], found["gateway"]) == (
        "degraded",
        before["endpoint"],
        "at-vie-2",
        before["gateway"],
    )
    assert [problem.split()[0] for problem in found["problems"]] == [
        "settings.json",
        "exoscale.toml",
    ]
    assert "warning: exoscale.toml was deleted, with the API's secret" in degraded.err
    again = up()
    assert again.code == 0
    assert "its API key and secret cannot be restored" in again.err
    assert state.settings_file.read_text() == saved
    after = status_of(exo)
    assert after["state"] == "running"
    assert after["api_key"] != before["api_key"]
    assert pids(after) == pids(before)
    assert exo("ai", "model", "list", "-O", "json").out == "[]\n"
    assert exo("ai", "down").code == 0


def test_a_deleted_state_directory_is_said_and_its_processes_are_found(
    exo: Exo, state: StateDir
) -> None:
    assert up("-Q").code == 0
    before = status_of(exo)
    shutil.rmtree(state.root)
    found = exo("ai", "status", "-O", "json")
    assert found.code == 0
    assert json.loads(found.out)["state"] == "degraded"
    assert pids(json.loads(found.out)) == pids(before)
    assert "its state directory was deleted while it runs" in found.err
    again = up()
    assert again.code == 1
    assert "still runs, but its state directory was deleted" in again.err
    assert "exo dedicated-inference down" in again.err
    assert exo("ai", "down").out == "The control plane is stopped.\n"
    until_gone(*pids(before).values())


def test_a_lost_secret_key_is_one_clear_error(exo: Exo, state: StateDir) -> None:
    assert up("-Q").code == 0
    state.secret_key_file.unlink()
    assert "warning: secret.key was deleted" in exo("ai", "status").err
    assert exo("ai", "down").code == 0
    result = up()
    assert result.code == 1
    message = result.err.splitlines()[-2]
    assert message.startswith(f"error: the control plane cannot start: {state.secret_key_file} is")
    assert "API keys and the Hub tokens" in message
    assert "down --purge" in message
    assert " ERROR " not in result.err


def test_logs_are_private_under_any_umask(exo: Exo, state: StateDir) -> None:
    old = os.umask(0)
    try:
        assert up("-Q").code == 0
    finally:
        os.umask(old)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in state.logs_dir.iterdir()}
    assert modes == dict.fromkeys(("supervisor.log", "controller.log", "gateway.log"), 0o600)
    assert exo("ai", "down").code == 0


def test_a_replica_without_a_record_is_listed(
    exo: Exo, state: StateDir, sleeper: subprocess.Popen[bytes]
) -> None:
    status = exo("ai", "status", "-O", "json")
    assert status.code == 0
    stray = json.loads(status.out)["processes"][-1]
    assert (stray["name"], stray["pid"]) == ("chat-0", sleeper.pid)
    sleeper.kill()
    sleeper.wait()


@pytest.mark.parametrize("verb", ["up", "status", "down"])
def test_a_file_in_place_of_the_state_directory_is_said(
    exo: Exo, state: StateDir, verb: str
) -> None:
    state.root.write_text("")
    result = exo("ai", verb)
    assert result.code == 2
    assert f"the state directory {state.root} is not a directory" in result.err


def test_a_dead_controller_beside_a_living_gateway_is_said(
    exo: Exo, state: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exo_inference.sdk._retries.MAX_ATTEMPTS", 1)
    assert up("-Q").code == 0
    status = status_of(exo)
    running = pids(status)
    for name in ("supervisor", "controller"):
        os.kill(running[name], signal.SIGKILL)
        until_gone(running[name])
    # The last thread of a killed process closes its sockets a moment after its first one is gone.
    until(lambda: is_refused(status["endpoint"]))
    result = exo("ai", "model", "list", "-z", "ch-dk-2")
    assert result.code == 1
    assert f"the controller of {state.root} does not answer" in result.err
    assert "`exo dedicated-inference up`" in result.err
    assert exo("ai", "down").code == 0


def test_no_simulated_gpus_have_to_be_said_in_words(exo: Exo) -> None:
    result = exo("ai", "up", "--simulate-gpus", "")
    assert result.code == 2
    assert "write --simulate-gpus none" in result.err


@pytest.mark.parametrize("verb", ["status", "up", "down"])
def test_a_file_that_is_not_of_a_control_plane_is_refused(
    exo: Exo, tmp_path: Path, verb: str
) -> None:
    file = tmp_path / "exoscale.toml"
    file.write_text("")
    result = exo("ai", verb, "-C", str(file))
    assert (result.code, result.out) == (2, "")
    assert f"-C {file} is not the file of a control plane of this machine" in result.err


def test_paused_is_said_and_ends_with_the_next_up(exo: Exo, state: StateDir) -> None:
    first = up("--paused")
    assert first.code == 0, first
    assert "no replica is started" in first.err
    assert state.paused_file.exists()
    again = up()
    assert again.code == 0, again
    assert "already running" in again.out
    assert not state.paused_file.exists()
    assert up("--paused").code == 0
    assert exo("ai", "down", "--timeout", "20s").code == 0
    assert not state.paused_file.exists()
