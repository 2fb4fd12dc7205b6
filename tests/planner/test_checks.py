"""What an engine refuses apart from memory: each problem names the flag, what was found and one next step."""

from __future__ import annotations

from typing import Any

import pytest

from exo_inference.planner import (
    EngineParameters,
    Plan,
    Verdict,
    advise,
    find_gpu,
    find_model,
    plan,
    read_architecture,
)
from exo_inference.planner.catalog_models import load_models
from tests.planner.flags import settings_of

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
AWQ = "Qwen/Qwen3-8B-AWQ"


def plan_named(name: str, gpu: str, *flags: str, count: int = 1) -> Plan:
    return plan(find_model(name), find_gpu(gpu), count, settings_of(flags))


@pytest.mark.parametrize(
    ("name", "flags", "code", "found", "step"),
    [
        (LLAMA, ("--block-size=17",), "block-size", "is 17", "set --block-size=32"),
        (LLAMA, ("--block-size=8",), "block-size", "is 8", "set --block-size=16"),
        (LLAMA, ("--no-enable-chunked-prefill", "--max-num-batched-tokens=4096", "--max-model-len=8192"),
         "max-num-batched-tokens", "is 4096", "set --max-num-batched-tokens=8192"),
        (LLAMA, ("--no-enable-chunked-prefill", "--max-num-batched-tokens=4096"),
         "max-num-batched-tokens", "expected at least the 131072", "set --max-num-batched-tokens=131072"),
        (LLAMA, ("--max-num-batched-tokens=100", "--max-num-seqs=200"),
         "max-num-batched-tokens", "is 100", "set --max-num-batched-tokens=200 or more"),
        (LLAMA, ("--max-model-len=200000",), "max-model-len", "is 200000", "set --max-model-len=131072 or less"),
        (LLAMA, ("--quantization=awq",), "quantization", "is awq", "leave the flag out"),
        (LLAMA, ("--quantization=gptq_marlin",), "quantization", "is gptq_marlin", "leave the flag out"),
        (AWQ, ("--quantization=gptq",), "quantization", "quantized by awq", "leave the flag out"),
        (AWQ, ("--quantization=fp8",), "quantization", "quantized by awq", "leave the flag out"),
    ],
)  # fmt: skip
def test_known_start_failures_are_refused_with_a_next_step(
    name: str, flags: tuple[str, ...], code: str, found: str, step: str
) -> None:
    result = plan_named(name, "H100", *flags)
    assert result.verdict is Verdict.REFUSED
    details = [problem.detail for problem in result.problems if problem.code == code]
    assert len(details) == 1
    assert found in details[0]
    assert step in details[0]


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        (LLAMA, ("--block-size=32",)),
        (LLAMA, ("--no-enable-chunked-prefill", "--max-model-len=8192")),
        (LLAMA, ("--quantization=fp8",)),
        (LLAMA, ("--quantization=fp8_per_block",)),
        (AWQ, ("--quantization=awq_marlin",)),
        ("Qwen/Qwen3-8B-FP8", ("--quantization=fp8",)),
    ],
)
def test_what_starts_is_not_refused(name: str, flags: tuple[str, ...]) -> None:
    assert plan_named(name, "H100", *flags).verdict is Verdict.FITS


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "modelopt", "quant_algo": "INT8", "kv_cache_quant_algo": "FP8"},
        {
            "quant_method": "compressed-tensors",
            "kv_cache_scheme": {"num_bits": 8, "type": "float"},
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}},
        },
    ],
    ids=["modelopt", "compressed-tensors"],
)  # fmt: skip
def test_an_fp8_cache_of_the_checkpoint_needs_the_same_gpu_as_the_flag(
    quantization: dict[str, object],
) -> None:
    config = {**load_models()["Qwen/Qwen3-0.6B"]["config"], "quantization_config": quantization}
    model = read_architecture(config, name="own")
    asked = plan(model, find_gpu("T4"), 1, EngineParameters())
    flag = plan(
        find_model("Qwen/Qwen3-0.6B"), find_gpu("T4"), 1, EngineParameters(kv_cache_dtype="fp8")
    )
    for result in (asked, flag):
        assert "kv-cache-dtype" in {p.code for p in result.problems if p.refuses}
    detail = next(p.detail for p in asked.problems if p.code == "kv-cache-dtype")
    assert "checkpoint" in detail
    assert "--kv-cache-dtype=float16" in detail
    for gpu, kv in (("T4", "float16"), ("A100", "auto")):
        result = plan(model, find_gpu(gpu), 1, EngineParameters(kv_cache_dtype=kv))
        assert "kv-cache-dtype" not in {p.code for p in result.problems}


