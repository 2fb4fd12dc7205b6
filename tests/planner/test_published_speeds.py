"""The published speeds: what the file must hold, how it is split, and how near the estimates come."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from exo_inference.errors import UsageError
from exo_inference.planner import EngineParameters, find_gpu, find_model, plan
from exo_inference.planner.speed.constants import SpeedConstants, load_speed_constants
from exo_inference.planner.speed.estimate import batch_sizes, prompt_times
from exo_inference.planner.speed.inputs import arithmetic
from scripts.calibrate_speeds import (
    derive,
    distance,
    halves,
    leave_one_out,
    settle,
    split_found,
)
from scripts.planner_halves import gpu_key, model_key
from scripts.published_speeds import (
    Figure,
    parse_figures,
    read_figures,
    summarise_speeds,
)
from scripts.speed_page import render, render_found, render_left_out

PUBLISHED = Path(__file__).parents[2] / "docs" / "benchmarks" / "planner-published-speeds.json"
RECORDS = parse_figures(PUBLISHED.read_text("utf-8"), PUBLISHED.name)
RECORD = {
    "id": "one", "source": "https://example.org", "date": "2026-01-01", "model": "Qwen/Qwen3-8B", "gpu": "H100",
    "requests": 1, "input": 100, "output": 100, "itl_ms": 5.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def figures() -> list[Figure]:
    return read_figures(RECORDS)


@pytest.fixture(scope="module")
def setting(figures: list[Figure]) -> list[Figure]:
    return halves(figures)[0]


@pytest.fixture(scope="module")
def graded(figures: list[Figure]) -> list[Figure]:
    return halves(figures)[1]


def test_there_are_enough_figures_of_all_sorts(figures: list[Figure]) -> None:
    assert len(figures) >= 60
    assert len({each.inputs.gpu.key for each in figures}) >= 8
    assert {each.inputs.model.moe is None for each in figures} == {True, False}
    assert {1, 8, 64, 256} <= {each.requests for each in figures}
    assert {"ttft_ms", "itl_ms"} <= {each.quantity for each in figures}


def test_every_record_has_its_address_and_date_once() -> None:
    assert len({record["id"] for record in RECORDS}) == len(RECORDS)
    for record in RECORDS:
        assert record["source"].startswith("https://")
        assert len(record["date"]) == 10


def test_no_graded_figure_is_of_a_model_and_a_gpu_that_set_constants(
    figures: list[Figure], setting: list[Figure], graded: list[Figure]
) -> None:
    seen = {(model_key(each.record), gpu_key(each.record)) for each in setting}
    assert not seen & {(model_key(each.record), gpu_key(each.record)) for each in graded}
    assert min(len(setting), len(graded)) >= 0.4 * (len(setting) + len(graded))


def test_the_graded_half_comes_near(graded: list[Figure]) -> None:
    row = summarise_speeds(graded)
    assert row.median <= 0.15
    assert row.within >= 0.9
    assert row.in_band >= 0.9


def test_the_constants_are_nearer_than_those_around_them(setting: list[Figure]) -> None:
    constants = load_speed_constants()
    least = distance(setting, constants)
    for name in ("memory_share", "layer", "early_groups", "old_step", "prompt_layer"):
        for factor in (0.7, 1.3):
            moved = replace(constants, **{name: getattr(constants, name) * factor})
            assert distance(setting, moved) >= least


def test_the_page_is_what_the_figures_give(setting: list[Figure], graded: list[Figure]) -> None:
    page, heading, _ = PUBLISHED.with_suffix(".md").read_text("utf-8").partition("\n## One kind of")
    assert heading
    assert page == render(setting, graded, load_speed_constants())


@pytest.mark.slow
def test_the_page_ends_with_figures_that_set_nothing(
    setting: list[Figure], graded: list[Figure]
) -> None:
    constants, left_out = derive(setting)
    assert constants == load_speed_constants()
    found, others = split_found(setting, graded)
    page = PUBLISHED.with_suffix(".md").read_text("utf-8")
    told = render_left_out(left_out, constants) + render_found(found, others, settle(others))
    assert page.endswith(told)


def test_figures_that_were_found_are_of_both_halves_and_apart_from_the_others(
    setting: list[Figure], graded: list[Figure]
) -> None:
    found, others = split_found(setting, graded)
    assert {"found" in each.record for each in found} == {True}
    assert {"found" in each.record for each in others} == {False}
    assert 0 < sum(each in graded for each in found) < len(found)
    assert len(others) + sum(each in setting for each in found) == len(setting)


def test_a_kind_of_gpu_that_is_left_out_sets_nothing(setting: list[Figure]) -> None:
    few = [each for each in setting if each.inputs.gpu.key in ("t4", "l4")]
    hosts = {"Intel(R) Xeon(R) CPU @ 2.00GHz", "Intel(R) Xeon(R) CPU @ 2.20GHz"}
    start = replace(SpeedConstants(), hosts=dict.fromkeys(hosts, 2.0))
    for each in leave_one_out(few, start):
        (own,) = {figure.inputs.gpu.processor for figure in each.figures} - {""}
        assert each.constants.hosts[own] == 1.0
        assert all(figure.inputs.gpu.key == each.gpu for figure in each.figures)


def test_the_page_tells_both_halves_as_on_hosts_that_are_not_known(
    setting: list[Figure], graded: list[Figure]
) -> None:
    constants = load_speed_constants()
    row = summarise_speeds(graded, replace(constants, hosts={}))
    page = render(setting, graded, constants)
    told = f"| all, as on hosts that are not known | {row.count} | {row.median:.1%} | {row.within:.1%} |"
    assert page.count("all, as on hosts that are not known") == 2
    assert told in page


def test_a_first_token_of_a_cached_prompt_is_not_graded() -> None:
    (soon,) = read_figures([RECORD | {"itl_ms": None, "ttft_ms": 0.1, "input": 8000}])
    (late,) = read_figures([RECORD | {"itl_ms": None, "ttft_ms": 500.0, "input": 8000}])
    assert (soon.is_cached, late.is_cached) == (True, False)
    assert halves([soon]) == ([], [])


@pytest.mark.parametrize(
    ("inferred", "is_used"),
    [(["gpu"], False), (["date", "tensor_parallel_size"], False), (["date"], True), ([], True)],
)
def test_a_figure_whose_gpu_was_inferred_is_neither_set_on_nor_graded(
    inferred: list[str], is_used: bool
) -> None:
    figures = read_figures([RECORD | {"inferred": inferred}])
    assert any(halves(figures)) is is_used


@pytest.mark.parametrize(("engine", "is_used"), [("vllm", True), ("tensorrt-llm", False), ("sglang", False)])  # fmt: skip
def test_figures_of_engines_by_other_rules_are_neither_set_on_nor_graded(
    engine: str, is_used: bool
) -> None:
    figures = read_figures([RECORD | {"engine": engine}])
    assert any(halves(figures)) is is_used


def test_prompts_of_others_slow_tokens_down() -> None:
    def seconds(requests: int, length: int) -> float:
        (figure,) = read_figures([RECORD | {"requests": requests, "input": length}])
        return figure.predict()

    assert seconds(8, 4000) > seconds(8, 100) > seconds(1, 100)
    assert seconds(8, 4000) - seconds(8, 100) > 5 * (seconds(1, 4000) - seconds(1, 100))


def test_requests_of_a_batch_wait_until_all_their_templates_are_parsed() -> None:
    sent = RECORD | {"itl_ms": None, "seconds": 20.0, "requests": 1000, "engine_version": "0.11.0"}
    plain, chat = read_figures([sent, sent | {"api": "chat"}])
    waited = 1000 * load_speed_constants().template
    assert chat.output * (chat.predict() - plain.predict()) == pytest.approx(waited)


def test_a_records_processor_is_its_hosts() -> None:
    processor = "INTEL(R) XEON(R) PLATINUM 8558"
    known, told = read_figures([RECORD, RECORD | {"processor": processor}])
    assert told.inputs.host == load_speed_constants().hosts[processor] > known.inputs.host == 1.0


def test_a_cache_that_holds_fewer_requests_decodes_fewer_at_once() -> None:
    (one,) = read_figures([RECORD | {"itl_ms": None, "tokens_per_second": 100.0, "requests": 64}])
    small = replace(one, inputs=replace(one.inputs, capacity_tokens=800))
    assert small.predict() > 5 * one.predict()


def test_the_band_holds_the_share_that_it_says(setting: list[Figure]) -> None:
    """Nine in ten of those that are left out, so that more of those that they were set on."""
    constants = load_speed_constants()
    inside = sum(each.is_in_band(constants) for each in setting)
    assert 0.9 <= inside / len(setting) < 1


@pytest.mark.parametrize(
    "text",
    [
        "[]", "{}", "nonsense", json.dumps({"figures": [{}]}),
        json.dumps({"figures": [{**RECORD, "source": ""}]}),
        json.dumps({"figures": [{**RECORD, "itl_ms": None}]}),
        json.dumps({"figures": [{**RECORD, "itl_ms": math.inf}]}),
        json.dumps({"figures": [{**RECORD, "itl_ms": -1.0}]}),
    ],
)  # fmt: skip
def test_what_is_no_figure_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_figures(text, "file")


def test_a_gpu_that_is_not_known_is_refused() -> None:
    with pytest.raises(UsageError, match="mystery"):
        read_figures([RECORD | {"gpu": "mystery"}])


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (300, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300])]
)  # fmt: skip
def test_batches_go_up_to_the_most_requests(most: int, sizes: list[int]) -> None:
    assert batch_sizes(most) == sizes


def test_the_list_of_batches_ends_at_max_num_seqs() -> None:
    parameters = EngineParameters(max_num_seqs=300, max_model_len=1024)
    speed = plan(find_model("Qwen/Qwen3-0.6B"), find_gpu("H200"), 1, parameters).speed
    assert speed is not None
    assert speed.batches[-1].batch == 300


def test_a_small_model_alone_is_bound_by_its_small_kernels() -> None:
    speed = plan(find_model("Qwen/Qwen3-0.6B"), find_gpu("H200"), 1, EngineParameters()).speed
    assert speed is not None
    assert speed.batches[0].bound_by == "small kernels"
    assert speed.batches[-1].bound_by == "cache read"


@pytest.mark.parametrize(
    ("version", "flags", "is_replayed"),
    [
        ("0.16.0", {}, True),
        ("0.7.3", {}, False),  # V0 has CUDA graphs for decoding alone
        ("0.16.0", {"enforce_eager": True}, False),
        ("0.16.0", {"max_num_seqs": 16}, False),  # graphs of up to 32 tokens
    ],
)
def test_a_short_prompt_is_replayed_from_cuda_graphs(
    version: str, flags: dict[str, object], is_replayed: bool
) -> None:
    """vLLM, config/compilation.py: `max_cudagraph_capture_size` is twice --max-num-seqs, 512 at most."""
    parameters = EngineParameters.of(
        {"max_model_len": 4096, **flags}, engine="vllm", engine_version=version
    )
    found = plan(find_model("Qwen/Qwen2.5-0.5B-Instruct"), find_gpu("H100"), 1, parameters)
    assert found.basis is not None
    inputs = found.basis.speed
    constants = load_speed_constants()
    layer = constants.old_prompt_layer if inputs.rules.is_legacy else constants.prompt_layer
    launched = len(inputs.model.layers) * layer
    parts = prompt_times(inputs, 128, arithmetic(inputs)[1])
    longer = prompt_times(inputs, 1024, arithmetic(inputs)[1])
    assert (parts["kernel launches"] < launched / 2) is is_replayed
    assert longer["kernel launches"] >= launched
