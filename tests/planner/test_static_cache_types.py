"""Number types of SGLang's cache, by release, model and GPU."""

from __future__ import annotations

import pytest

from exo_inference.planner import EngineParameters, Plan, Verdict, find_gpu, find_model, plan
from exo_inference.planner.explain import explain

LLAMA, SPARSE = "meta-llama/Llama-3.1-8B-Instruct", "deepseek-ai/DeepSeek-V3.2"


def planned(model: str, gpu: str, kind: str | None = None, version: str = "0.5.17") -> Plan:
    count = 8 if model in (SPARSE, "zai-org/GLM-5-FP8") else 1
    parameters = EngineParameters.of(
        {"kv_cache_dtype": kind}, engine="sglang", engine_version=version
    )
    return plan(find_model(model), find_gpu(gpu), count, parameters)


@pytest.mark.parametrize(
    ("model", "gpu", "kind", "version", "row"),
    [
        (SPARSE, "h200", None, "0.5.17", 1152),
        (SPARSE, "b200", None, "0.5.17", 576),  # TensorRT-LLM's kernels keep no scales
        (SPARSE, "b200", None, "0.5.3", 1152),
        (SPARSE, "b200", "bfloat16", "0.5.17", 1152),
        (SPARSE, "h200", "fp8_e4m3", "0.5.17", 656),
        (SPARSE, "h200", "fp8_e4m3", "0.5.16", 576),
        (SPARSE, "rtx-pro-6000", None, "0.5.17", 576),
        ("zai-org/GLM-5-FP8", "rtx-pro-6000", None, "0.5.17", 656),
    ],
)
def test_attention_over_an_index_has_rows_by_gpu_and_release(
    model: str, gpu: str, kind: str | None, version: str, row: int
) -> None:
    result = planned(model, gpu, kind, version)
    layers = len(find_model(model).layers)
    assert result.kv_bytes_per_token == layers * (row + 132)


def test_a_type_that_nobody_asked_for_is_told() -> None:
    words = "the cache is in fp8_e4m3, SGLang's default for this model and GPU"
    assert any(words in note for note in planned(SPARSE, "b200").notes)
    assert not any(words in note for note in planned(SPARSE, "h200").notes)
    assert not any(words in note for note in planned(SPARSE, "b200", "fp8_e4m3").notes)


def test_a_cache_in_four_bits_has_a_layer_in_eight_beside_it_since_0_5_16() -> None:
    result = planned(LLAMA, "b200", "nvfp4")
    assert result.kv_bytes_per_token == 131_072 / 2 * 0.5625 + 8 * 2 * 128
    (step,) = (each for each in explain(result) if each.title == "KV bytes per token")
    assert "2,048 in 8 bit, which prompts read" in step.formula


def test_blocks_of_eight_bits_have_their_scales() -> None:
    assert planned(LLAMA, "b200", "mxfp8").kv_bytes_per_token == 131_072 / 2 * (1 + 1 / 32)


@pytest.mark.parametrize(
    ("model", "gpu", "kind", "words"),
    [
        (LLAMA, "b200", "fp4_e2m1", "set --kv-cache-dtype=fp4_mx_block16"),
        (LLAMA, "h100", "mxfp8", "needs compute capability 10, NVIDIA H100"),
        (LLAMA, "h100", "nvfp4", "needs compute capability 10, NVIDIA H100"),
        (SPARSE, "h200", "fp8_e5m2", "expected bfloat16 or fp8_e4m3 for this model's attention"),
    ],
)
def test_types_that_are_not_taken_are_refused(model: str, gpu: str, kind: str, words: str) -> None:
    result = planned(model, gpu, kind)
    assert result.verdict is Verdict.REFUSED
    assert words in result.problems[0].detail
    assert planned(model, gpu, kind, "0.5.12").problems == () or kind != "fp4_e2m1"


def test_only_modelopts_checkpoints_say_what_the_cache_is() -> None:
    """The scheme of compressed tensors is read by vLLM alone."""
    laguna = find_model("poolside/Laguna-S-2.1-FP8")
    own = plan(laguna, find_gpu("h200"), 8, EngineParameters(engine="sglang"))
    assert own.basis is not None
    assert own.basis.setting.kv.dtype_bytes == 2
    others = plan(laguna, find_gpu("h200"), 8, EngineParameters())
    assert others.basis is not None
    assert others.basis.setting.kv.dtype_bytes == 1
    nemotron = planned("nvidia/Llama-3.1-70B-Instruct-FP8", "b200")
    assert nemotron.basis is not None
    assert nemotron.basis.setting.kv.dtype_bytes == 1
