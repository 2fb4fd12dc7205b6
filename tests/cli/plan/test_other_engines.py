"""Engines whose memory is not sized: the command says so, with a server and without one, and shows no figure."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Exo


@pytest.mark.parametrize("engine", ["tensorrt-llm", "tgi"])
@pytest.mark.parametrize("place", [(), ("--offline",)], ids=["server", "offline"])
def test_no_figure_is_shown_for_another_engine(
    exo: Exo, engine: str, place: tuple[str, ...]
) -> None:
    flags = (
        "--model-name", "Qwen/Qwen3-8B", "--gpu-type", "l40s", "--inference-engine", engine, "-O", "json",
    )  # fmt: skip
    told = json.loads(exo("ai", "deployment", "plan", *flags, *place).out)
    assert told["verdict"] == "unknown"
    assert any(note.startswith("not sized for ") for note in told["notes"])
    assert told["speed"] is None
    assert not told["kv_capacity_tokens"]
    assert not told["components"]


@pytest.mark.parametrize("place", [(), ("--offline",)], ids=["server", "offline"])
def test_the_cache_of_sglang_is_shown_without_a_speed(exo: Exo, place: tuple[str, ...]) -> None:
    flags = ("--model-name", "Qwen/Qwen3-8B", "--gpu-type", "l40s", "--inference-engine", "sglang")
    text = exo("ai", "deployment", "plan", *flags, *place).out
    assert text.startswith("Fits: Qwen/Qwen3-8B on 1 × NVIDIA L40S, SGLang ")
    assert "nor is SGLang's speed estimated" in " ".join(text.split())
    assert "tokens per second" not in text
    told = json.loads(exo("ai", "deployment", "plan", *flags, *place, "-O", "json").out)
    assert told["kv_capacity_tokens"] > 40_960
    assert told["speed"] is None


def test_what_holds_a_demand_is_not_said_where_no_speed_is_estimated(exo: Exo) -> None:
    demand = ("--for", "requests=20/s input=1000 output=300")
    result = exo(
        "ai", "deployment", "plan", "--model-name", "Qwen/Qwen3-8B", "--inference-engine", "sglang", *demand
    )  # fmt: skip
    assert result.code != 0
    assert "SGLang's speed is not estimated" in result.err


def test_a_comparison_has_no_columns_that_hold_nothing(exo: Exo) -> None:
    """A GPU that holds shorter requests alone is told apart from those that hold all."""
    flags = ("--model-name", "Qwen/Qwen3-8B", "--inference-engine", "sglang", "--offline")
    text = exo("ai", "deployment", "plan", *flags, "--compare=gpua5000,gpu3").out
    heads = text.splitlines()[1].split()
    assert heads == ["GPUs", "verdict", "longest", "at", "once", "USD/h"]
    words = " ".join(text.split())
    assert "speed is not estimated for SGLang 0.5.17" in words
    assert "TTFT" not in words
    assert "where longest is less, at once is of that length" in words
    alike = exo("ai", "deployment", "plan", *flags, "--compare=gpu3").out
    assert "where longest is less" not in alike


def test_a_tight_plan_of_sglang_says_why_it_may_not_start(exo: Exo) -> None:
    """A request that is longer than the cache is no such reason."""
    flags = (
        "--model-name",
        "Qwen/Qwen3-8B",
        "--gpu-type",
        "gpua5000",
        "--inference-engine",
        "sglang",
        "--offline",
    )
    asked = ("--inference-engine-params", "--mem-fraction-static=0.93 --context-length=40960")
    result = exo("ai", "deployment", "plan", *flags, *asked)
    assert result.out.startswith("Tight: ")
    assert "needs 5.6" not in result.out
    assert "It may not start: 1." in result.err
    assert "steps and graphs may run out of memory" in result.err


@pytest.mark.parametrize("place", [(), ("--offline",)], ids=["server", "offline"])
def test_the_memory_of_llama_cpp_is_shown_without_a_speed(exo: Exo, place: tuple[str, ...]) -> None:
    flags = (
        "--model-name", "Qwen/Qwen3-8B-Q4_K_M-GGUF", "--gpu-type", "l40s", "--inference-engine", "llama-cpp", *place,
    )  # fmt: skip
    text = exo("ai", "deployment", "plan", *flags).out
    assert text.startswith("Fits: Qwen/Qwen3-8B-Q4_K_M-GGUF on 1 × NVIDIA L40S, llama.cpp b")
    words = " ".join(text.split())
    assert "llama.cpp's speed is not estimated" in words
    assert "requests share the cache of 40,960 tokens" in words
    assert "weights" in words
    assert "holds 40,960 tokens" in words
    told = json.loads(exo("ai", "deployment", "plan", *flags, "-O", "json").out)
    assert (told["kv_capacity_tokens"], told["speed"]) == (40_960, None)


def test_layers_in_main_memory_are_said_to_be_slow(exo: Exo) -> None:
    result = exo(
        "ai", "deployment", "plan", "--model-name", "meta-llama/Llama-3.3-70B-Instruct-Q4_K_M-GGUF",
        "--gpu-type", "gpua5000", "--inference-engine", "llama-cpp", "--offline",
        "--inference-engine-params", "--gpu-layers auto",
    )  # fmt: skip
    assert result.out.startswith("Tight: ")
    assert "It is slow: " in result.err
    assert "It may not start" not in result.err


def test_what_does_not_fit_llama_cpp_has_ways_out(exo: Exo) -> None:
    result = exo(
        "ai", "deployment", "plan", "--model-name", "Qwen/Qwen3-8B-Q4_K_M-GGUF", "--gpu-type", "gpu3080ti",
        "--inference-engine", "llama-cpp", "--offline", "--inference-engine-params", "--ctx-size 131072",
    )  # fmt: skip
    assert result.code != 0
    assert result.out.startswith("Does not fit: ")
    words = " ".join(result.out.split())
    assert 'llama-server ends with CUDA\'s "out of memory"' in words
    assert "--ctx-size 4" in words
    assert "asked of it" in words


def test_a_plan_that_never_fits_tells_no_length(exo: Exo) -> None:
    result = exo(
        "ai", "deployment", "plan", "--model-name", "meta-llama/Llama-3.3-70B-Instruct-Q4_K_M-GGUF",
        "--gpu-type", "gpu3080ti", "--inference-engine", "llama-cpp", "--offline",
    )  # fmt: skip
    assert result.out.startswith("Does not fit: ")
    assert "per token" in result.out
    assert "longest context" not in result.out
    assert "requests at once" not in result.out


@pytest.mark.parametrize(
    ("engine", "version", "verb"),
    [("llama-cpp", "b11243", "create"), ("vllm", "0.28.0", "create"), ("vllm", "0.99.0", "plan")],
)
def test_lines_to_paste_create_what_a_deployment_may_name(
    exo: Exo, engine: str, version: str, verb: str
) -> None:
    flags = {"llama-cpp": "--ctx-size 400000", "vllm": "--max-model-len=40960"}[engine]
    name = {"llama-cpp": "Qwen/Qwen3-14B-GGUF:Q8_0", "vllm": "Qwen/Qwen3-14B"}[engine]
    result = exo(
        "ai", "deployment", "plan", "--model-name", name, "--gpu-type", "gpu3080ti", "--offline",
        "--inference-engine", engine, "--inference-engine-version", version, "--inference-engine-params", flags,
    )  # fmt: skip
    lines = [line.split()[3] for line in result.out.splitlines() if "exo ai deployment" in line]
    assert set(lines) == {verb}


def test_without_a_type_of_a_gguf_file_no_line_creates_a_deployment(exo: Exo) -> None:
    argv = (
        "ai", "deployment", "plan", "--gpu-type", "gpua5000", "--inference-engine", "llama-cpp", "--offline",
        "--model-name",
    )  # fmt: skip
    bare = exo(*argv, "bartowski/Llama-3.3-70B-Instruct-GGUF").out
    assert "ai deployment create" not in bare
    assert "bartowski/Llama-3.3-70B-Instruct-GGUF:TYPE" in " ".join(bare.split())
    typed = exo(*argv, "bartowski/Llama-3.3-70B-Instruct-GGUF:q4_k_m").out
    assert "--model-name bartowski/Llama-3.3-70B-Instruct-GGUF:q4_k_m" in typed
    assert "ai deployment create llama-3-3-70b-instruct-gguf-q4-k-m " in typed
    assert ":TYPE" not in typed


def test_gpus_that_hold_less_are_not_shown_as_the_fullest(exo: Exo) -> None:
    flags = (
        "--model-name", "meta-llama/Llama-3.3-70B-Instruct-Q4_K_M-GGUF", "--gpu-type", "gpua5000", "--gpu-count", "4",
        "--inference-engine", "llama-cpp", "--offline",
    )  # fmt: skip
    shares = ("--inference-engine-params", "--ctx-size 4096 --tensor-split 5,1,1,1")
    text = exo("ai", "deployment", "plan", *flags, *shares).out
    assert "Memory of the fullest GPU, 23.50 GiB; 2" in text
    assert "KiB on the fullest GPU" in text
    assert "each GPU, 23.50" not in text
    assert "overheads" not in text
