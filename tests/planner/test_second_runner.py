"""vLLM's second model runner: printed figures of starts that have it, and who has it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exo_inference.planner import EngineParameters, find_gpu, find_model, plan
from exo_inference.planner.verdict import Plan

GIB = 2**30


def planned(model: str, gpu: str, version: str, **flags: object) -> Plan:
    parameters = EngineParameters.of(dict(flags), engine="vllm", engine_version=version)
    return plan(find_model(model), find_gpu(gpu), 1, parameters)


def test_a_dense_model_of_0_24_has_the_cache_that_was_printed() -> None:
    """6.03 GiB, 43,888 tokens (kthxo/distserving, logs/2026-07-02_EXPERIMENT_LOG_yunuikang.md, section 10-4)."""
    result = planned("Qwen/Qwen3-8B", "RTX 4090", "0.24.0", max_model_len=32768)
    assert result.available_kv_bytes_per_gpu / GIB == pytest.approx(6.03, rel=0.03)


def test_two_ranks_of_0_24_have_the_blocks_that_were_printed() -> None:
    """28,559 blocks of 16 (kthxo/distserving, logs/2026-07-16_TP2_RESULTS_yunuikang.md)."""
    gpu = replace(find_gpu("RTX PRO 6000 Blackwell Max-Q"), reported_bytes=int(94.97 * GIB))
    parameters = EngineParameters.of(
        {"tensor_parallel_size": 2, "max_model_len": 32768}, engine="vllm", engine_version="0.24.0"
    )
    result = plan(find_model("Qwen/Qwen3-32B"), gpu, 2, parameters)
    assert result.num_kv_blocks == pytest.approx(28_559, rel=0.005)


def _takes_graphs_from_the_budget(result: Plan) -> bool:
    graphs = result.component("cuda_graphs")
    assert graphs is not None
    return graphs.is_in_budget


@pytest.mark.parametrize(
    ("model", "version", "has_second"),
    [
        ("Qwen/Qwen3-8B", "0.23.0", False),
        ("Qwen/Qwen3-8B", "0.24.0", True),
        ("Qwen/Qwen2.5-7B-Instruct", "0.24.0", False),
        ("Qwen/Qwen2.5-7B-Instruct", "0.25.1", True),
        ("Qwen/Qwen3-30B-A3B", "0.25.1", False),
        ("Qwen/Qwen3.6-27B", "0.28.0", False),
        ("deepseek-ai/DeepSeek-V4-Flash", "0.27.1", False),
        ("deepseek-ai/DeepSeek-V4-Flash", "0.28.0", True),
        ("Qwen/Qwen3-8B", "0.29.0", False),
    ],
)
def test_who_starts_in_the_second_runner(model: str, version: str, has_second: bool) -> None:
    result = planned(model, "H200", version)
    assert _takes_graphs_from_the_budget(result) is not has_second


@pytest.mark.parametrize(("method", "has_second"), [("ngram", False), ("eagle3", True)])
def test_a_way_of_drafting_that_it_lacks_keeps_the_first_runner(
    method: str, has_second: bool
) -> None:
    drafting = {"method": method, "num_speculative_tokens": 2, "model": "me/Qwen3-8B-eagle3"}
    result = planned("Qwen/Qwen3-8B", "H200", "0.25.1", speculative_config=drafting)
    assert _takes_graphs_from_the_budget(result) is not has_second


@pytest.mark.parametrize(
    ("version", "encodes"), [("0.24.0", True), ("0.25.1", False), ("0.27.1", True)]
)
def test_before_0_27_it_profiles_no_image(version: str, encodes: bool) -> None:
    result = planned("Qwen/Qwen2.5-VL-7B-Instruct", "H100", version)
    activations = result.component("activations")
    assert activations is not None
    assert ("the image encoder (0 MiB" not in activations.source) is encodes
