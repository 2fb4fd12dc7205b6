"""What the engine says of the machine that it runs on. How fast it is is not asked here."""

from __future__ import annotations

import json
import sys

import pytest
from exo_engine import machine
from exo_engine.kernels.library import VARIABLE

from .cpu_kernels import PATHS


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the tests that follow in this process with few threads."""
    monkeypatch.setattr(machine, "usable_cores", lambda: 1)


@pytest.mark.parametrize("path", ["off", *PATHS])
def test_every_set_of_instructions_can_be_measured(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, path)
    found = machine.measure(read_bytes=2**16, rows=4, tries=1)
    assert set(found.operations) == {"plain", "int8", "int4"}
    assert all(rate > 0 for rate in (found.read_bytes, *found.operations.values()))
    assert found.others >= 0
    assert found.spread >= 0
    assert found.threads >= 1
    if path == "off":
        assert found.kernels == "torch"


def test_a_machine_that_is_slow_in_bfloat16_is_measured_in_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "is_fast_in_bfloat16", lambda: False)
    assert machine.measure(read_bytes=2**16, rows=4, tries=1).kernels == "torch"


def test_it_prints_one_line_of_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = machine.measure(read_bytes=2**16, rows=4, tries=1)
    monkeypatch.setattr(machine, "measure", lambda: found)
    monkeypatch.setattr(sys, "argv", ["machine"])
    assert machine.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert json.loads(lines[0])["read_bytes"] == found.read_bytes


def test_kernels_that_are_not_there_are_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EXO_ENGINE_CPU_KERNELS", "bogus")
    monkeypatch.setattr("sys.argv", ["machine"])
    assert machine.main() == 78
    assert capsys.readouterr().err.startswith("EXO_ENGINE_CPU_KERNELS is 'bogus'")
