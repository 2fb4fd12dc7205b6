"""Memory beside the cache: allocator pages, padded experts, the sampler."""

from __future__ import annotations

import pytest

from exo_inference.planner import EngineParameters, Plan, Verdict, find_gpu, find_model, plan
from exo_inference.planner.engine_rules import rules_for
from exo_inference.planner.memory import Ranks, page_rest, unstored_bytes
from exo_inference.planner.overheads import (
    ALONE,
    BESIDE_OF_STATES,
    doublings,
    load_overheads,
    measured,
    outside_component,
)
from tests.planner.flags import settings_of

GIB, MIB = 2**30, 2**20


def planned(name: str, gpu: str, count: int = 1, **flags: object) -> Plan:
    return plan(find_model(name), find_gpu(gpu), count, EngineParameters(**flags))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "rest"),
    [(9 * MIB, 0), (31.5 * MIB, 0.5 * MIB), (259 * MIB, 1 * MIB), (24.5 * MIB, 0), (224 * MIB, 0)],
)
def test_a_page_is_not_split_for_a_rest_of_at_most_1_mib(size: float, rest: float) -> None:
    assert page_rest(size) == rest


@pytest.mark.parametrize(
    ("name", "gpu", "count", "version", "printed"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "T4", 1, "0.10.1", 14.2488),
        ("Qwen/Qwen2-7B-Instruct", "A100-80GB", 2, "0.10.1", 7.1217),
        ("Qwen/Qwen2.5-32B-Instruct", "RTX 3090", 4, "0.18.1", 15.39),
        ("openai/gpt-oss-120b", "A100-80GB", 4, "0.10.1", 17.2217),
        ("openai/gpt-oss-120b", "H100", 1, "0.14.1", 64.38),
        ("google/gemma-3-4b-it", "A100-80GB", 1, "0.11.0", 8.58),
        ("google/gemma-3-27b-it", "H100", 1, "0.11.0", 51.45),
        ("google/gemma-4-26B-A4B-it", "H100", 1, "0.19.0", 48.50),
    ],
)
def test_weights_are_what_the_allocator_gives(
    name: str, gpu: str, count: int, version: str, printed: float
) -> None:
    """As vLLM printed them ("Model loading took"); sources in docs/benchmarks/planner-starts.json."""
    found = planned(name, gpu, count, engine_version=version, dtype="float16")
    assert found.weights_bytes_per_gpu / GIB == pytest.approx(printed, rel=0.001)


def test_layers_that_share_a_cache_have_rows_for_keys_and_values_in_vllm_alone() -> None:
    """Gemma 4 E4B: 18 layers of 42 take keys and values of others; gemma4.py has a `QKVParallelLinear` in each."""
    model = find_model("google/gemma-4-E4B-it")
    rows = sum(weight.num_elements for layer in model.layers for weight in layer.unstored)
    assert sum(bool(layer.unstored) for layer in model.layers) == 18
    assert unstored_bytes(model, Ranks(), 0, 2) == 2 * rows > 0
    assert unstored_bytes(find_model("google/gemma-3-4b-it"), Ranks(), 0, 2) == 0
    assert rules_for("vllm", "").fills_qkv
    assert not rules_for("sglang", "").fills_qkv


@pytest.mark.parametrize(
    ("version", "has_flashinfer", "logit_bytes"),
    [
        ("0.13.0", False, 38), ("0.13.0", True, 14), ("0.23.0", False, 14), ("0.33.0", False, 14),
        ("0.25.0", False, 6),  # the second model runner: the logits, and a copy in float32
    ],
)  # fmt: skip
def test_a_sampler_that_does_not_sort_holds_about_a_third(
    version: str, has_flashinfer: bool, logit_bytes: int
) -> None:
    found = planned(
        "Qwen/Qwen3-8B", "H100", engine_version=version, has_flashinfer_sampler=has_flashinfer
    )
    part = found.component("activations")
    assert part is not None
    expected = max(logit_bytes * 1024 * 151_936, 0)
    assert part.num_bytes == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    ("gpu", "count", "doubled"),
    [
        ("H100", 2, 1), ("H100", 8, 3), ("H200", 16, 3),
        ("A100-80GB", 8, 0),  # its switch does not multicast
        ("RTX 3090", 2, 0),  # a bridge may join two, and seldom does
        ("RTX 5090", 4, 0), ("H100", 1, 0),
    ],
)  # fmt: skip
def test_buffers_for_multicast_grow_with_ranks_on_a_switch(
    gpu: str, count: int, doubled: int
) -> None:
    assert doublings(find_model("Qwen/Qwen3-32B"), Ranks(tensor=count), find_gpu(gpu)) == doubled
    outside = outside_component(
        find_model("Qwen/Qwen3-8B"), Ranks(tensor=count), rules_for("vllm", "0.24.0"), find_gpu(gpu)
    )
    assert (outside.num_bytes > 0.5 * GIB) is (doubled > 0)


