"""`make test-repeat`: other orders, beside a load, and one failure is a failure of all."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.repeat_tests import main

FAILS_THE_SECOND_TIME = 'echo "ran with $2" && mkdir "$1/first"'


def test_every_run_has_its_seed_and_one_that_fails_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["sh", "-c", FAILS_THE_SECOND_TIME, "sh", str(tmp_path)]
    assert main(["--times", "2", "--load", "1", "--", *command]) == 1
    said = capfd.readouterr().out
    first, second = re.findall(r"run \d: (\w+) in \d+ s, seed (\d+)", said)
    assert (first[0], second[0]) == ("passed", "FAILED")
    assert re.findall(r"ran with SEED=(\d+)", said) == [first[1], second[1]]


def test_ctrl_c_ends_all_and_tells_what_was_run(tmp_path: Path) -> None:
    """As a terminal does it: the signal goes to all processes of the group."""
    waits_the_second_time = 'if mkdir "$1/first"; then exit 0; fi; echo waiting; exec sleep 600'
    words = [
        "--times",
        "3",
        "--load",
        "1",
        "--",
        "sh",
        "-c",
        waits_the_second_time,
        "sh",
        str(tmp_path),
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "scripts.repeat_tests", *words],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            assert any("waiting" in line for line in process.stdout)
            os.killpg(process.pid, signal.SIGINT)
            said = process.stdout.read()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        assert process.wait() == 130
    assert "1 of 3 runs" in said
    assert "run 1: passed" in said
    assert "interrupted" in said
