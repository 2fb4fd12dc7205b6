"""What SGLang's weights take beside the checkpoint: tables of rotary positions, and padding of experts."""

from __future__ import annotations

import pytest

from exo_inference.planner import EngineParameters, find_gpu, find_model, plan
from exo_inference.planner.engine_rules import rules_for
from exo_inference.planner.explain import explain
from exo_inference.planner.memory import rotary_bytes
from exo_inference.planner.static.segments import reserved_bytes

SGLANG = rules_for("sglang", "0.5.17")


@pytest.mark.parametrize(
    ("model", "positions", "width"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 131_072, 128),
        ("Qwen/Qwen2.5-VL-7B-Instruct", 128_000, 128),  # vLLM's are four times as long
        ("Qwen/Qwen3.5-9B", 262_144, 64),  # a quarter of a head of 256
        ("deepseek-ai/DeepSeek-R1", 163_840, 64),
    ],
)
def test_rotary_tables_are_in_float32_and_as_long_as_the_context(
    model: str, positions: int, width: int
) -> None:
    assert rotary_bytes(find_model(model), 2, SGLANG) == positions * width * 4


def test_vllms_tables_are_of_the_models_type() -> None:
    rules = rules_for("vllm", "0.33.0")
    assert rotary_bytes(find_model("Qwen/Qwen3.5-9B"), 2, rules) == 4 * 262_144 * 64 * 2
    assert rotary_bytes(find_model("Qwen/Qwen3-8B"), 2, rules) == 40_960 * 128 * 2


def test_the_table_is_explained_as_it_is_counted() -> None:
    parameters = EngineParameters(engine="sglang", engine_version="0.5.17")
    result = plan(find_model("Qwen/Qwen3-8B"), find_gpu("h100"), 1, parameters)
    (weights,) = (step for step in explain(result) if step.title == "Weights")
    assert "of rotary tables (5,242,880 x 4 bytes)" in weights.formula


@pytest.mark.parametrize(
    ("version", "gpu", "count", "hidden", "width"),
    [
        ("0.5.17", "b200", 1, 2944, 2944),
        ("0.5.12", "b200", 1, 3072, 3072),
        ("0.5.17", "rtx-pro-6000", 1, 2944, 2944),
        ("0.5.17", "a100-80gb", 1, 2880, 2880),
        ("0.5.17", "a100-80gb", 4, 2880, 4 * 768),  # 720 on each, in multiples of 64
    ],
)
def test_experts_in_mxfp4_are_padded_as_the_kernel_of_the_gpu_asks(
    version: str, gpu: str, count: int, hidden: int, width: int
) -> None:
    """gpt-oss-20b: 24 layers of 32 experts, three matrices of 2,880 x 2,880 each in 4.25 bits."""
    parameters = EngineParameters(engine="sglang", engine_version=version)
    result = plan(find_model("openai/gpt-oss-20b"), find_gpu(gpu), count, parameters)
    (step,) = (each for each in explain(result) if each.title == "Weights: routed experts")
    expected = 24 * 32 * 3 * hidden * width * 4.25 / 8 / count
    assert step.result == f"{expected / 2**30:.2f} GiB"


MIB = 2**20


@pytest.mark.parametrize(
    ("sizes", "segments"),
    [
        ([0.001] * 3, [2]),  # three norms
        ([8, 4, 6], [20]),
        ([8, 4, 12, 6], [20, 12]),  # 12 MiB have their own pages
        ([9, 9, 9], [20, 20]),  # the third does not fit beside two
        ([52.5], [54]),
        ([52.5, 1.5], [54]),  # more than 1 MiB is split off, and taken by the next
        ([53.5, 0.5], [54, 2]),  # less is not, and small tensors have segments of their own
    ],
)
def test_tensors_lie_in_segments_of_the_allocator(sizes: list[float], segments: list[int]) -> None:
    assert reserved_bytes(size * MIB for size in sizes) == sum(segments) * MIB


@pytest.mark.parametrize(
    ("name", "gpu", "count", "printed"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", "H100 NVL", 1, 0.98),
        ("Qwen/Qwen2.5-1.5B-Instruct", "L40S", 1, 3.03),
        ("Qwen/Qwen3-8B", "B300", 1, 15.28),
        ("meta-llama/Llama-3.1-8B-Instruct", "RTX 3090", 1, 15.02),
        ("Qwen/Qwen3-30B-A3B", "RTX PRO 6000", 1, 56.89),
        ("Qwen/Qwen3-30B-A3B-FP8", "H100", 1, 29.15),
        ("Qwen/Qwen3.5-9B", "RTX 4090", 2, 8.85),
    ],
)
def test_weights_are_what_sglang_printed(name: str, gpu: str, count: int, printed: float) -> None:
    """Its "mem usage" of loading; sources in docs/benchmarks/planner-sglang-starts.json."""
    parameters = EngineParameters(engine="sglang", engine_version="0.5.17")
    found = plan(find_model(name), find_gpu(gpu), count, parameters)
    assert found.weights_bytes_per_gpu / 2**30 == pytest.approx(printed, abs=0.011)
