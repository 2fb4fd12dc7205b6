"""`explain` of llama.cpp's plans: parts add up to what the plan says, for every family that is planned."""

from __future__ import annotations

import re

import pytest

from exo_inference.planner import Architecture, Plan, explain, find_gpu, find_model
from exo_inference.planner.gpu_catalog import GIB, MIB
from exo_inference.planner.llama_cpp.planning import plan_llama_cpp
from exo_inference.planner.llama_cpp.room import Asked
from exo_inference.planner.llama_cpp.setting import LlamaSetting
from exo_inference.planner.model.checkpoint import with_gguf
from exo_inference.planner.model.requantize import with_quantization
from exo_inference.planner.parameters import EngineParameters

MODELS = [
    "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-30B-A3B", "openai/gpt-oss-20b", "google/gemma-3-27b-it",
    "Qwen/Qwen3.5-35B-A3B", "deepseek-ai/DeepSeek-V3", "google/gemma-4-E4B-it",
]  # fmt: skip
STARTS = [
    pytest.param(1, {}, id="plain"),
    pytest.param(3, {"sequences": 3, "unified": False, "key_type": "q8_0"}, id="split"),
    pytest.param(2, {"gpu_layers": 9, "cpu_moe": 4, "context": 8192}, id="offloaded"),
    pytest.param(1, {"flash_attention": False, "full_windows": True}, id="without-flash"),
]


def planned(model: Architecture, gpus: int, **changes: object) -> Plan:
    asked = Asked(model, find_gpu("h200"), gpus, LlamaSetting(**changes))  # type: ignore[arg-type]
    return plan_llama_cpp(asked, EngineParameters())


def size_in(text: str) -> float:
    """Return the first size of a text in bytes: that in brackets, or one that is rounded."""
    exact = re.search(r"\(([\d,]+) bytes\)", text)
    if exact is not None:
        return float(exact[1].replace(",", ""))
    value, unit = re.findall(r"([\d.]+) ([GM]iB)", text)[0]
    return float(value) * (GIB if unit == "GiB" else MIB)


def sum_of(formula: str) -> float:
    """Return the sum of the sizes before the first half stop of a formula."""
    found = re.findall(r"([\d.]+) ([GM]iB)", formula.partition(";")[0])
    return sum(float(value) * (GIB if unit == "GiB" else MIB) for value, unit in found)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("gpus", "changes"), STARTS)
def test_the_parts_make_what_the_plan_says(
    name: str, gpus: int, changes: dict[str, object]
) -> None:
    found = planned(with_quantization(find_model(name), "Q4_K_M"), gpus, **changes)
    steps = {step.title: step for step in explain(found)}
    assert all(step.formula and step.source for step in steps.values())
    assert len(steps) == len(explain(found)), "two steps have one title"
    for title, part in (
        ("Weights", "weights"),
        ("Compute buffers", "activations"),
        ("Cache", "kv_cache"),
    ):
        component = found.component(part)
        assert component is not None
        assert size_in(steps[title].result) == component.num_bytes
        assert sum_of(steps[title].formula) == pytest.approx(
            component.num_bytes, rel=0.01, abs=0.05 * GIB
        )
    of_parts = [size_in(s.result) for title, s in steps.items() if title.startswith("Weights: ")]
    assert sum(of_parts) == pytest.approx(found.weights_bytes_per_gpu, rel=0.005, abs=0.03 * GIB)
    asked = size_in(steps["Asked of the GPU"].result)
    assert asked == sum(each.num_bytes for each in found.components)


def test_a_cache_is_layers_times_heads_times_bytes_times_tokens() -> None:
    model = with_quantization(find_model("meta-llama/Llama-3.1-8B-Instruct"), "Q4_K_M")
    steps = {s.title: s for s in explain(planned(model, 1, context=8192, key_type="q8_0"))}
    assert steps["Context"].formula.startswith("8,192 tokens of --ctx-size")
    step = steps["Cache: 32 layers of full attention"]
    assert step.formula == (
        "32 layers x 8 KV heads x (128 x 1.0625 bytes in q8_0 + 128 x 2 in f16) x 8,192 tokens"
    )
    assert size_in(step.result) == pytest.approx(32 * 8 * 128 * 3.0625 * 8192, rel=0.01)
    assert steps["KV bytes per token"].result == "100,352 bytes per token"


def test_of_layers_with_windows_and_states_no_token_adds_anything() -> None:
    model = with_quantization(find_model("openai/gpt-oss-20b"), "Q4_K_M")
    found = planned(model, 2)
    steps = {step.title: step for step in explain(found)}
    title = next(each for each in steps if "sliding-window" in each)
    assert "1,024 tokens of windows of 128" in steps[title].formula
    full = next(int(each.split()[1]) for each in steps if each.endswith("of full attention"))
    assert found.kv_bytes_per_token == full * 8 * 2 * 64 * 2


def test_the_size_of_a_file_scales_its_parts() -> None:
    model = with_gguf(
        find_model("meta-llama/Llama-3.1-8B-Instruct"), "a-Q4_K_M.gguf", 4_950_000_000
    )
    steps = {step.title: step for step in explain(planned(model, 1))}
    assert "x 1.0076, by the size of the file" in steps["Weights: attention"].formula


def test_the_widest_moment_of_a_start_with_weights_elsewhere_fetches_them() -> None:
    model = with_quantization(find_model("Qwen/Qwen3-30B-A3B"), "Q4_K_M")
    steps = {step.title: step for step in explain(planned(model, 1, gpu_layers=20))}
    assert "weights fetched from main memory" in steps["Compute buffers"].formula
