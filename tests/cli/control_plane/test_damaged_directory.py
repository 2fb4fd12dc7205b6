"""A state directory of which something is damaged, deleted or not ours."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from exo_inference.cli.control_plane.down import is_ours
from exo_inference.cli.control_plane.processes import LocalProcess, find_servers
from exo_inference.cli.control_plane.recovery import restore_files
from exo_inference.errors import ExoError
from exo_inference.state_dir import StateDir
from tests.cli.conftest import Exo
from tests.cli.control_plane.commands import is_refused, pids, status_of, until, until_gone, up


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
        ("settings.copy.json", True),
        ("settings.json.damaged", True),
        ("controller.db.backup", False),
        (".bashrc", False),
        ("notes.txt", False),
    ],
)
def test_what_is_ours(state: StateDir, name: str, expected: bool) -> None:
    assert is_ours(state, state.root / name) is expected


def test_broken_settings_are_named(exo: Exo, state: StateDir) -> None:
    state.create()
    state.settings_file.write_text('{"port": "x"}')
    result = exo("ai", "status")
    assert result.code == 2
    assert str(state.settings_file) in result.err


@pytest.mark.slow
def test_damaged_settings_are_restored_from_their_copy_or_from_what_runs(
    exo: Exo, state: StateDir
) -> None:
    assert up("-Q", "-z", "at-vie-2").code == 0
    before, saved = status_of(exo), state.settings_file.read_text()
    for damaged in ([state.settings_file], [state.settings_file, state.settings_copy]):
        for file in damaged:
            file.write_text("{")
        degraded = exo("ai", "status", "-O", "json")
        found = json.loads(degraded.out)
        assert {**found, "problems": []} == {**before, "state": "degraded", "problems": []}
        assert "settings.json is damaged; `up` restores it" in degraded.err
        again = up()
        assert again.code == 0
        assert "restored it from" in again.err
        assert (state.settings_file.read_text(), state.settings_copy.read_text()) == (saved, saved)
        assert status_of(exo) == before
    state.settings_file.write_text("{")
    assert exo("ai", "down").code == 0
    assert up("-Q").code == 0
    assert state.settings_file.read_text() == saved
    assert exo("ai", "down").code == 0


_ACCOUNT = """[[accounts]]
name = "local"
key = "EXO1"
endpoint = "http://127.0.0.1:9/v2"
defaultZone = "ch-dk-2"
"""
DAMAGES: dict[str, Callable[[Path], object]] = {
    "no TOML": lambda path: path.write_text("[[accounts"),
    "no text": lambda path: path.write_bytes(b"\xff\xfe"),
    "empty": lambda path: path.write_text(""),
    "no secret": lambda path: path.write_text(_ACCOUNT),
    "a key that is a number": lambda path: path.write_text(
        _ACCOUNT.replace('"EXO1"', "1") + 'secret = "s"\n'
    ),
    "a directory": lambda path: path.mkdir(),
    "a named pipe": lambda path: os.mkfifo(path),
}
VERBS = [
    ("status",), ("up",), ("serve",), ("deployment", "list"), ("deployment", "show", "x"),
    ("chat", "x", "hi"), ("metrics",), ("usage",), ("apply", "-f", "-"), ("diff", "-f", "-"),
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_configuration_file_has_one_exit_code(
    exo: Exo, state: StateDir, damage: str
) -> None:
    state.root.mkdir()
    DAMAGES[damage](state.config_file)
    for verb in VERBS:
        result = exo("ai", *verb, "-O", "json")
        assert result.code == 2, (verb, result)
        error = json.loads(result.err.splitlines()[-1])["error"]
        assert error["type"] == "UsageError", (verb, error)
        assert str(state.config_file) in error["message"], verb
        assert error["hint"], verb
    assert exo("ai", "down").code == 0


def test_a_configuration_file_without_accounts_is_said_to_have_none(
    exo: Exo, state: StateDir
) -> None:
    state.root.mkdir()
    state.config_file.write_text("")
    told = exo("ai", "deployment", "list").err
    assert told.startswith(f"error: {state.config_file} has no account\n")


def test_a_configuration_file_that_is_damaged_under_a_running_control_plane_is_said(
    exo: Exo, state: StateDir
) -> None:
    assert up("-Q").code == 0
    sound = state.config_file.read_text()
    state.config_file.write_text("[[accounts")
    status = exo("ai", "status", "-O", "json")
    found = json.loads(status.out)
    assert (status.code, found["state"]) == (0, "degraded")
    (problem,) = found["problems"]
    assert problem.startswith("exoscale.toml is damaged")
    again = up()
    assert again.code == 2
    assert str(state.config_file) in again.err
    assert state.config_file.read_text() == "[[accounts"
    state.config_file.write_text(sound)
    assert exo("ai", "status").code == 0
    assert exo("ai", "deployment", "list").code == 0
    assert exo("ai", "down").code == 0


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("exoscale.toml", "cannot read credentials from "),
        ("settings.json", "cannot read the settings of this control plane from "),
    ],
)
def test_engines_that_run_alone_are_listed_beside_a_damaged_file(
    exo: Exo, state: StateDir, sleeper: subprocess.Popen[bytes], name: str, reason: str
) -> None:
    state.create()
    damaged = state.root / name
    damaged.write_text("[[accounts")
    status = exo("ai", "status", "-O", "json")
    assert status.code == 4, status
    found = json.loads(status.out)
    assert (found["state"], found["processes"][-1]["pid"]) == ("degraded", sleeper.pid)
    (problem,) = found["problems"]
    assert problem.startswith(f"{name} is damaged: {reason}")
    assert status.err.splitlines() == [
        f"warning: {problem}",
        "Engines alone run. Run `exo dedicated-inference up`.",
    ]
    started = up()
    assert started.code == 2
    assert str(damaged) in started.err
    assert damaged.read_text() == "[[accounts"
    sleeper.kill()
    sleeper.wait()


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_deleted_state_directory_is_said_and_its_processes_are_found(
    exo: Exo, state: StateDir
) -> None:
    assert up("-Q").code == 0
    before = status_of(exo)
    while state.root.exists():  # what runs may write into it meanwhile
        shutil.rmtree(state.root, ignore_errors=True)
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


@pytest.mark.slow
def test_a_database_that_is_gone_is_said_before_another_is_begun(exo: Exo, state: StateDir) -> None:
    assert up("-Q").code == 0
    assert exo("ai", "down").code == 0
    state.database_file.unlink()
    result = up()
    assert result.code == 0, result
    assert f"warning: {state.database_file} is missing, though there was one" in result.err
    assert exo("ai", "down").code == 0


@pytest.mark.slow
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


@pytest.mark.parametrize("damaged", [True, False], ids=["damaged", "deleted"])
def test_settings_that_cannot_be_found_out_are_told(
    damaged: bool, state: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.create()
    state.config_file.write_text("")
    if damaged:
        state.settings_file.write_text("{")
    monkeypatch.chdir(state.root)
    here = LocalProcess("controller", os.getpid(), None, "running", "server")
    what = "damaged" if damaged else "deleted"
    with pytest.raises(ExoError, match=rf"settings.json was {what} while .* cannot be found out"):
        restore_files(state, None, [here])
