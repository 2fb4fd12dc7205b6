"""The command behind `make gpu-check` runs here too, on the CPU, and says so when there is no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
        env={**os.environ, **environment},
    )


def test_without_a_gpu_it_says_so_and_fails():
    result = run(CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 69
    assert "finds no CUDA device" in result.stdout
    assert "--device cpu --small" in result.stdout


@pytest.mark.slow
def test_on_the_cpu_every_comparison_holds_and_figures_are_written(tmp_path):
    output = tmp_path / "gpu_check.json"
    result = run("--device", "cpu", "--small", "--output", str(output))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "equality with the CPU: 20 of 20 comparisons hold" in result.stdout
    report = json.loads(output.read_text())
    assert report["problems"] == []
    assert all(row["equal_tokens"] == row["tokens"] for row in report["equality"])
    assert {row["sequences"] for row in report["speed"]["decode"]} == {1, 4}
    assert all(row["tokens_per_second"] > 0 for row in report["speed"]["prefill"])