def test_longrope_may_be_asked_for_more_than_an_engine_takes_by_itself() -> None:
    """Phi-3.5: 131,072 positions, of which vLLM takes 4,096 without --max-model-len."""
    model, gpu = find_model("microsoft/Phi-3.5-mini-instruct"), find_gpu("h100")
    assert plan(model, gpu, 1, EngineParameters()).max_model_len == 4096
    for release, length in (("0.8.5", 131_072), ("0.11.0", 131_072), ("0.11.1", 4096)):
        found = plan(model, gpu, 1, EngineParameters(engine_version=release))
        assert found.max_model_len == length  # vllm-project/vllm#27431
    longer = plan(model, gpu, 1, EngineParameters(max_model_len=100_000))
    assert (longer.problems, longer.max_model_len) == ((), 100_000)
    assert longer.largest_max_model_len == 100_000
    (problem,) = plan(model, gpu, 1, EngineParameters(max_model_len=131_073)).problems
    assert "the model allows 131072" in problem.detail


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8192},
        {"rope_type": "linear", "factor": 0.5},
    ],
)
def test_other_scalings_allow_no_more_than_what_they_come_to(scaling: dict[str, Any]) -> None:
    """As vLLM: `max_position_embeddings` does not count where the scaling says less."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "vocab_size": 32000,
        "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 8192,
        "max_position_embeddings": 32768, "rope_scaling": scaling,
    }  # fmt: skip
    model, gpu = read_architecture(config), find_gpu("h100")
    assert plan(model, gpu, 1, EngineParameters(max_model_len=16384)).problems == ()
    (problem,) = plan(model, gpu, 1, EngineParameters(max_model_len=16385)).problems
    assert "the model allows 16384" in problem.detail


@pytest.mark.parametrize(("engine", "title"), [("vllm", "vLLM"), ("exo", "exo-engine")])
def test_a_gpu_before_volta_is_refused(engine: str, title: str) -> None:
    flags = EngineParameters(engine=engine, max_model_len=4096)
    found = plan(find_model("Qwen/Qwen3-0.6B"), find_gpu("P100"), 1, flags)
    assert found.verdict == Verdict.REFUSED
    assert f"{title} needs compute capability 7.0, NVIDIA Tesla P100" in found.problems[0].detail


@pytest.mark.parametrize("size", ["1b", "4b", "12b", "27b"])
def test_gemma_3_has_the_length_of_its_config_whose_stretch_is_in_it_already(size: str) -> None:
    name, length = f"google/gemma-3-{size}-it", 32768 if size == "1b" else 131072
    assert plan_named(name, "H200").max_model_len == length
    assert plan_named(name, "H200").verdict is Verdict.FITS
    longer = plan_named(name, "H200", f"--max-model-len={length + 1}")
    assert [each.code for each in longer.problems] == ["max-model-len"]
    ways = advise(find_model(name), find_gpu("A100-80GB"), 1, settings_of(()))
    assert all(each.plan.max_model_len <= length for each in ways)


FLASH = "deepseek-ai/DeepSeek-V4-Flash"


@pytest.mark.parametrize("flags", [(), ("--kv-cache-dtype=auto",), ("--kv-cache-dtype=bfloat16",)])
def test_compressed_attention_on_hopper_is_refused_without_a_cache_in_fp8(
    flags: tuple[str, ...],
) -> None:
    result = plan_named(FLASH, "H200", *flags, count=2)
    assert result.verdict is Verdict.REFUSED
    assert [each.code for each in result.problems if each.refuses] == ["kv-cache-dtype"]
    assert result.problems[0].detail.endswith("set --kv-cache-dtype=fp8, as the model's recipes do")
    ways = advise(find_model(FLASH), find_gpu("H200"), 2, result.parameters)
    assert ways[0].flags == ("--kv-cache-dtype=fp8",)
    assert ways[0].plan.verdict is Verdict.FITS


@pytest.mark.parametrize("gpu", ["B200", "B300"])
def test_compressed_attention_on_other_gpus_has_no_word_on_the_cache(gpu: str) -> None:
    assert plan_named(FLASH, gpu, count=2).problems == ()
    assert plan_named(FLASH, "H200", "--kv-cache-dtype=fp8", count=2).problems == ()
