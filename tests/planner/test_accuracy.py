"""Grading: the arithmetic on small cases, and the limits on all collected starts where they are at hand."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from exo_inference.planner.accuracy.grading import LIMITS, grade, summarise
from scripts.grade_planner import main, render

CASES = Path(
    os.environ.get("EXO_PLANNER_CASES") or Path(__file__).parents[3] / "shared/data/vram-cases.json"
)


def make_case(**changes: Any) -> dict[str, Any]:
    case: dict[str, Any] = {
        "id": "llama-l4", "engine": "vllm", "engine_version": "0.11.0", "gpu": "L4", "gpu_count": 1, "tp": 1,
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "flags": {"max_model_len": 32000, "gpu_memory_utilization": 0.92, "max_num_seqs": 128},
        "observed": {"weights_gib_per_gpu": 14.9889, "available_kv_gib": 4.75, "kv_tokens": 38944, "outcome": "fits"},
    }  # fmt: skip
    return {**case, **changes}


def test_a_printed_start_is_graded() -> None:
    grades = grade([make_case()])
    weights = grades.of("weights, known checkpoint")[0]
    assert abs(weights.error) < 0.0005
    assert abs(grades.of("available KV memory")[0].error) < 0.05
    assert grades.fits[0].is_right


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gpu": None}, "GPU is not stated"),
        ({"engine_version": None}, "version is not stated"),
        ({"engine_version": "0.2.7"}, "begin at 0.6.6"),
        ({"model": "no/such-model"}, "not in the bundled catalogue"),
        ({"engine": "other"}, "engine is other"),
        (
            {
                "flags": {
                    "speculative_config": {"model": "no/such-draft", "num_speculative_tokens": 2}
                }
            },
            "draft model is not known",
        ),
        ({"notes": "max_num_batched_tokens not in the excerpt"}, "max_num_batched_tokens"),
    ],
)
def test_what_a_case_leaves_unstated_is_not_graded(changes: dict[str, Any], reason: str) -> None:
    grades = grade([make_case(**changes)])
    assert grades.of("available KV memory") == []
    assert grades.fits == []
    assert any(reason in why for _, _, why in grades.not_graded)


def test_the_page_lists_a_miss_with_its_explanation() -> None:
    observed = {"weights_gib_per_gpu": 10.0, "outcome": "refused"}
    page = render(grade([make_case(observed=observed)]), {"llama-l4": "made up"})
    assert "| llama-l4 | 14.99 | 10.00 | +49.9 % | made up |" in page
    assert "right in 0 of 1" in page


def test_the_program_writes_the_page(tmp_path: Path) -> None:
    cases, page = tmp_path / "cases.json", tmp_path / "page.md"
    cases.write_text(json.dumps({"cases": [make_case()]}), encoding="utf-8")
    assert main(["--cases", str(cases), "--write", str(page)]) == 0
    assert "1 cases." in page.read_text(encoding="utf-8")


@pytest.mark.skipif(not CASES.exists(), reason="the collected starts are not on this machine")
def test_the_collected_starts_are_within_the_limits() -> None:
    grades = grade(json.loads(CASES.read_text(encoding="utf-8"))["cases"])
    for quantity, (mean, most) in LIMITS.items():
        if quantity == "blocks for states":  # graded on starts that are kept with the documentation
            continue
        row = summarise(quantity, grades.of(quantity))
        assert row is not None
        if mean is not None:
            assert row.mean <= mean, quantity
        if most is not None:
            assert row.p95 <= most, quantity
    assert sum(each.is_right for each in grades.fits) >= 0.95 * len(grades.fits)
    assert len(grades.fits) >= 35


@pytest.mark.skipif(not CASES.exists(), reason="the collected starts are not on this machine")
def test_the_page_in_the_documentation_is_current_and_explains_every_miss(tmp_path: Path) -> None:
    folder = Path(__file__).parents[2] / "docs" / "benchmarks"
    written = tmp_path / "planner.md"
    main([
        "--cases", str(CASES), "--explanations", str(folder / "planner-explanations.json"),
        "--unseen", str(folder / "planner-unseen.json"), "--write", str(written),
    ])  # fmt: skip
    page = written.read_text(encoding="utf-8")
    assert page == (folder / "planner.md").read_text(encoding="utf-8")
    assert "not explained" not in page


def test_starts_that_were_not_seen_before_are_near() -> None:
    """Kept with the documentation: found after the constants were set."""
    path = Path(__file__).parents[2] / "docs" / "benchmarks" / "planner-unseen.json"
    grades = grade(json.loads(path.read_text(encoding="utf-8"))["cases"])
    assert len(grades.graded) >= 12
    for each in grades.graded:
        assert abs(each.error) < 0.06, each
