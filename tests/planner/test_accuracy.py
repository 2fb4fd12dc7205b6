"""Grading: the arithmetic on small cases, and the limits on all collected starts where they are at hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from exo_inference.planner.accuracy.grading import LIMITS, grade, summarise
from exo_inference.planner.overheads import (
    ALONE,
    BAND,
    BESIDE,
    BESIDE_OF_STATES,
    GRAPHS,
    GRAPHS_OF_STATES,
    load_overheads,
)
from scripts.calibrate_planner import (
    GraphEstimate,
    Residual,
    derive,
    graph_constants,
    graph_estimates,
    measure,
    next_machine,
)
from scripts.calibrate_planner import main as calibrate
from scripts.grade_planner import main, render, wilson
from scripts.left_out.constants import band_left_out, graphs_left_out, leave_one_out
from scripts.left_out.page import LeftOutPart
from scripts.planner_halves import gpu_key, machine_key, model_key, split

FOLDER = Path(__file__).parents[2] / "docs" / "benchmarks"
STARTS = FOLDER / "planner-starts.json"


def collected() -> tuple[list[Any], list[Any]]:
    return split(json.loads(STARTS.read_text(encoding="utf-8"))["cases"])


def make_case(**changes: Any) -> dict[str, Any]:
    case: dict[str, Any] = {
        "id": "llama-l4", "engine": "vllm", "engine_version": "0.12.0", "gpu": "L4", "gpu_count": 1, "tp": 1,
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
        ({"unstated": ["max_num_batched_tokens"]}, "max_num_batched_tokens"),
        ({"inferred": ["model"]}, "its model is not stated"),
        ({"approximate": True}, "rounds the figures"),
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
    page = tmp_path / "page.md"
    assert main(["--cases", str(STARTS), "--write", str(page)]) == 0
    assert "## The graded half" in page.read_text(encoding="utf-8")


def test_starts_that_no_constant_was_set_on_are_within_the_limits() -> None:
    _, graded = collected()
    grades = grade(graded)
    for quantity, (mean, most) in LIMITS.items():
        row = summarise(quantity, grades.of(quantity))
        if row is None:
            continue
        if mean is not None:
            assert row.mean <= mean, quantity
        if most is not None:
            assert row.p95 <= most, quantity
    memory = summarise("available KV memory", grades.of("available KV memory"))
    assert memory is not None
    assert memory.median <= 0.03
    assert sum(each.is_right for each in grades.decided) >= 0.97 * len(grades.decided)
    assert len(grades.decided) >= 18
    assert len(grades.fits) - len(grades.decided) <= 0.1 * len(grades.fits)


def test_near_duplicates_fall_on_one_side() -> None:
    setting, graded = collected()
    sides = [{(model_key(case), gpu_key(case)) for case in half} for half in (setting, graded)]
    assert not sides[0] & sides[1]
    assert 0.4 <= len(setting) / (len(setting) + len(graded)) <= 0.6


def test_every_graded_start_has_a_model_or_a_gpu_that_no_constant_has_seen() -> None:
    setting, graded = collected()
    models, gpus = {model_key(case) for case in setting}, {gpu_key(case) for case in setting}
    for case in graded:
        assert model_key(case) not in models or gpu_key(case) not in gpus, case["id"]


def test_the_constants_are_what_the_calibration_half_gives() -> None:
    assert calibrate(["--starts", str(STARTS), "--check"]) == 0


def test_other_starts_give_other_constants() -> None:
    setting, graded = collected()
    assert derive(setting) != derive([*setting, *graded])


def test_a_kind_of_gpu_is_left_out_of_the_constant_that_predicts_it() -> None:
    """Where all starts of a constant are on one kind, it is a machine; where they are on one machine, it cannot be told."""
    setting, _ = collected()
    rows = {row.constant: row for row in leave_one_out(setting)}
    assert rows["outside PyTorch, alone"].apart == "kind of GPU"
    assert rows["outside PyTorch, memory shared with the CPU"].apart == "machine"
    assert rows["outside PyTorch, compressed attention"].mean is None
    assert {name for name, row in rows.items() if row.mean is None} == {
        "outside PyTorch, compressed attention"
    }


def test_graphs_and_the_band_are_set_again_without_a_kind_of_gpu() -> None:
    setting, _ = collected()
    rows = {row.constant: row for row in graphs_left_out(setting)}
    assert rows.keys() == graph_constants(graph_estimates(setting)).keys()
    assert all(row.gib is not None and row.apart == "kind of GPU" for row in rows.values())
    inside, count = band_left_out(setting)
    assert 0.85 * count <= inside <= count == load_overheads()[BAND].starts


def test_an_estimate_of_graphs_has_a_part_that_grows_with_sizes_and_one_beside_it() -> None:
    """Six starts without states, whose 100 layers and sizes take 0.5 MiB each, and two with, of 1 GiB more."""
    plain = [GraphEstimate(GRAPHS, BESIDE, f"g{i}", 50.0, 100) for i in range(6)]
    states = [GraphEstimate(GRAPHS_OF_STATES, BESIDE_OF_STATES, "g", 1074.0, 100)] * 2
    found = graph_constants([*plain, *states])
    assert found[GRAPHS].value == found[GRAPHS_OF_STATES].value == 0.5
    assert found[BESIDE].value == 0.0
    assert found[BESIDE_OF_STATES].value == 1.0
    less = [GraphEstimate(GRAPHS, BESIDE, "g", 10.0, 100)] * 3
    assert graph_constants([*plain[:2], *less, *states])[BESIDE].value == 0.0


def test_every_measured_constant_is_in_the_table_or_said_to_be_left_out_of_it() -> None:
    setting, graded = collected()
    part = LeftOutPart(leave_one_out(setting), graphs_left_out(setting), band_left_out(setting))
    page = render(grade(graded), {}, left_out=part)
    section = page.partition("## One constant left out")[2].partition("\n## ")[0]
    rows = {line.split(" | ")[0].strip("| ") for line in section.splitlines() if "|" in line}
    others = {name for name in derive(setting) if f"`{name}`" in section}
    assert others.isdisjoint(rows)
    assert derive(setting).keys() <= rows | others


def test_few_blocks_for_states_are_told_in_gib_and_as_a_share_of_the_gpu() -> None:
    """134 blocks of Qwen3-Coder-Next are 0.42 GiB on each of four L40S: what is missed there is no share of them."""
    cases = json.loads((FOLDER / "planner-unseen.json").read_text(encoding="utf-8"))["cases"]
    (case,) = (each for each in cases if each["id"] == "next-qwen3-coder-next-l40sx4-seqs-refused")
    (blocks,) = grade([case]).of("blocks for states")
    assert blocks.is_small
    assert blocks.observed * blocks.gib == pytest.approx(0.42, abs=0.02)
    page = render(grade([case]), {})
    (row,) = (line for line in page.splitlines() if line.startswith("| blocks for states, less"))
    assert "of the GPU's memory: 1.4% mean, 1.4% at most" in row


def test_starts_of_one_source_on_the_same_gpus_are_one_machine() -> None:
    address = "https://github.com/someone/notes"
    first = machine_key(make_case(source=f"{address}/blob/abc/log.txt"))
    assert machine_key(make_case(id="other", source=f"{address}/blob/def/second.txt")) == first
    assert machine_key(make_case(source=f"{address}/blob/abc/log.txt", gpu="H100")) != first
    assert machine_key(make_case(source=f"{address}/blob/abc/log.txt", gpu_count=2)) != first
    threads = [machine_key(make_case(source=f"{address}/issues/{each}")) for each in (1, 2)]
    assert threads[0] != threads[1]
    assert machine_key(make_case(source="a log whose address was not kept")) == "llama-l4"


def test_a_spread_that_few_machines_show_is_that_of_the_next_one() -> None:
    """Student's t: machines of 1 and 2 GiB differ by 1, and half of the next ones lie within 1 x sqrt(0.5 x 1.5)."""
    assert next_machine([[1.0], [2.0]], [1.0]) == pytest.approx(0.75**0.5)
    assert next_machine([[1.0, 1.0], [2.0, 2.0]], [1.0]) == pytest.approx(0.75**0.5)
    assert next_machine([[0.9, 1.1], [2.0]], [1.0]) > 0.75**0.5


