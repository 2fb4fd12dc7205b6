"""Blocks and groups: figures that vLLM printed, reproduced from the memory it printed."""

from __future__ import annotations

import pytest

from exo_inference.planner import EngineParameters, Plan, find_gpu, find_model, plan
from tests.planner.flags import settings_of

GIB = 2**30


def plan_with_memory(name: str, gib: float, version: str, count: int, *flags: str) -> Plan:
    """Plan with exactly this much KV memory on a GPU that is large enough for anything."""
    gpu = find_gpu("H200").with_memory(4096 * GIB)
    items = [f"--kv-cache-memory-bytes={int(gib * GIB)}", *flags]
    return plan(find_model(name), gpu, count, settings_of(items, engine_version=version))


@pytest.mark.parametrize(
    ("name", "gib", "version", "count", "flags", "tokens", "concurrency"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 4.75, "0.11.0", 1, ("--max-model-len=32000",), 38912, 1.22),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", 8.6789, "0.10.2", 1, ("--max-model-len=6144",), 94784, 15.43),
        ("Qwen/Qwen3-235B-A22B-FP8", 27.96, "0.12.0", 4, ("--max-model-len=32768",), 623_808, 19.04),
        ("openai/gpt-oss-20b", 12.94, "0.13.0", 1,
         ("--max-model-len=8192", "--max-num-batched-tokens=2048", "--max-num-seqs=256"), 282_656, 54.45),
        ("google/gemma-3-1b-it", 25.39, "0.13.0", 1,
         ("--max-model-len=2048", "--max-num-batched-tokens=8192", "--max-num-seqs=256"), 950_832, 461.2),
        ("google/gemma-3-27b-it", 109.857, "0.11.0", 1,
         ("--max-model-len=4096", "--max-num-batched-tokens=8192", "--max-num-seqs=1024"), 205_696, 50.05),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 44.59, "0.10.2", 2, ("--max-model-len=262144",), 973_760, 14.77),
        ("google/gemma-4-26B-A4B-it", 83.89, "0.25.1", 1,
         ("--max-model-len=262144", "--max-num-seqs=32", "--max-num-batched-tokens=2496"), 3_875_400, 14.78),
        ("openai/gpt-oss-120b", 16.57, "0.26.0", 1,  # two steps in flight (vllm-project/vllm#47728)
         ("--max-model-len=131072", "--max-num-seqs=8", "--max-num-batched-tokens=8192", "--kv-cache-dtype=fp8"),
         857_331, 6.54),
        ("Qwen/Qwen3.8-27B", 80.17, "0.25.1", 1,
         ("--max-model-len=262144", "--max-num-seqs=32",
          '--speculative-config={"method":"mtp","num_speculative_tokens":3}'), 1_191_213, 4.54),
        ("Qwen/Qwen3.6-35B-A3B", 74.22, "0.25.1", 1,
         ("--max-model-len=262144", "--max-num-seqs=32",
          '--speculative-config={"method":"mtp","num_speculative_tokens":3}'), 3_366_051, 12.84),
        ("Qwen/Qwen3.6-27B", 11.75, "0.20.2", 1,
         ("--max-model-len=131072", "--max-num-seqs=2", "--kv-cache-dtype=fp8", "--max-num-batched-tokens=2048",
          "--enable-prefix-caching", "--language-model-only",
          '--speculative-config={"method":"mtp","num_speculative_tokens":3}'), 305_384, 2.33),
        ("moonshotai/Kimi-K2-Thinking", 46.80, "0.11.1", 8, (), 715_072, None),
        ("moonshotai/Kimi-K2-Thinking", 46.80, "0.11.1", 8,
         ("--decode-context-parallel-size=8",), 5_720_576, None),
    ],
    ids=lambda value: value if isinstance(value, str) and "/" in value else None,
)  # fmt: skip
def test_printed_capacity_is_reproduced(
    name: str, gib: float, version: str, count: int, flags: tuple[str, ...], tokens: int,
    concurrency: float | None,
) -> None:  # fmt: skip
    result = plan_with_memory(name, gib, version, count, *flags)
    assert result.kv_capacity_tokens == pytest.approx(tokens, rel=0.002)
    if concurrency is not None:
        assert result.max_concurrency == pytest.approx(concurrency, rel=0.002, abs=0.006)


@pytest.mark.parametrize(
    ("gib", "flags", "tokens"),
    [
        (5.23, ("--max-num-seqs=4",), 264_571),
        (5.88, ("--max-num-seqs=2",), 297_339),
        (5.72, ("--max-num-seqs=2", '--speculative-config={"method":"mtp","num_speculative_tokens":3}'), 200_248),
    ],
)  # fmt: skip
def test_hybrids_cache_prefixes_by_default_since_0_28(
    gib: float, flags: tuple[str, ...], tokens: int
) -> None:
    """As github:zji996/vllm-qwen38-27b printed; vllm-project/vllm#50991."""
    flags = ("--max-model-len=32768", "--language-model-only", *flags)
    name, found = "unsloth/Qwen3.8-27B-NVFP4", {}
    for version, more in (
        ("0.28.0", ()), ("0.27.1", ()), ("0.27.1", ("--enable-prefix-caching",)),
        ("0.28.0", ("--no-enable-prefix-caching",)),
    ):  # fmt: skip
        result = plan_with_memory(name, gib, version, 2, *flags, *more)
        found[version, more] = result.kv_capacity_tokens
    assert found["0.28.0", ()] == pytest.approx(tokens, rel=0.002)
    assert found["0.27.1", ("--enable-prefix-caching",)] == pytest.approx(tokens, rel=0.1)
    off = found["0.28.0", ("--no-enable-prefix-caching",)]
    assert found["0.27.1", ()] == pytest.approx(off, rel=0.1)
    assert off > 1.05 * found["0.28.0", ()]