def test_what_one_start_has_set_may_be_as_little_as_a_single_gpu_has() -> None:
    single = [name for name, each in load_overheads().items() if each.starts == 1]
    assert single
    for name in single:
        assert measured(name).low <= measured(ALONE).low < load_overheads()[name].low
        assert measured(name).value == load_overheads()[name].value


def test_deepseek_v4_left_as_much_as_it_did_on_hopper_without_graphs() -> None:
    """VLLM 0.23.0 printed 32.08 GiB on two H200 NVL (github:uv-xiao/pto-cu, its 256k health probe)."""
    parameters = EngineParameters.of(
        {"max_model_len": 262144, "tensor_parallel_size": 2, "kv_cache_dtype": "fp8",
         "gpu_memory_utilization": 0.78, "enforce_eager": True},
        engine_version="0.23.0",
    )  # fmt: skip
    result = plan(find_model("deepseek-ai/DeepSeek-V4-Flash"), find_gpu("H200 NVL"), 2, parameters)
    assert result.available_kv_bytes_low < 32.08 * 2**30 < result.available_kv_bytes_high


def test_graphs_outside_the_budget_that_may_not_fit_make_a_plan_tight() -> None:
    """Vllm 0.19.0 ran out of memory there: raw-qwen35-9b-3090x4-oom of docs/benchmarks/planner-starts.json."""
    found = {
        version: plan(
            find_model("Qwen/Qwen3.5-9B"), find_gpu("RTX 3090"), 4,
            EngineParameters(engine_version=version, gpu_memory_utilization=0.9, max_model_len=8192),
        )
        for version in ("0.19.0", "0.20.0")
    }  # fmt: skip
    problem = next(each for each in found["0.19.0"].problems if each.code == "cuda-graphs")
    assert (found["0.19.0"].verdict, problem.refuses) == (Verdict.TIGHT, False)
    assert "lower --gpu-memory-utilization" in problem.detail
    assert found["0.20.0"].verdict is Verdict.FITS  # they come out of the budget since


def test_graphs_of_a_model_with_states_have_a_part_beside_their_sizes() -> None:
    """What vLLM subtracts is the first capture and so much for each further one (`profile_cudagraph_memory`)."""
    inside, outside = (
        plan(
            find_model("Qwen/Qwen3.6-27B"), find_gpu("H100"), 1,
            EngineParameters(engine_version=version, max_model_len=8192, max_num_seqs=16),
        ).component("cuda_graphs")
        for version in ("0.20.0", "0.19.0")
    )  # fmt: skip
    assert inside is not None
    assert outside is not None
    beside = load_overheads()[BESIDE_OF_STATES]
    assert inside.num_bytes - outside.num_bytes == pytest.approx(beside.value * GIB, abs=MIB)
    assert inside.high - inside.num_bytes == pytest.approx(
        (beside.high - beside.value) * GIB, abs=MIB
    )
    assert inside.low >= 0
    dense = plan(
        find_model("Qwen/Qwen3-8B"), find_gpu("H100"), 1, EngineParameters(engine_version="0.23.0")
    )
    graphs = dense.component("cuda_graphs")
    assert graphs is not None
    assert graphs.high - graphs.num_bytes < 0.1 * GIB


def test_dense_graphs_outside_the_budget_have_room() -> None:
    result = plan(
        find_model("Qwen/Qwen3-8B"), find_gpu("L40S"), 1, EngineParameters(engine_version="0.19.0")
    )
    assert result.verdict is Verdict.FITS


@pytest.mark.parametrize(
    ("name", "gpu", "count", "flags"),
    [
        ("deepseek-ai/DeepSeek-V3", "H200", 16, ("--data-parallel-size=16", "--enable-expert-parallel")),
        ("Qwen/Qwen3-30B-A3B", "H100", 8, ("--data-parallel-size=8", "--enable-expert-parallel")),
        ("Qwen/Qwen2.5-72B-Instruct-AWQ", "H100", 1, ("--enable-sleep-mode",)),
    ],
)  # fmt: skip
def test_no_part_of_the_memory_may_be_less_than_nothing(
    name: str, gpu: str, count: int, flags: tuple[str, ...]
) -> None:
    result = plan(
        find_model(name), find_gpu(gpu), count, settings_of(flags, engine_version="0.20.0")
    )
    assert result.components
    assert all(0 <= each.low <= each.num_bytes <= each.high for each in result.components)
    assert all(each.spread_down >= 0 for each in result.components)
