"""A process of the engine ends with all that it said, and without what an interpreter does afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from exo_engine.core.ranks.process import start_processes
from exo_engine.errors import ModelUnusable
from exo_engine.server import main as entry_point
from exo_engine.server.core_start import start_core

SAY_AND_LEAVE = """
import logging
from exo_engine.process_end import leave
from logging.handlers import MemoryHandler
logging.getLogger().addHandler(MemoryHandler(100, target=logging.StreamHandler()))
logging.warning("held back")
print("said")
leave(78)
"""


@pytest.fixture
def torn_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that processes write which are started now and end as interpreters do."""
    marker = tmp_path / "torn-down"
    (tmp_path / "sitecustomize.py").write_text(
        f"import atexit, pathlib\natexit.register(pathlib.Path({str(marker)!r}).touch)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    return marker


def test_what_was_logged_and_printed_is_written_before_the_end(torn_down: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SAY_AND_LEAVE], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (78, "said\n", "held back\n")
    assert not torn_down.exists()


@pytest.mark.parametrize("redirection", [">&-", ">/dev/full", "2>&- >&-"])
def test_a_reader_who_is_gone_does_not_change_the_status(torn_down: Path, redirection: str) -> None:
    ended = subprocess.run(
        ["sh", "-c", f'"$0" -c "$1" {redirection}', sys.executable, SAY_AND_LEAVE], check=False
    )
    assert ended.returncode == 78
    assert not torn_down.exists()


def test_the_command_tells_its_page_and_its_status(torn_down: Path) -> None:
    run = [sys.executable, "-c", "from exo_engine.server.main import run; run()"]
    page = subprocess.run([*run, "--version"], capture_output=True, text=True, check=False)
    wrong = subprocess.run([*run, "serve"], capture_output=True, text=True, check=False)
    assert (page.returncode, page.stdout.startswith("exo-engine ")) == (0, True)
    assert (wrong.returncode, wrong.stdout) == (78, "")
    assert wrong.stderr.startswith("exo-engine: error: ")
    assert not torn_down.exists()


@pytest.mark.slow
def test_a_core_and_what_computes_for_it_end_without_pytorchs_teardown(torn_down: Path) -> None:
    core = start_core("error")
    (executor,) = start_processes(1)
    core.connection.close()
    assert (core.process.wait(60), executor.close()) == (0, 0)
    assert not torn_down.exists()


def test_names_of_strangers_are_escaped_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    entry_point._print_error(ModelUnusable("cannot load a\x1b[2Jb\n c: \ud800", hint="Look."))
    assert capsys.readouterr().err == (
        "exo-engine: error: cannot load a\\x1b[2Jb c: \\ud800. Look.\n"
    )
