"""SGLang's public starts: how they are read, what they set, and the page that grades them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from exo_inference.engines import get_engine
from exo_inference.engines.cluster_engine import ClusterEngine
from exo_inference.planner.accuracy.cases import parse_cases
from exo_inference.planner.accuracy.grading import grade
from exo_inference.planner.engine_rules import rules_for
from exo_inference.planner.gpu_catalog import find_gpu
from scripts.planner_halves import split
from scripts.static_starts.calibrate import derive, left_by_loading, missing_before
from scripts.static_starts.calibrate import main as calibrate
from scripts.static_starts.grade import main

FOLDER = Path(__file__).parents[2] / "docs" / "benchmarks"
STARTS = FOLDER / "planner-sglang-starts.json"


def make_case(**changes: Any) -> dict[str, Any]:
    """A start on one H100 that prints free memory before and after 15 GiB of weights, and its cache."""
    case: dict[str, Any] = {
        "id": "llama-h100", "engine": "sglang", "engine_version": "0.5.12", "gpu": "H100", "gpu_count": 1, "tp": 1,
        "model": "meta-llama/Llama-3.1-8B-Instruct", "flags": {"mem_fraction_static": 0.8},
        "observed": {"weights_gib_per_gpu": 15.11, "kv_tokens": 388_000, "outcome": "fits"},
    }  # fmt: skip
    return {**case, **changes}


def test_flags_are_read_by_the_names_of_the_engine() -> None:
    (fit,) = grade([make_case(flags={"mem_fraction_static": 0.15})]).fits
    assert (fit.predicted, fit.observed) == ("refused", "fits")
    capped = make_case(flags={"max_total_tokens": 4096}, observed={"kv_tokens": 4096})
    (tokens,) = grade([capped]).of("KV capacity in tokens")
    assert tokens.predicted == 4096


@pytest.mark.parametrize("flag", sorted(rules_for("sglang", "0.5.17").unplanned))
def test_flags_without_a_rule_are_not_graded(flag: str) -> None:
    ((_, what, reason),) = grade([make_case(flags={flag: "4"})]).not_graded
    assert (what, reason) == (
        "everything",
        f"what {flag} means for the memory of SGLang is not known",
    )


def test_nor_are_they_planned_for_a_deployment() -> None:
    engine = get_engine("sglang")
    assert isinstance(engine, ClusterEngine)
    assert engine.meaning is not None
    known = {flag.name for flag in engine.flags.by_spelling.values()}
    unplanned = {name.replace("_", "-") for name in rules_for("sglang", "0.5.17").unplanned}
    meaning = engine.meaning
    told = meaning.others.union(*meaning.of_traits.values())
    assert unplanned & known <= told
    assert (told | meaning.of_share | set(meaning.settings) | set(meaning.other_values)) <= known


def test_problems_call_flags_what_deployments_call_them() -> None:
    engine = get_engine("sglang")
    assert isinstance(engine, ClusterEngine)
    assert engine.meaning is not None
    settings = engine.meaning.settings
    names = {
        meant: name
        for meant, name in rules_for("sglang", "0.5.17").flags.items()
        if name in settings  # others are only advised
    }
    assert {name: meant.replace("-", "_") for meant, name in names.items()} == {
        name: meant for name, meant in settings.items() if name != meant.replace("_", "-")
    }


def test_what_has_no_rule_is_not_graded() -> None:
    ((_, what, reason),) = grade([make_case(model="deepseek-ai/DeepSeek-V4-Flash")]).not_graded
    assert what == "everything"
    assert "the cache of its attention is not planned for this engine" in reason


def test_the_printed_memory_grades_the_pools_alone() -> None:
    observed = {"available_kv_gib": 40.0, "kv_tokens": 40 * 2**30 // 131_072, "outcome": "fits"}
    (tokens,) = grade([make_case(observed=observed)]).of("KV tokens from the printed KV memory")
    assert tokens.error == 0.0


def test_what_is_missing_before_the_weights_is_printed_or_follows_from_the_cache() -> None:
    printed = make_case(observed={"free_before_weights_gib": 78.5, "outcome": "fits"})
    (size,) = missing_before([printed])["one GPU"]
    assert size == pytest.approx(79.19 - 78.5, abs=0.01)
    # 0.8 of what was free is 15.11 GiB and 388,000 tokens of 128 KiB: 47.36 GiB.
    (size,) = missing_before([make_case()])["one GPU"]
    assert size == pytest.approx(79.19 - (15.11 + 47.36) / 0.8, abs=0.01)


def test_a_start_that_leaves_something_out_sets_nothing() -> None:
    sets = make_case()
    for changes in (
        {"inferred": ["GPU"]}, {"unstated": ["what else runs on the GPU"]}, {"gpu": None}, {"engine_version": None},
        {"flags": {"enable_lora": True}},
    ):  # fmt: skip
        assert missing_before([sets, make_case(**changes)]) == missing_before([sets])


def test_what_loading_leaves_is_what_is_printed_beside_the_checkpoint() -> None:
    (left,) = left_by_loading([make_case()])["left by loading"]
    assert left == pytest.approx(15.11 - 15.02, abs=0.01)
    quantized = make_case(flags={"quantization": "fp8"})
    assert left_by_loading([quantized, make_case(inferred=["model"])]) == {}


def test_a_constant_of_few_machines_may_be_half_or_twice() -> None:
    observed = {"free_before_weights_gib": 78.5, "outcome": "fits"}
    found = derive([*[make_case(observed=observed)] * 9, make_case()])["one GPU"]
    assert (found.starts, found.low, found.high) == (
        1,
        found.value / 2,
        pytest.approx(2 * found.value, abs=0.002),
    )


def test_few_machines_have_a_band_that_holds_the_next_one_nine_times_in_ten() -> None:
    """0.7 and 0.8 GiB were not free, which has one degree of freedom: Student's t is 6.314."""
    total = {gpu: find_gpu(gpu).reported_bytes / 2**30 for gpu in ("h100", "l40s")}
    cases = [
        make_case(gpu=gpu, observed={"free_before_weights_gib": size - missing, "outcome": "fits"})
        for (gpu, size), missing in zip(total.items(), (0.7, 0.8), strict=True)
    ]
    found = derive(cases)["one GPU"]
    deviation = (0.05**2 + 0.05**2) ** 0.5
    wide = 6.314 * deviation * 1.5**0.5
    assert (found.value, found.starts) == (0.75, 2)
    assert found.low == pytest.approx(0.75 - wide, abs=0.002)
    assert found.high == pytest.approx(0.75 + wide, abs=0.002)


