"""The benchmark on Kubernetes: its options, its figures, and a small run of all its phases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.kubernetes_scale.__main__ import PAGE, read_options
from benchmarks.kubernetes_scale.report import BEGIN, END, Quantiles, write_page
from scripts.kubernetes import binaries
from scripts.kubernetes.simulated import PROGRAMS
from tests.skipping import skip_check

ROOT = Path(__file__).parents[2]


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.kubernetes_scale", *words],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.kubernetes
def test_a_small_run_measures_everything() -> None:
    try:
        binaries.require(PROGRAMS)
    except binaries.ProgramsMissing as exc:
        skip_check(str(exc))
    words = ["--deployments=20", "--nodes=10", "--rest=2", "--rate=1", "--changes=6"]
    ended = run(*words, "--fail-overs=1", "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    burst, (steady,) = found["burst"], found["steady"]
    assert burst["applied"]["count"] == burst["latencies"]["create"]["count"] == 20
    assert 0 < burst["accepted_seconds"] <= burst["applied_seconds"] <= burst["settled_seconds"]
    assert burst["cpu_seconds_each"]["Helm"] > 0.02
    assert steady["applied"]["create"]["count"] == steady["applied"]["scale"]["count"] == 3
    assert 0 < steady["applied"]["all"]["p50"] <= steady["applied"]["all"]["p99"]
    assert found["rest"]["controllers"]["leader"]["memory_mib"] > 20
    assert 0 < found["restart"]["answers_seconds"] <= found["restart"]["reconciled_seconds"]
    assert found["fail_over"]["seconds"][0] > 1  # the Lease had to lapse


def test_missing_programs_are_said_and_end_it(tmp_path: Path) -> None:
    nothing = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "KUBEBUILDER_ASSETS": ""}
    ended = run(**nothing)
    assert ended.returncode == 2
    assert "kube-apiserver" in ended.stderr
    assert "make kubernetes-binaries" in ended.stderr


@pytest.mark.parametrize(
    "words",
    [["--deployments", "0"], ["--rate", "-1"], ["--nodes", "x"], ["--changes=1"], ["--rest=0"]],
    ids=" ".join,
)
def test_options_that_make_no_sense_are_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        read_options(words)
    assert ended.value.code == 2
    assert words[0].partition("=")[0] in capsys.readouterr().err


def test_quantiles_are_of_what_was_measured() -> None:
    assert Quantiles.of([1.0, 3.0, 2.0]) == Quantiles(3, 2.0, 3.0, 3.0)
    hundreds = Quantiles.of([float(n) for n in range(1, 201)])
    assert (hundreds.p50, hundreds.p99, hundreds.max) == (100.5, 198.0, 200.0)


def test_the_page_has_the_marks_and_keeps_what_is_written_by_hand(tmp_path: Path) -> None:
    text = PAGE.read_text()
    assert text.count(BEGIN) == text.count(END) == 1
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_page(page, "new")
    assert page.read_text() == f"before\n{BEGIN}\n\nnew\n{END}\nafter\n"
    page.write_text("no marks")
    with pytest.raises(ValueError, match="no lines"):
        write_page(page, "new")
