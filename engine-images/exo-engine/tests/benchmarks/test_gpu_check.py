"""The command behind `make gpu-check` runs here too, on the CPU, and says so when there is no GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from gpu_idle import idle_share

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
        env={**os.environ, **environment},
    )


def test_without_a_gpu_it_says_so_and_fails():
    result = run(CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 69
    assert "finds no CUDA device" in result.stdout
    assert "--device cpu --small" in result.stdout


@pytest.mark.slow
def test_on_the_cpu_every_part_passes_and_figures_are_written(tmp_path):
    output = tmp_path / "gpu_check.json"
    result = run(
        *("--device", "cpu", "--small", "--output", str(output)),
        *("--patience", "5", "--time-limit-seconds", "1000"),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    parts = json.loads(output.read_text())["parts"]
    assert next(iter(parts)) == "kernels"
    assert all(part["passed"] and part["rows"] for part in parts.values())
    equality = parts["equality"]["rows"]
    assert len(equality) == 20
    assert all(row["equal_tokens"] == row["tokens"] > 0 for row in equality)
    prompts = [row for row in parts["qwen3-0.6b"]["rows"] if "prompt" in row]
    assert [row["prompt"] for row in prompts] == [64, 256]
    assert all(row["tokens_per_second"] > 0 for row in prompts)
    steps = [row for row in parts["qwen3-0.6b"]["rows"] if "sequences" in row]
    assert [row["sequences"] for row in steps] == [1, 4]
    assert all(row["share_of_roofline"] > 0 for row in steps)
    rows = parts["llama-3.1-8b"]["rows"]
    (idle,) = (row["idle_share"] for row in rows if "idle_share" in row)
    assert 0 < idle < 1
    (mixed,) = (row for row in rows if "mixed_requests" in row)
    assert mixed["times_transformers"] > 0


@pytest.mark.slow
def test_a_part_that_takes_too_long_is_stopped_and_the_next_one_runs(tmp_path):
    output = tmp_path / "gpu_check.json"
    result = run(
        *("--device", "cpu", "--small", "--output", str(output)),
        *("--parts", "equality", "limits", "--patience", "0.001"),
    )
    assert result.returncode == 1
    parts = json.loads(output.read_text())["parts"]
    assert parts["equality"]["problem"] == "was stopped after its 0 s"
    assert list(parts) == ["equality", "limits"]


def test_idle_is_what_no_kernel_covers():
    assert idle_share([(0.0, 2.0), (1.0, 3.0), (4.0, 8.0), (5.0, 6.0)]) == pytest.approx(1 / 8)
    assert idle_share([(3.0, 4.0), (0.0, 1.0)]) == pytest.approx(0.5)
    assert idle_share([(0.0, 1.0)]) == 0.0


def test_all_parts_end_within_ten_minutes():
    text = SCRIPT.read_text()
    limits = [int(number) for number in re.findall(r'^    "[-.\w]+": (\d+),$', text, re.MULTILINE)]
    assert len(limits) == 10
    assert sum(limits) <= 590
