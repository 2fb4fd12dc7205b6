"""What is called the longest context can be asked for; what the middle of the estimate holds is called that."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Exo

PLAN = ("ai", "deployment", "plan", "--offline", "--model-name")
STARTS = [
    pytest.param(
        "meta-llama/Llama-3.1-70B-Instruct", ("--gpu-count", "2", "--inference-engine-version", "0.20.0"),
        "--max-model-len", "--max-model-len=8192", id="vllm",
    ),
    pytest.param(
        "Qwen/Qwen3-30B-A3B-Instruct-2507-F16-GGUF", ("--inference-engine", "llama-cpp"), "--ctx-size", "--ctx-size 8192",
        id="llama-cpp",
    ),
    pytest.param(
        "Qwen/Qwen3-32B", ("--inference-engine", "sglang"), "--context-length", "--context-length 8192", id="sglang",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "flag", "asked"), STARTS)
def test_the_longest_context_fits_when_it_is_asked_for(
    exo: Exo, name: str, options: tuple[str, ...], flag: str, asked: str
) -> None:
    params = "--inference-engine-params"
    line = (*PLAN, name, *options)
    gpu = ("--gpu-type", "A100")
    found = json.loads(exo(*line, *gpu, params, asked, "-O", "json").out)
    longest, likely = found["safe_max_model_len"], found["largest_max_model_len"]
    assert found["verdict"] == "fits"
    assert 8192 < longest <= likely
    again = json.loads(exo(*line, *gpu, params, f"{flag} {longest}", "-O", "json").out)
    assert again["verdict"] == "fits"
    [row] = [row for row in exo(*line, *gpu, params, asked).out.splitlines() if "longest context" in row]  # fmt: skip
    assert row.split(maxsplit=2)[2].startswith(f"{longest:,} tokens")
    assert (likely == longest) == ("at the middle of the estimate" not in row)
    compared = exo(*line, "--compare=A100", params, asked).out
    assert f" {longest:,} " in compared
    assert "longest: the longest context that fits for sure" in compared
    template = "{{.SafeMaxModelLen}} {{.LargestMaxModelLen}}"
    told = exo(*line, *gpu, params, asked, "--output-template", template).out.split()
    assert told == [str(longest), str(likely)]


def test_what_only_the_middle_holds_is_called_that(exo: Exo) -> None:
    """CUDA graphs may take what is left alone, at any length."""
    line = (*PLAN, "ibm-granite/granite-4.0-h-tiny", "--inference-engine-version", "0.15.1")
    out = exo(*line, "--gpu-type", "L4").out
    assert "Tight" in out
    assert "longest context   131,072 tokens at the middle of the estimate\n" in out
    compared = exo(*line, "--compare=L4", "--gpu-count", "1").out
    row = next(row for row in compared.splitlines() if "tight" in row)
    assert row.split()[4] == "-"
