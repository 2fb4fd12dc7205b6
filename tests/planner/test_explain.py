"""`explain`: the arithmetic never fails, and says what the plan says."""

from __future__ import annotations

import re

import pytest

from exo_inference.planner import (
    EngineParameters,
    Plan,
    cpu_as_gpu,
    explain,
    find_gpu,
    find_model,
    load_models,
    plan,
    read_architecture,
)
from exo_inference.planner.catalog_models import read_entry
from tests.planner.flags import settings_of

GIB = 2**30
FLAGS = [
    ("H100", 1, ()),
    ("gpua5000", 4, ("--kv-cache-dtype=fp8", "--enforce-eager")),
    ("H200", 8, ("-pp=2", "--enable-lora", "--cpu-offload-gb=4", "--enable-expert-parallel")),
]


def number_in(text: str) -> float:
    """Return the first number of a result; in a text with bytes in brackets, those."""
    found = re.search(r"\(([\d,-]+) bytes\)", text) or re.search(r"(-?[\d,.]+)", text)
    assert found is not None, text
    number = float(found.group(1).replace(",", ""))
    return -number if "bytes) too little" in text else number


@pytest.mark.parametrize(
    ("version", "gpu", "count", "flags"),
    [
        pytest.param(version, *each, marks=[] if row == column else pytest.mark.slow)
        for row, version in enumerate(["0.7.3", "0.19.1", "0.33.0"])
        for column, each in enumerate(FLAGS)
    ],
    ids=lambda value: str(value)[:12],
)
def test_the_steps_of_every_bundled_model_say_what_its_plan_says(
    gpu: str, count: int, flags: tuple[str, ...], version: str
) -> None:
    parameters = settings_of(flags, engine_version=version)
    for name in load_models():
        result = plan(read_entry(name), find_gpu(gpu), count, parameters)
        check_steps(result)


def check_steps(result: Plan) -> None:
    steps = {step.title: step for step in explain(result)}
    for step in steps.values():
        assert step.title
        assert step.formula
        assert step.result
        assert step.source
    assert steps["Verdict"].result == result.verdict
    if result.basis is None:
        assert result.problems[0].detail in steps["Verdict"].formula
        return
    expected = {
        "Weights": result.weights_bytes_per_gpu,
        "Budget": result.budget_bytes_per_gpu,
        "Available for the KV cache": result.available_kv_bytes_per_gpu,
    }
    if result.kv_block_size:
        expected |= {
            "Blocks": result.num_kv_blocks,
            "Capacity": result.kv_capacity_tokens,
            "Longest context at the middle of the estimate": result.largest_max_model_len,
            f"One request of {result.max_model_len:,} tokens": result.needed_kv_bytes_per_gpu,
        }
        per_token = number_in(steps["KV bytes per token"].result)
        assert per_token == pytest.approx(result.kv_bytes_per_token, rel=1e-9)
        parts = [s.result for s in explain(result) if s.title.startswith("KV cache:")]
        sums = sum(number_in(part) for part in parts if part.endswith("per token"))
        assert sums == pytest.approx(result.kv_bytes_per_token, rel=1e-9)
    for title, figure in expected.items():
        assert number_in(steps[title].result) == figure, title
    for component in result.components:
        if component.name in ("activations", "cuda_graphs", "non_torch", "lora", "draft_model"):
            assert any(f"({component.num_bytes:,} bytes)" in s.result for s in steps.values())


def test_the_parts_of_the_weights_add_up_to_them() -> None:
    result = plan(find_model("openai/gpt-oss-20b"), find_gpu("H100"), 1, EngineParameters())
    steps = explain(result)
    total = next(step for step in steps if step.title == "Weights")
    terms = [float(size) for size in re.findall(r"([\d.]+) GiB", total.formula)]
    assert sum(terms) == pytest.approx(result.weights_bytes_per_gpu / GIB, abs=0.03)
    assert sum(step.title.startswith("Weights:") for step in steps) >= 5


def test_the_cache_of_a_token_is_spelled_out() -> None:
    result = plan(find_model("Qwen/Qwen3-8B"), find_gpu("H100"), 2, EngineParameters())
    step = next(each for each in explain(result) if each.title.startswith("KV cache:"))
    assert step.formula == "36 layers x 4 KV heads per GPU x (128 + 128) x 2 bytes"
    assert step.result == "73,728 bytes per token"


def test_time_between_tokens_is_the_sum_it_shows() -> None:
    result = plan(find_model("Qwen/Qwen3-8B"), find_gpu("H100"), 1, EngineParameters())
    assert result.speed is not None
    steps = {step.title: step for step in explain(result)}
    one = steps["Between tokens, 1 request of 2,048 tokens"]
    times = map(float, re.findall(r"([\d.e-]+) ms", one.formula))
    weights, cache, compute, floors, sent, fixed, least = times
    seconds = max(max(weights + cache, compute) + floors + sent + fixed, least) / 1000
    assert seconds == pytest.approx(result.speed.batches[0].inter_token_seconds, rel=1e-3)


def test_exo_engine_on_a_cpu_is_explained() -> None:
    parameters = settings_of([], engine="exo")
    check_steps(plan(find_model("Qwen/Qwen3-0.6B"), cpu_as_gpu(16 * GIB), 1, parameters))


def test_what_cannot_be_sized_is_one_step_with_the_reason() -> None:
    model = read_architecture({"model_type": "mystery"}, name="org/mystery")
    steps = explain(plan(model, find_gpu("H100"), 1, EngineParameters()))
    assert [step.result for step in steps] == ["unknown"]
    assert "cannot size org/mystery, because " in steps[0].formula