@pytest.mark.parametrize(
    ("gpu", "quantity"),
    [
        ("H100", "weights, known checkpoint"), (None, "weights, known checkpoint"), ("MI308X", "weights, another maker's GPU"),
        ("Ascend 910B (64 GB)", "weights, another maker's GPU"), ("MI35x (ROCm)", "weights, another maker's GPU"),
    ],
)  # fmt: skip
def test_weights_on_a_gpu_that_is_not_planned_are_apart_and_have_no_band(
    gpu: str | None, quantity: str
) -> None:
    grades = grade([make_case(gpu=gpu)])
    (weights,) = (each for each in grades.graded if each.quantity.startswith("weights"))
    assert weights.quantity == quantity
    assert (weights.is_in_band is None) is ("maker" in quantity)
    assert ("left by loading" in left_by_loading([make_case(gpu=gpu)])) is ("maker" not in quantity)


def test_starts_on_the_same_machine_are_one() -> None:
    sizes = {"H100": 78.5, "L40S": 44.0, "RTX 4090": 23.0, "A100": 79.0, "L4": 22.0}
    cases = [
        make_case(gpu=gpu, observed={"free_before_weights_gib": size, "outcome": "fits"})
        for gpu, size in sizes.items()
        for _ in range(3)
    ]
    found = derive([*cases, make_case()])["one GPU"]
    assert found.starts == 5
    assert found.low < found.value < found.high


def test_the_constants_are_what_the_calibration_half_gives() -> None:
    assert calibrate(["--starts", str(STARTS), "--check"]) == 0


def test_the_page_in_the_documentation_is_current_and_explains_every_miss(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    options = ["--cases", str(STARTS), "--write", str(page)]
    options += ["--explanations", str(FOLDER / "planner-explanations.json")]
    assert main(options) == 0
    text = page.read_text(encoding="utf-8")
    assert text == (FOLDER / "planner-sglang.md").read_text(encoding="utf-8")
    assert "not explained" not in text


def test_the_graded_half_is_near() -> None:
    cases = parse_cases(STARTS.read_text(encoding="utf-8"), "starts")
    grades = grade(split(cases)[1])
    assert all(fit.is_right for fit in grades.decided)
    errors = [abs(each.error) for each in grades.of("KV capacity in tokens")]
    assert max(errors) < 0.05
    inside = [each.is_in_band for each in grades.graded if each.is_in_band is not None]
    assert sum(inside) >= 0.9 * len(inside)


def test_no_start_stands_twice() -> None:
    cases = json.loads(STARTS.read_text(encoding="utf-8"))["cases"]
    assert len({case["id"] for case in cases}) == len(cases)
    assert {case["engine"] for case in cases} == {"sglang", "sglang with ktransformers"}
