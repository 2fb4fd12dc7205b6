"""The page on GPUs has what was measured where there is a report, and never beside what was reckoned in one table."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import gpu_reckoning
from gpu_check import _add_shares
from gpu_reckoning import CARDS, Row, Step, add_estimates, page, reckon_step, steps_table

DOCS = Path(__file__).parents[4] / "docs" / "benchmarks"
RECKONED = Row("decode Some-8B", "H200", 1.0, 3.1, "memory", 120, 16)
ENVIRONMENT = {
    "device": "cuda", "gpu": "Some GPU", "gpu_memory_gib": 139.8, "torch": "2.11.0", "triton": "3.6.0"
}  # fmt: skip
STEP = {
    "model": "some-8b",
    "sequences": 32,
    "context": 1024,
    "step_seconds": 0.005,
    "tokens_per_second": 6400.0,
}
REPORT = {
    "environment": ENVIRONMENT,
    "wall_seconds": 571.2,
    "parts": {
        "kernels": {"passed": False, "rows": [{"check": "attention", "ok": True}, {"ok": False}]},
        "some-8b": {"passed": True, "rows": [STEP | {"share_of_roofline": 0.75}, {"model": "some-8b", "idle_at": 32, "idle_share": 0.021}]},
    },
}  # fmt: skip


def test_without_a_report_nothing_was_measured():
    text = page([RECKONED])
    assert "**Reckoned: nothing on this page was measured.**" in text
    assert "## Measured" not in text
    assert "| decode Some-8B | 1.0 | 3.1 | memory | 120 | 16 |" in text


def test_figures_of_a_report_stand_before_what_was_reckoned():
    measured, _, reckoned = page([RECKONED], REPORT).partition("## Reckoned\n")
    assert "nothing was measured" not in measured + reckoned
    assert "on one Some GPU with 139.8 GiB, torch 2.11.0, Triton 3.6.0, in 571 s." in measured
    assert "| kernels | FAILED | 1 of 2 |" in measured
    assert "| some-8b | passed |  |" in measured
    assert "| some-8b | 32 | 1,024 | 5 | 6,400 |  | 75 |" in measured
    assert "| some-8b | 32 | 2.1 |" in measured
    assert "decode Some-8B" not in measured
    assert reckoned.lstrip().startswith("**Reckoned, not measured: all tables from here on.**")
    assert "some-8b" not in reckoned


def report_of(gpu: str, *rows: dict[str, object]) -> dict[str, object]:
    parts = {"a part": {"passed": True, "rows": list(rows)}}
    return {**REPORT, "environment": {**ENVIRONMENT, "gpu": gpu}, "parts": parts}


def test_the_planners_estimate_stands_beside_what_was_measured():
    rows = [STEP | {"model": "llama-3.1-8b" + way} for way in ("", " fp8", " batch-invariant")]
    nothing = [False, False, False]
    for gpu, wanted in (("NVIDIA H200", [True, True, False]), ("Some GPU", nothing)):
        report = report_of(gpu, *map(dict, rows))
        add_estimates(report)
        lines = [line for line in page([], report).splitlines() if "| 32 | 1,024 |" in line]
        estimates = [line.split(" | ")[5] for line in lines]
        assert [each != "" for each in estimates] == wanted
        # What it is estimated as is the planner's affair.
        assert all(1_000 < float(each.replace(",", "")) < 20_000 for each in estimates if each)


def test_targets_of_an_h200_are_held_against_what_was_measured_there():
    rows = [
        STEP | {"model": "llama-3.1-8b"},
        STEP | {"model": "llama-3.1-8b", "sequences": 256},
        {"model": "llama-3.1-8b", "idle_at": 32, "idle_share": 0.021},
        {"model": "llama-3.1-8b", "ready_seconds": 20.5, "weights_bytes": 1.6e10},
    ]
    text = page([], report_of("NVIDIA H200", *rows))
    assert "| llama-3.1-8b, sequences 32: tokens per second | ≥ 5,700 | 6,400 | yes |" in text
    assert "| llama-3.1-8b, sequences 256: tokens per second | ≥ 16,000 | 6,400 | no |" in text
    assert "| llama-3.1-8b, idle at 32: idle share | ≤ 0.03 | 0.021 | yes |" in text
    assert "| llama-3.1-8b: ready seconds | ≤ 20 | 20.5 | no |" in text
    assert "| qwen3-0.6b, sequences 1: tokens per second | ≥ 900 | not measured |  |" in text
    assert "### Targets" not in page([], report_of("NVIDIA H100 80GB HBM3", *rows))


def test_the_cost_of_fixed_sums_is_that_of_the_same_step_without_them():
    steps = [STEP | {"model": "llama-3.1-8b", "tokens_per_second": 6400.0}]
    fixed = [STEP | {"model": "llama-3.1-8b batch-invariant", "sequences": n, "tokens_per_second": 4800.0} for n in (32, 64)]  # fmt: skip
    report = report_of("NVIDIA H200")
    report["parts"] = {
        "llama-3.1-8b": {"passed": True, "rows": steps},
        "llama-3.1-8b-batch-invariant": {"passed": True, "rows": fixed},
    }
    _add_shares(report["parts"])
    text = page([], report)
    assert "### What --batch-invariant costs\n" in text
    assert "| llama-3.1-8b batch-invariant | 32 | 25 |" in text
    assert "| llama-3.1-8b batch-invariant | 64 | 25 |" not in text  # nothing to hold it against
    assert "cost at 32: lost share | ≤ 0.15 | 0.25 | no |" in text


def test_a_step_is_the_sum_of_its_launches(monkeypatch):
    """Where each launch takes a microsecond: 32 layers of 4 products, 2 norms, attention, storing, gates; 1 norm, the logits.

    Sums of 3 of the 4 products are cut, and added up by a launch of their own.
    """
    ones = Row("", "H200", 1.0, 1.0, "memory", 1, 1)
    monkeypatch.setattr(gpu_reckoning, "compile_launch", lambda launch, target, **_: None)
    monkeypatch.setattr(gpu_reckoning, "compiled_key", lambda launch: "some launch")
    monkeypatch.setattr(gpu_reckoning, "reckon", lambda work, compiled, card: ones)
    monkeypatch.setattr(gpu_reckoning, "_LAUNCH_SECONDS", 0.0)
    step = reckon_step(CARDS[0], "Llama-3.1-8B", "llama-3.1-8b", 256, {})
    launches = 32 * (4 + 3 + 2 + 2 + 1 + 1) + 2  # attention is split, and put together
    assert step.fixed_us == pytest.approx(launches)
    assert step.plain_us + sum(step.added_us.values()) == pytest.approx(step.fixed_us)
    weights = 2 * (32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336) + 128256 * 4096)
    assert step.plain_us > weights / 4.3e12 * 1e6


def test_whole_steps_stand_beside_the_aim():
    step = Step("H200", "Some-8B", 32, 4000.0, 5000.0, {"products": 900, "attention": 110})  # fmt: skip
    line = "| H200 | Some-8B | 32 | 4,000 | 5,000 | +900 | +110 | 20 | ≤ 15 |"
    assert line in steps_table([step])
    assert line in page([], None, [step]).splitlines()


def test_aims_that_steps_miss_are_named():
    costs = {"products": 0, "attention": 0}
    steps = [
        Step("L40S", "Llama-3.1-8B", 32, 4000.0, 5000.0, costs),
        Step("H200", "Llama-3.1-8B", 1, 4400.0, 4500.0, costs),
        Step("H200", "Qwen3-0.6B", 1, 1000.0, 1100.0, costs),
        Step("A5000", "Llama-3.1-8B", 1, 9000.0, 9100.0, costs),  # aims are an H200's
    ]
    text = page([], None, steps)
    section = text.partition("### Aims that these times miss\n\n")[2]
    assert section.splitlines() == [
        "- L40S, Llama-3.1-8B, 32 sequences: `--batch-invariant` takes 20.0 % of the tokens per second. The aim is 15 % at most.",
        "- H200, Llama-3.1-8B, 1 sequences: 227 tokens per second without `--batch-invariant`. The aim is 240 at least.",
        *[line for card in CARDS for line in ("", f"## {card.name}", "", *text.splitlines()[-2:])],
    ]
    assert "They miss none." in page([], None, steps[2:])


def test_a_report_that_no_gpu_made_is_refused():
    report = {**REPORT, "environment": {**ENVIRONMENT, "device": "cpu"}}
    with pytest.raises(ValueError, match="not measured on a GPU"):
        page([RECKONED], report)


def test_the_page_was_made_with_the_report_that_lies_beside_it():
    text = (DOCS / "gpu.md").read_text()
    assert ("## Measured" in text) == (DOCS / "gpu.json").exists()
    made = page([])
    assert (text.splitlines()[2:4] == made.splitlines()[2:4]) == ("## Measured" not in text)