def test_heads_replicate_once_there_are_more_gpus_than_heads() -> None:
    at = {
        count: plan_with_memory("Qwen/Qwen3-235B-A22B", 8, "0.12.0", count).kv_bytes_per_token
        for count in (1, 2, 4, 8)
    }
    assert at == {1: 192_512, 2: 96_256, 4: 48_128, 8: 48_128}


def test_a_latent_is_on_every_gpu_in_full() -> None:
    at = {
        n: plan_with_memory("deepseek-ai/DeepSeek-V3", 8, "0.12.0", n).kv_bytes_per_token
        for n in (1, 8)
    }
    assert at == {1: 70_272, 8: 70_272}


def test_v0_padded_the_latent() -> None:
    assert plan_with_memory("deepseek-ai/DeepSeek-V3", 8, "0.7.3", 8).kv_bytes_per_token == 78_080


def test_a_refusal_of_deepseek_v4_is_reproduced() -> None:
    """With vLLM 0.22 on two GH200: 6.66 GiB for 30,000 tokens, and 13,528 tokens from 5.44 (issue 44376)."""
    name = "deepseek-ai/DeepSeek-V4-Flash"
    flags = ("--kv-cache-dtype=fp8", "--max-model-len=30000", "--max-num-batched-tokens=16384")
    result = plan_with_memory(name, 5.44, "0.22.0", 2, *flags)
    assert round(result.needed_kv_bytes_per_gpu / GIB, 2) == 6.66
    assert result.largest_max_model_len == pytest.approx(13_528, abs=16)


def test_deepseek_v4_takes_blocks_in_five_groups() -> None:
    """The groups of V4-Pro as computed with vLLM 0.27's own planner: 1,435,968 bytes a block."""
    result = plan_with_memory(
        "deepseek-ai/DeepSeek-V4-Pro", 10, "0.27.1", 8, "--kv-cache-dtype=fp8"
    )
    assert result.num_kv_blocks == 7477
    assert result.kv_block_size == 256


@pytest.mark.parametrize(("gpu", "version", "tokens"), [
    ("MI300X", "0.27.1", 8192), ("MI300X", "0.28.0", 16384), ("H200", "0.28.0", 8192),
])  # fmt: skip
def test_steps_are_longer_on_large_gpus_from_0_28_on(gpu: str, version: str, tokens: int) -> None:
    """A start with 0.31.1rc1.dev23 on an MI300X compiled steps of up to 16,384 tokens (github.com/xbill9/gemma4-dev)."""
    asked = EngineParameters.of({}, engine_version=version)
    result = plan(find_model("google/gemma-4-E2B-it"), find_gpu(gpu), 1, asked)
    assert result.max_num_batched_tokens == tokens


def test_fp8_halves_the_cache_of_a_token() -> None:
    name = "meta-llama/Llama-3.1-8B-Instruct"
    assert plan_with_memory(name, 8, "0.33.0", 1).kv_bytes_per_token == 131_072
    half = plan_with_memory(name, 8, "0.33.0", 1, "--kv-cache-dtype=fp8")
    assert half.kv_bytes_per_token == 65_536


def test_the_longest_context_is_what_fits_to_the_block() -> None:
    name = "Qwen/Qwen2.5-32B-Instruct"
    result = plan_with_memory(name, 0.58, "0.26.0", 1)
    assert result.largest_max_model_len == int(0.58 * GIB) // (16 * 262_144) * 16
    again = plan_with_memory(
        name, 0.58, "0.26.0", 1, f"--max-model-len={result.largest_max_model_len}"
    )
    assert again.max_concurrency >= 1
    more = plan_with_memory(
        name, 0.58, "0.26.0", 1, f"--max-model-len={result.largest_max_model_len + 1}"
    )
    assert more.max_concurrency < 1


def test_a_cache_quantized_per_token_and_head_has_a_scale_for_each() -> None:
    """VLLM 0.24.0 printed 71,872 tokens for 3.96 GiB of Qwen3-0.6B, and 37,056 in 16 bit."""
    model, sizes = find_model("Qwen/Qwen3-0.6B"), {}
    for kind in ("auto", "int8_per_token_head", "int8"):
        flags = EngineParameters(engine_version="0.24.0", kv_cache_dtype=kind, max_model_len=2048)
        sizes[kind] = plan(model, find_gpu("L4"), 1, flags).kv_bytes_per_token
    assert sizes["int8"] == sizes["auto"] / 2
    assert sizes["int8_per_token_head"] == sizes["int8"] + 28 * 8 * 2 * 4
