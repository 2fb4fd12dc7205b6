"""Runs command lines in this process against the fake API, or against nothing at all."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from exo_inference.cli.main import main

from .fake_api import FakeApi, running_fake_api


@dataclass(frozen=True)
class Result:
    """How one command line ended."""

    code: int
    out: str
    err: str


class Exo(Protocol):
    """Runs one command line."""

    def __call__(self, *argv: str, stdin: str = "", tty: bool = False) -> Result: ...


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave nothing in the environment that configures a client, and no home either."""
    for name in list(os.environ):
        if name.startswith(("EXO", "HF_", "CLOUDSTACK_", "XDG_")) or name == "COLUMNS":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def exo(monkeypatch: pytest.MonkeyPatch) -> Exo:
    """A function that runs one command line; stdout and stderr are pipes unless `tty`."""

    def run(*argv: str, stdin: str = "", tty: bool = False) -> Result:
        out, err = (Terminal(), Terminal()) if tty else (io.StringIO(), io.StringIO())
        with monkeypatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setattr("sys.stdin", io.StringIO(stdin))
            code = main(argv)
        return Result(code, out.getvalue(), err.getvalue())

    return run


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    """A running fake API that the environment points to."""
    with running_fake_api() as fake:
        monkeypatch.setenv("EXOSCALE_API_ENDPOINT", fake.endpoint)
        monkeypatch.setenv("EXOSCALE_API_KEY", "EXOtest")
        monkeypatch.setenv("EXOSCALE_API_SECRET", "secret")
        monkeypatch.setenv("EXOSCALE_ZONE", "at-vie-2")
        yield fake
