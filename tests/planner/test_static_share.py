"""SGLang's share of each GPU, and the pools that it makes of it, by what its releases say."""

from __future__ import annotations

import pytest

from exo_inference.planner import EngineParameters, Verdict, find_gpu, find_model, plan
from exo_inference.planner.explain import explain
from exo_inference.planner.static.share import num_prompt_graphs, static_share
from exo_inference.planner.static.stage import pools_of_tokens

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def parameters(version: str = "0.5.17", **settings: object) -> EngineParameters:
    return EngineParameters.of(settings, engine="sglang", engine_version=version)


def share(
    version: tuple[int, int, int], gpu: str, tensor: int, tokens: int, model: str = LLAMA
) -> float:
    return static_share(version).default(find_model(model), find_gpu(gpu), tensor, 1, tokens)


@pytest.mark.parametrize(
    ("version", "gpu", "tensor", "tokens", "expected"),
    [
        ((0, 4, 8), "h100", 1, 8192, 0.874),
        ((0, 5, 3), "h100", 1, 8192, 0.835),
        ((0, 5, 3), "h100", 8, 8192, 0.818),
        ((0, 4, 8), "rtx-4090", 1, 2048, 0.879),
        ((0, 5, 3), "rtx-4090", 1, 2048, 0.848),
        ((0, 5, 6), "rtx-4090", 1, 2048, 0.847),
    ],
)
def test_the_default_share_is_what_the_release_computes(
    version: tuple[int, int, int], gpu: str, tensor: int, tokens: int, expected: float
) -> None:
    assert share(version, gpu, tensor, tokens) == pytest.approx(expected, abs=0.0011)


def test_graphs_of_prompts_are_left_room_since_they_are_captured_by_default() -> None:
    assert num_prompt_graphs(8192) == 8 + 14 + 8 + 8 + 12 + 8
    assert num_prompt_graphs(2048) == 8 + 14 + 8 + 8 + 4
    before, since = (share(version, "h100", 1, 8192) for version in ((0, 5, 9), (0, 5, 10)))
    assert before - since == pytest.approx(8 * 58 / 81559, abs=0.001)


def test_an_image_encoder_leaves_less_to_the_cache() -> None:
    text, images = "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-VL-7B-Instruct"
    with_images = share((0, 5, 17), "h100", 1, 8192, images)
    assert 0.76 <= with_images / share((0, 5, 17), "h100", 1, 8192, text) < 1.0


def test_weights_and_cache_share_the_static_part() -> None:
    result = plan(find_model(LLAMA), find_gpu("h100"), 1, parameters(gpu_memory_utilization=0.8))
    names = [each.name for each in result.components]
    assert names == ["weights", "non_torch", "kv_cache", "reserve"]
    assert sum(each.num_bytes for each in result.components[:3]) == pytest.approx(
        0.8 * result.total_bytes_per_gpu, rel=1e-6
    )
    # 32 layers x 8 heads x (128 + 128) x 2 bytes
    assert result.kv_bytes_per_token == 131_072
    assert result.kv_capacity_tokens == result.available_kv_bytes_per_gpu // 131_072
    assert (result.verdict, result.speed) == (Verdict.FITS, None)
    assert "which is not sized" in result.notes[-1]


def test_a_cache_shorter_than_the_context_starts_all_the_same() -> None:
    asked = parameters(max_model_len=131_072)
    result = plan(find_model(LLAMA), find_gpu("gpua5000"), 1, asked)
    assert result.verdict is Verdict.FITS
    assert result.max_model_len == result.kv_capacity_tokens < 131_072


def test_what_the_flag_caps_is_not_used() -> None:
    capped = parameters(num_gpu_blocks_override=10_000)
    result = plan(find_model(LLAMA), find_gpu("h100"), 1, capped)
    assert result.kv_capacity_tokens == 10_000


def test_weights_beyond_the_share_refuse() -> None:
    result = plan(
        find_model("meta-llama/Llama-3.3-70B-Instruct"), find_gpu("h100"), 1, parameters()
    )
    assert result.verdict is Verdict.REFUSED
    (problem,) = result.problems
    assert "nothing is left for the KV cache" in problem.detail


@pytest.mark.parametrize(("version", "ratio"), [("0.5.8", 1.0), ("0.5.17", 0.8)])
def test_windows_have_a_smaller_pool_since_0_5_9(version: str, ratio: float) -> None:
    """gpt-oss-20b: 12 layers with a window, 12 without, 8 heads of 64."""
    result = plan(find_model("openai/gpt-oss-20b"), find_gpu("h100"), 1, parameters(version))
    assert result.kv_bytes_per_token == pytest.approx(8 * 128 * 2 * (12 + 12 * ratio))


def test_states_take_their_share() -> None:
    """Qwen3-Next: 12 of 48 layers attend, with 2 heads of 256; states have 0.9 of what these have."""
    result = plan(find_model("Qwen/Qwen3-Next-80B-A3B-Instruct"), find_gpu("h200"), 2, parameters())
    assert result.kv_bytes_per_token == pytest.approx(12 * 1 * 512 * 2 * 1.9)
    steps = {step.title: step for step in explain(result)}
    assert "x 1.9, of which states have their part" in steps["KV bytes per token"].formula
    assert "SGLang" in steps["KV bytes per token"].source


def test_a_latent_is_whole_on_each_rank_and_without_padding() -> None:
    result = plan(find_model("deepseek-ai/DeepSeek-R1"), find_gpu("h200"), 8, parameters())
    assert result.kv_bytes_per_token == 61 * 576 * 2


@pytest.mark.parametrize(
    ("model", "version", "words"),
    [
        ("BAAI/bge-m3", "0.5.17", "without a cache"),
        ("deepseek-ai/DeepSeek-V4-Flash", "0.5.17", "cache of its attention"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "0.5.3", "states"),
    ],
)
def test_what_has_no_rule_is_said(model: str, version: str, words: str) -> None:
    static = parameters(version).rules.static_share
    assert static is not None
    assert words in (static.find_lack(find_model(model), find_gpu("h200")) or "")


def test_other_makers_are_not_planned() -> None:
    static = parameters().rules.static_share
    assert static is not None
    assert "NVIDIA" in (static.find_lack(find_model(LLAMA), find_gpu("mi300x")) or "")
    assert static.find_lack(find_model(LLAMA), find_gpu("l4")) is None


def test_a_stage_without_a_cache_has_no_pool() -> None:
    setting = plan(find_model(LLAMA), find_gpu("l4"), 1, parameters()).basis
    assert setting is not None
    assert pools_of_tokens((), setting.setting.kv, 0.9) is None


def test_ranks_and_lengths_are_checked_in_the_words_of_the_engine() -> None:
    asked = parameters(max_model_len=200_000, tensor_parallel_size=3)
    result = plan(find_model(LLAMA), find_gpu("h100"), 3, asked)
    details = [problem.detail for problem in result.problems]
    assert any("cannot be split over 3 GPUs" in detail for detail in details)
    assert any(detail.startswith("--context-length is 200000") for detail in details)
    assert not any("max-model-len" in detail for detail in details)
