"""llama.cpp's public starts: what they set, how they are graded, and the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from exo_inference.planner.accuracy.cases import parse_cases
from exo_inference.planner.llama_cpp.constants import CONTEXT, load_constants
from scripts.llama_cpp_starts.calibrate import derive
from scripts.llama_cpp_starts.calibrate import main as calibrate
from scripts.llama_cpp_starts.grade import main, render
from scripts.llama_cpp_starts.predict import compare, not_graded, outcomes
from scripts.planner_halves import split

FOLDER = Path(__file__).parents[2] / "docs" / "benchmarks"
STARTS = FOLDER / "planner-llama-cpp-starts.json"


def cases() -> list[dict[str, Any]]:
    return parse_cases(STARTS.read_text(encoding="utf-8"), STARTS.name)


def test_the_records_are_enough_and_told_apart() -> None:
    setting, graded = split(cases())
    assert len({case["id"] for case in cases()}) == len(cases())
    assert len(setting) >= 10
    assert len(graded) >= 20
    assert all(case["source"] for case in cases())


def test_the_graded_half_is_predicted() -> None:
    _, graded = split(cases())
    found: dict[str, list[float]] = {}
    for each in compare(graded):
        found.setdefault(each.quantity, []).append(abs(each.error))
    assert len(found["weights"]) >= 10
    assert max(found["weights"]) < 0.01
    assert len(found["cache"]) >= 10
    assert max(found["cache"]) < 0.001
    assert len(found["compute buffers"]) >= 10
    assert sorted(found["compute buffers"])[-5] < 0.05
    assert all(went_on == has_room for _, went_on, has_room in outcomes(graded))


def test_constants_are_those_of_the_calibration_half() -> None:
    assert calibrate(["--starts", str(STARTS), "--check"]) == 0
    assert derive(split(cases())[0]) == dict(load_constants())
    context = load_constants()[CONTEXT]
    assert context.low < context.value < context.high


def test_what_says_nothing_of_a_quantity_is_not_graded() -> None:
    left_out = {(case, quantity) for case, quantity, _ in not_graded(cases())}
    graded = {(each.case, each.quantity) for each in compare(cases())}
    assert left_out
    assert not left_out & graded


def test_the_page_is_that_of_the_records(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    explanations = FOLDER / "planner-explanations.json"
    assert (
        main(["--cases", str(STARTS), "--explanations", str(explanations), "--write", str(page)])
        == 0
    )
    assert page.read_text(encoding="utf-8") == (FOLDER / "planner-llama-cpp.md").read_text(
        encoding="utf-8"
    )


def test_every_miss_is_explained() -> None:
    explanations = json.loads((FOLDER / "planner-explanations.json").read_text(encoding="utf-8"))
    assert "the cause is not known" not in render(cases(), explanations)
    assert "the cause is not known" in render(cases(), {})


@pytest.mark.parametrize("flag", ["ctx-size", "parallel"])
def test_records_have_flags_of_llama_server(flag: str) -> None:
    assert any(flag in case["flags"] for case in cases())