def test_many_starts_of_one_machine_narrow_no_spread() -> None:
    def residual(machine: str, outside: float) -> tuple[Residual, float]:
        return Residual("x", "L4", ALONE, outside, 0.0, 0.0, 5.0, 0.0, machine), outside

    few = [residual(f"m{each}", each / 10) for each in range(5)]
    many = few + [residual("m2", 0.2)] * 20
    found = [measure(each, [-1.0, 1.0]) for each in (few, many)]
    assert (found[0].low, found[0].high) == (found[1].low, found[1].high) == (0.1, 0.3)


@pytest.mark.parametrize(
    ("hits", "count", "low", "high"), [(90, 100, 0.826, 0.945), (10, 10, 0.722, 1.0)]
)
def test_wilsons_interval(hits: int, count: int, low: float, high: float) -> None:
    assert wilson(hits, count) == pytest.approx((low, high), abs=0.001)


def test_the_page_in_the_documentation_is_current_and_explains_every_miss(tmp_path: Path) -> None:
    written = tmp_path / "planner.md"
    main([
        "--cases", str(STARTS), "--explanations", str(FOLDER / "planner-explanations.json"),
        "--unseen", str(FOLDER / "planner-unseen.json"), "--write", str(written),
        "--ran", str(FOLDER / "planner-published-speeds.json"),
    ])  # fmt: skip
    page = written.read_text(encoding="utf-8")
    assert page == (FOLDER / "planner.md").read_text(encoding="utf-8")
    assert "not explained" not in page


