"""Exit codes: one place, documented, and true for interrupts and closed pipes as well."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from exo_inference import errors
from exo_inference.cli import main as main_module

from .conftest import Exo
from .fake_api import FakeApi

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "exit-codes.md"


def test_the_page_documents_exactly_the_codes_there_are() -> None:
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE.read_text(), re.M)}
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    raised = {kind.exit_code for kind in classes if issubclass(kind, errors.ExoError)}
    assert documented == {0, main_module.INTERRUPTED} | raised


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError("x"), 2),
        (errors.ConfigurationError("x"), 4),
        (errors.ConnectionFailed("x"), 1),
        (errors.NotFound("x", status_code=404), 1),
        (errors.AuthenticationFailed("x", status_code=403), 4),
        (errors.OperationFailed("x", reason="busy"), 1),
        (errors.NotReady("x", state="error"), 8),
        (KeyboardInterrupt(), 130),
        (OSError(28, "No space left on device", "/tmp/x"), 1),
    ],
)
def test_each_error_becomes_its_code(
    exo: Exo, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr("exo_inference.cli.version.version.callback", fail)
    result = exo("version")
    assert result.code == code
    assert "Traceback" not in result.err


def test_an_error_of_the_machine_names_the_file(exo: Exo, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise OSError(28, "No space left on device", "/tmp/x")

    monkeypatch.setattr("exo_inference.cli.version.version.callback", fail)
    assert exo("version").err == "error: /tmp/x: No space left on device\n"


def run(*argv: str, **kwargs: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "exo_inference.cli", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **kwargs,  # type: ignore[call-overload]
    )


def test_ctrl_c_ends_a_wait_with_130_and_without_a_traceback(api: FakeApi) -> None:
    api.add_deployment("d1", state="deploying")
    process = run("ai", "deployment", "scale", "d1", "1", "--wait")
    assert process.stderr is not None
    while b"deploying" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert out.startswith(b'Deployment "d1" scaled')


def test_a_reader_that_goes_away_causes_no_traceback(api: FakeApi) -> None:
    api.add_deployment("d1")
    line = {"time": "2026-01-01T00:00:00Z", "node": "n", "message": "x" * 1000}
    api.logs = [line] * 500
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "exo_inference.cli", "ai", "deployment", "logs", "d1"],
        stdout=writer,
        stderr=subprocess.PIPE,
    )
    os.close(writer)
    os.read(reader, 10)
    os.close(reader)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert err == b""


def test_a_full_disk_is_one_error_line(api: FakeApi) -> None:
    api.add_model("org/m1")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "exo_inference.cli", "ai", "model", "list"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
