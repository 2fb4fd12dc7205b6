"""`make test-repeat`: other orders, beside a load, and one failure is a failure of all."""

from __future__ import annotations

import re
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
