"""`make test-repeat`: other orders, beside a load, and one failure is a failure of all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.repeat_tests import main

TESTS = """
import os, pathlib
def test_one(): pass
def test_two(): assert not pathlib.Path(__file__).with_name("second").exists()
def test_three(): pass
"""


@pytest.mark.slow
def test_every_run_has_its_seed_and_one_that_fails_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_some.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "conftest.py").write_text(
        "import pathlib\n"
        "def pytest_sessionfinish(): pathlib.Path(__file__).with_name('second').touch()\n",
        encoding="utf-8",
    )
    given = [str(tmp_path), "--rootdir", str(tmp_path), "-c", "/dev/null", "-p", "no:cacheprovider"]
    assert main(["--times", "2", "--load", "1", "--", *given]) == 1
    said = capfd.readouterr().out
    first, second = re.findall(r"run \d: (\w+) in \d+ s, seed (\d+)", said)
    assert (first[0], second[0]) == ("passed", "FAILED")
    assert f"--random-order-seed={first[1]}" in said
    assert f"--random-order-seed={second[1]}" in said
