"""What the documentation says about published tables is what the planner works out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exo_inference.engines.registry import get_engine
from exo_inference.engines.versions import DEFAULT_VERSION
from exo_inference.planner import EngineParameters, Verdict, find_gpu, find_model, plan
from exo_inference.planner.model.checkpoint import stored_bytes
from exo_inference.planner.model.requantize import with_quantization
from exo_inference.planner.overheads import load_overheads
from exo_inference.planner.releases.classes import CLASSES

GIB = 2**30
BENCHMARKS = Path(__file__).parents[2] / "docs" / "benchmarks"
PAGE = (Path(__file__).parents[2] / "docs" / "concepts" / "planning.md").read_text(encoding="utf-8")
LLAMA_70B = "meta-llama/Llama-3.1-70B-Instruct"


def test_a_token_of_a_70b_model() -> None:
    model = find_model("meta-llama/Llama-2-70b-chat-hf")
    with_gqa = model.kv_elements_per_token * 2
    assert with_gqa == 327_680
    assert with_gqa * model.num_heads // 8 == 2_621_440
    assert 100_000 * with_gqa == pytest.approx(32.8e9, rel=0.01)
    assert 8 * 8192 * with_gqa == 20 * GIB
    assert all(figure in PAGE for figure in ("327,680", "2,621,440", "32.8 GB", "20 GiB"))


def test_a_70b_model_in_4_bits_leaves_nothing_of_40_gb() -> None:
    model = find_model(f"{LLAMA_70B}-AWQ")
    result = plan(model, find_gpu("A100-40GB"), 1, EngineParameters(max_model_len=4096))
    assert result.verdict is Verdict.REFUSED
    assert stored_bytes(model) == pytest.approx(39.8e9, rel=0.002)
    assert stored_bytes(model) / GIB == pytest.approx(37.0, abs=0.05)
    assert result.budget_bytes_per_gpu / GIB == pytest.approx(36.3, abs=0.05)
    assert "39.8 GB (37.0 GiB)" in PAGE


def test_a_70b_model_on_two_a100_needs_a_shorter_context() -> None:
    parameters = EngineParameters(engine_version=DEFAULT_VERSION)
    result = plan(find_model(LLAMA_70B), find_gpu("A100-80GB"), 2, parameters)
    assert result.verdict is Verdict.REFUSED
    assert f"{result.largest_max_model_len:,} tokens" in PAGE


def test_what_the_page_says_of_releases_is_what_the_planner_refuses() -> None:
    for name, known in (
        ("Gemma 3", "gemma3"),
        ("Llama 4", "llama4"),
        ("Gemma 4", "gemma4"),
        ("DeepSeek-V4", "deepseek_v4"),
    ):
        since, _ = CLASSES[known]
        assert since is not None
        assert f"{name} before {'.'.join(map(str, since))}" in PAGE.replace("\n", " ")
    release = get_engine("sglang").version
    assert f"of {release} alone the flags are known" in PAGE.replace("\n", " ")


def test_no_explanation_speaks_of_a_constant_that_is_not_there() -> None:
    said = json.loads((BENCHMARKS / "planner-explanations.json").read_text(encoding="utf-8"))
    has_own = any("AMD" in name for name in load_overheads())
    assert has_own or not any("the constant is this start's own" in each for each in said.values())


def test_packed_checkpoints_have_more_parameters_than_bytes() -> None:
    model = find_model("deepseek-ai/DeepSeek-V4-Flash")
    assert f"{model.num_parameters:,} parameters" in PAGE
    packed = stored_bytes(model)
    # The Hub's count has the prediction layer as well, and 16-bit weights count once.
    assert packed == pytest.approx(158_069_433_298, rel=0.03)


def test_layers_without_attention_cache_nothing() -> None:
    model = find_model("nvidia/Llama-3_3-Nemotron-Super-49B-v1")
    assert f"= {model.kv_elements_per_token:,} |" in PAGE


def test_checkpoints_keep_embeddings_in_16_bits() -> None:
    model = find_model("meta-llama/Llama-3.1-8B-Instruct")
    sizes = [stored_bytes(each) / 1e9 for each in (
        model, with_quantization(model, "fp8"), with_quantization(model, "awq")
    )]  # fmt: skip
    assert "{:.1f}, {:.1f} and {:.1f} GB".format(*sizes) in PAGE


def test_windows_hold_less_than_the_context() -> None:
    result = plan(
        find_model("google/gemma-3-27b-it"),
        find_gpu("H100"),
        1,
        EngineParameters(max_model_len=131072),
    )
    assert result.kv_bytes_per_token * 131072 == 62 * GIB
    assert f"{result.needed_kv_bytes_per_gpu / GIB:.1f} GiB |" in PAGE