def test_small_caches_are_graded_in_gib_beside_the_whole() -> None:
    observed = make_case()["observed"]
    small = make_case(id="small", observed={**observed, "available_kv_gib": 0.99})
    exact = make_case(id="exact", observed={**observed, "available_kv_gib": 1.0})
    grades = grade([make_case(), small, exact])
    found = {each.case: each.is_small for each in grades.of("available KV memory")}
    assert found == {"llama-l4": False, "small": True, "exact": False}
    page = render(grades, {})
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| available")]
    assert [(name.strip(), int(count)) for name, count in rows] == [
        ("available KV memory, 1 GiB and more printed", 2),
        ("available KV memory, all", 3),
        ("available KV memory, less than 1 GiB printed", 1),
    ]
    graded = next(each for each in grades.of("available KV memory") if each.is_small)
    assert f"| {abs(graded.predicted - graded.observed):.2f} GiB |" in page


def test_starts_of_another_planner_stand_beside_its_figures() -> None:
    source = "https://github.com/llm-d-incubation/llm-d-planner/blob/main/docs/page.md"
    page = render(grade([]), {}, peer=[make_case(), make_case(id="llmd-llama", source=source)])
    assert "| llama | 14.99 GiB | 14.99 GiB (" in page
    assert "llama-l4" not in page
    assert "whether they start right in 1 of 1" in page


@pytest.mark.parametrize(
    ("version", "gpu", "low"), [("0.11.0", "H100", 13.47), ("0.11.0", "A100", 13.69), ("0.12.0", "H100", 13.47)]
)  # fmt: skip
def test_the_band_of_gpt_oss_holds_both_layouts_of_its_experts_where_a_release_has_both(
    version: str, gpu: str, low: float
) -> None:
    from exo_inference.planner import EngineParameters, find_gpu, find_model, plan

    weights = plan(
        find_model("openai/gpt-oss-20b"), find_gpu(gpu), 1, EngineParameters(engine_version=version)
    ).component("weights")
    assert weights is not None
    assert weights.low / 2**30 <= low <= weights.high / 2**30
    assert (weights.low / weights.num_bytes < 0.985) is (version == "0.11.0" and gpu == "H100")


def test_later_starts_are_told_by_what_the_rule_holds_out() -> None:
    ran, failed = make_case(), make_case(observed={"outcome": "oom"})
    halves = (grade([ran, failed]), grade([ran]))
    page = render(grade([ran]), {}, unseen=grade([ran, failed, ran]), by_half=halves)
    rows = {line.split("|")[1].strip(): line for line in page.splitlines() if line.startswith("| ")}
    assert "| 1 of 2 (50.0%) |" in rows["on the calibration half"]
    assert "| 1 of 1 (100.0%) |" in rows["held out"]
