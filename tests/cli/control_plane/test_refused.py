"""What `up`, `status` and `down` refuse, and how they say so."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from exo_inference.state_dir import StateDir
from tests.cli.conftest import Exo
from tests.cli.control_plane.commands import up


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
    (tmp_path / "own").mkdir()
    (tmp_path / "own/run").write_text("")
    result = exo("ai", "up", "--state-dir", f"{tmp_path}/own")
    assert result.code == 2
    assert f"as state directory: File exists ({tmp_path}/own/run)" in result.err


def test_up_where_nothing_can_be_written(
    exo: Exo, state: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.create()

    def refuse(path: Path, **_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    result = exo("ai", "up")
    assert result.code == 2
    assert f"cannot use {state.root} as state directory: Read-only file system" in result.err
    assert "--state-dir" in result.err


@pytest.mark.slow
def test_up_with_a_start_that_fails_shows_why(exo: Exo, state: StateDir) -> None:
    state.create()
    state.database_file.write_bytes(b"this is no database, and never was one" * 100)
    result = up("--timeout", "20s")
    assert result.code in (1, 8)
    assert "controller" in result.err
    assert "Traceback" not in result.err
    exo("ai", "down")


@pytest.mark.parametrize("verb", ["up", "status", "down"])
def test_a_file_in_place_of_the_state_directory_is_said(
    exo: Exo, state: StateDir, verb: str
) -> None:
    state.root.write_text("")
    result = exo("ai", verb)
    assert result.code == 2
    assert f"the state directory {state.root} is not a directory" in result.err


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
