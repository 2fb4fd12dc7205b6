"""`up`, `status`, `serve` and `down`, with the real supervisor, controller and gateway."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from exo_inference.cli.control_plane.launch import starts_wait
from exo_inference.cli.control_plane.processes import find_all
from exo_inference.state_dir import StateDir, is_stopped
from tests.cli.conftest import Exo
from tests.cli.control_plane.commands import pids, status_of, until, until_gone, up


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
    assert stopped.code == 4
    assert json.loads(stopped.out)["endpoint"] == status["endpoint"]
    for url in (status["endpoint"], status["gateway"]):
        port = int(url.split(":")[2].split("/")[0])
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
    monkeypatch.delenv("EXO_STATE_DIR")
    by_file = exo("-C", str(state.config_file), "ai", "status", "-O", "json")
    assert (by_file.code, json.loads(by_file.out)["endpoint"]) == (4, status["endpoint"])
    named = exo("ai", "model", "list", "--state-dir", str(state.root))
    assert named.err.endswith(f"Run `exo dedicated-inference up --state-dir '{state.root}'`.\n")


def test_up_does_not_start_what_a_down_would_end(state: StateDir) -> None:
    state.create()
    with starts_wait(state), starts_wait(state):  # two of them do not wait for each other
        refused = up("--timeout", "0.2s")
    assert refused.code == 8
    assert "Waiting for `down` to end...\n" in refused.err
    assert (
        f"`down` is still at work in {state.root} after 0.2 s; nothing was started" in refused.err
    )
    assert find_all(state) == []


@pytest.mark.slow
@pytest.mark.parametrize("purge", [(), ("--purge", "--force")], ids=["kept", "purged"])
def test_up_beside_a_down_that_is_at_work_starts_it_again(
    exo: Exo, state: StateDir, purge: tuple[str, ...]
) -> None:
    assert up().code == 0
    before = pids(status_of(exo))
    down = subprocess.Popen(
        [sys.executable, "-m", "exo_inference.cli", "ai", "down", *purge],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert down.stderr is not None
    assert down.stderr.readline() == "Stopping the control plane...\n"
    down.send_signal(signal.SIGSTOP)  # or it may have ended before `up` looks
    again = subprocess.Popen(
        [sys.executable, "-m", "exo_inference.cli", "ai", "up"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert again.stderr is not None
    assert again.stderr.readline() == "Waiting for `down` to end...\n"
    down.send_signal(signal.SIGCONT)
    out, err = down.communicate()
    said = again.communicate()[1]
    assert (down.returncode, again.returncode) == (0, 0), (out, err, said)
    assert set(pids(status_of(exo)).values()).isdisjoint(before.values())
    assert exo("ai", "down").code == 0


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_another_spelling_of_the_directory_means_the_same_control_plane(
    exo: Exo, state: StateDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert up("-Q").code == 0
    before = pids(status_of(exo))
    link = tmp_path / "link"
    link.symlink_to(state.root, target_is_directory=True)
    monkeypatch.setenv("EXO_STATE_DIR", str(link))
    assert up().out.startswith("The control plane is already running.\n")
    assert pids(status_of(exo)) == before
    assert exo("ai", "down").code == 0
    until_gone(*before.values())


@pytest.mark.slow
def test_a_supervisor_that_a_signal_has_stopped_is_said_to_be(exo: Exo, state: StateDir) -> None:
    """It starts nothing again, so `up` must not wait for that, and `down` not for it."""
    assert up("-Q").code == 0
    before = pids(status_of(exo))
    pid = before["supervisor"]
    os.kill(pid, signal.SIGSTOP)
    until(lambda: is_stopped(pid))
    os.kill(before["gateway"], signal.SIGKILL)
    until_gone(before["gateway"])
    status = exo("ai", "status")
    assert f"stopped by a signal, pid {pid}, `kill -CONT {pid}` lets it go on" in status.out
    assert status_of(exo)["state"] == "degraded"
    result = up("--timeout", "30s")
    assert result.code == 1  # and not 8, as after a wait
    assert f"the supervisor (pid {pid}) was stopped by a signal" in result.err
    assert f"kill -CONT {pid}" in result.err
    assert exo("ai", "down", "--timeout", "90s").code == 0
    # It ended by itself: one that was waited for would have been killed.
    assert "stopped (pid" in (state.logs_dir / "supervisor.log").read_text().splitlines()[-1]


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


@pytest.mark.slow
def test_logs_are_private_under_any_umask(exo: Exo, state: StateDir) -> None:
    old = os.umask(0)
    try:
        assert up("-Q").code == 0
    finally:
        os.umask(old)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in state.logs_dir.iterdir()}
    assert modes == dict.fromkeys(("supervisor.log", "controller.log", "gateway.log"), 0o600)
    assert exo("ai", "down").code == 0


def test_the_file_of_the_environment_means_its_control_plane(
    exo: Exo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = StateDir(tmp_path / "other")
    state.create()
    state.settings_file.write_text("{}")
    monkeypatch.setenv("EXOSCALE_CONFIG", str(state.config_file))
    assert status_of(exo)["state_dir"] == str(state.root)
    monkeypatch.setenv("EXO_STATE_DIR", str(tmp_path / "named"))
    assert status_of(exo)["state_dir"] == str(tmp_path / "named")
    monkeypatch.delenv("EXO_STATE_DIR")
    state.settings_file.unlink()  # that of a cloud, or of a cluster
    assert status_of(exo)["state_dir"] != str(state.root)


@pytest.mark.slow
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


def test_status_and_down_where_nothing_ever_ran(exo: Exo, state: StateDir) -> None:
    status = exo("ai", "status")
    assert status.code == 4
    assert "| State           | stopped" in status.out
    assert "Run `exo dedicated-inference up`." in status.err
    down = exo("ai", "down", "--purge", "-f")
    assert (down.code, down.out) == (0, "No control plane is running.\n")
    assert not state.root.exists()
