"""SGLang's share of each GPU, and the pools that it makes of it, by what its releases say."""

from __future__ import annotations

import pytest

from exo_inference.planner import EngineParameters, Verdict, find_gpu, find_model, plan
from exo_inference.planner.explain import explain
from exo_inference.planner.static.prompt_graphs import num_prompt_graphs
from exo_inference.planner.static.share import static_share
from exo_inference.planner.static.stage import pools_of_tokens, static_stage

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


@pytest.mark.parametrize(
    ("model", "factor"),
    [
        # num_hidden_layers is not in these configs, which say depth: 24 counts. hidden_size is 1,280 and 1,152.
        ("Qwen/Qwen2.5-VL-7B-Instruct", 0.95 * (1 - 0.1 * (1280**2 / 1024**2 - 1))),
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", 0.95 * (1 - 0.1 * (1152**2 / 1024**2 - 1))),
        # Of 27 layers of 1,152, as Kimi's own names say.
        ("moonshotai/Kimi-K2.5", 0.95 * (1 - 0.1 * (27 * 1152**2 / (24 * 1024**2) - 1))),
        # hidden_size is that of the text.
        ("Qwen/Qwen2-VL-7B-Instruct", 0.95 * 0.8),
        # No vision_config.
        ("Qwen/Qwen2.5-Omni-7B", 1.0),
        (LLAMA, 1.0),
    ],
)
def test_an_image_encoder_leaves_less_by_what_the_config_says(model: str, factor: float) -> None:
    """Text models are captured in prompts, too, which leaves less: releases before 0.5.10 were not."""
    plain = share((0, 5, 9), "h100", 1, 8192)
    assert share((0, 5, 9), "h100", 1, 8192, model) == pytest.approx(plain * factor)


@pytest.mark.parametrize(
    ("version", "model", "pipeline", "expected"),
    [
        ((0, 5, 14), LLAMA, 1, 8 * 58),
        ((0, 5, 14), LLAMA, 2, 0),
        ((0, 5, 14), "deepseek-ai/DeepSeek-R1", 1, 1536),
        ((0, 5, 12), "deepseek-ai/DeepSeek-V3.2", 1, 0),
        ((0, 5, 14), "Qwen/Qwen3-Next-80B-A3B-Instruct", 1, 0),
        ((0, 5, 17), "Qwen/Qwen3-Next-80B-A3B-Instruct", 1, 8 * 58),
        ((0, 5, 17), LLAMA, 2, 8 * 58),
        ((0, 5, 20), LLAMA, 2, 0),
        ((0, 5, 17), "deepseek-ai/DeepSeek-R1", 1, 0),
        ((0, 5, 17), "deepseek-ai/DeepSeek-V3.2", 1, 1536),
        ((0, 5, 18), "deepseek-ai/DeepSeek-R1", 1, 1536),
        ((0, 5, 17), "moonshotai/Kimi-K2.5", 1, 1536),
        ((0, 5, 17), "moonshotai/Kimi-K2.5", 2, 0),
        ((0, 5, 17), "Qwen/Qwen2.5-VL-7B-Instruct", 1, 0),
        ((0, 5, 17), "Qwen/Qwen3.5-9B", 1, 8 * 58),
        ((0, 5, 14), "Qwen/Qwen3.5-9B", 1, 0),
        ((0, 5, 17), "nvidia/NVIDIA-Nemotron-Nano-9B-v2", 1, 0),
        ((0, 5, 17), "google/gemma-3-27b-it", 1, 8 * 58),
    ],
)
def test_prompts_are_captured_by_release_model_and_stages(
    version: tuple[int, int, int], model: str, pipeline: int, expected: float
) -> None:
    """Beside the 512 MiB, 1.5 for each of 8,192 tokens, 2 for each sequence of the graphs, 128 for each GPU."""
    rest = static_share(version).rest(find_model(model), find_gpu("h100"), 1, pipeline, 8192)
    assert rest - (512 + 1.5 * 8192 + 2 * 256 + 128 * pipeline) == expected


@pytest.mark.parametrize(
    "model",
    ["google/gemma-3-27b-it", "meta-llama/Llama-4-Scout-17B-16E-Instruct", "stepfun-ai/step3"],
)
def test_models_that_read_text_first_leave_nothing_for_images(model: str) -> None:
    assert share((0, 5, 9), "h100", 1, 8192, model) == share((0, 5, 9), "h100", 1, 8192)


def test_the_encoder_of_llama_4_is_not_loaded_unasked() -> None:
    model = find_model("meta-llama/Llama-4-Scout-17B-16E-Instruct")
    result = plan(model, find_gpu("h200"), 4, parameters(max_model_len=8192, max_num_seqs=8))
    assert result.basis is not None
    parts = {weight.part for weight in result.basis.setting.model.outer_weights}
    assert parts == {"embedding", "lm_head", "norm"}


@pytest.mark.parametrize(
    ("version", "tensor", "expected"),
    [((0, 4, 3), 1, 0.88), ((0, 4, 3), 2, 0.87), ((0, 4, 7), 8, 0.81)],
)
def test_to_0_4_7_ranks_alone_say_it(
    version: tuple[int, int, int], tensor: int, expected: float
) -> None:
    assert share(version, "h100", tensor, 8192) == expected


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
    assert "share the other 20.0% of each GPU" in result.notes[-1]


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


@pytest.mark.parametrize(("version", "ratio"), [("0.5.7", 1.0), ("0.5.17", 0.8)])
def test_windows_have_a_smaller_pool_since_0_5_8(version: str, ratio: float) -> None:
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


def test_replicas_share_nothing() -> None:
    model, gpu = find_model("Qwen/Qwen3-235B-A22B-Instruct-2507"), find_gpu("h200")
    alone, both = (
        plan(model, gpu, 4 * data, parameters(tensor_parallel_size=4, data_parallel_size=data))
        for data in (1, 2)
    )
    assert both.weights_bytes_per_gpu == alone.weights_bytes_per_gpu
    assert both.max_concurrency == pytest.approx(2 * alone.max_concurrency)


def test_what_is_left_over_goes_to_the_last_stages() -> None:
    """36 layers in 5 stages: 7, 7, 7, 7, 8."""
    settings = parameters(tensor_parallel_size=1, pipeline_parallel_size=5)
    stages = plan(find_model("Qwen/Qwen3-8B"), find_gpu("h100"), 5, settings).basis
    assert stages is not None
    sizes = [len(static_stage(stages.setting, index).specs) for index in range(5)]
    assert sizes == [7, 7, 7, 7, 8]


def test_requests_at_once_are_no_tokens_of_a_prompt() -> None:
    usual, many = (
        plan(find_model("Qwen/Qwen3-8B"), find_gpu("gpua5000"), 1, parameters(**settings))
        for settings in ({}, {"max_num_seqs": 10_000})
    )
    assert many.budget_bytes_per_gpu == usual.budget_bytes_per_gpu
    assert (many.max_num_batched_tokens, many.max_num_seqs) == (2048, 10_000)


def test_requests_at_once_follow_from_the_cache() -> None:
    result = plan(find_model("Qwen/Qwen3-8B"), find_gpu("h100"), 1, parameters())
    assert result.kv_capacity_tokens / 40_960 * 512 > 4096
    assert result.max_num_seqs == 4096
    small = plan(
        find_model("Qwen/Qwen3-8B"), find_gpu("h100"), 1, parameters(num_gpu_blocks_override=100)
    )
    assert small.max_num_seqs == 50


def test_the_table_of_requests_has_to_fit_beside_the_share() -> None:
    """Llama 4 Scout: 2,049 x (10,485,760 + 4) x 4 bytes are 80 GiB."""
    scout = find_model("meta-llama/Llama-4-Scout-17B-16E-Instruct")
    refused = plan(scout, find_gpu("h100"), 8, parameters())
    assert refused.verdict is Verdict.REFUSED
    (problem,) = refused.problems
    assert "10,485,760 tokens takes 80.0" in problem.detail
    assert "--context-length or --max-running-requests" in problem.detail
    assert (
        plan(scout, find_gpu("h100"), 8, parameters(max_model_len=131_072)).verdict is Verdict.FITS
    )


def test_a_share_that_leaves_little_is_tight() -> None:
    for asked in (0.99, 1.0):
        result = plan(
            find_model("Qwen/Qwen3-8B"),
            find_gpu("h200"),
            1,
            parameters(gpu_memory_utilization=asked),
        )
        assert result.verdict is (Verdict.TIGHT if asked < 1 else Verdict.REFUSED)


def test_a_pool_without_room_for_the_states_of_one_request_refuses() -> None:
    model, gpu = find_model("Qwen/Qwen3-Next-80B-A3B-Instruct"), find_gpu("h100")
    settings = parameters(num_gpu_blocks_override=100)
    result = plan(model, gpu, 4, settings)
    assert result.verdict is Verdict.REFUSED
    assert any("pool for states" in problem.detail for problem in result.problems)


def test_the_share_is_of_what_is_free() -> None:
    model, gpu = find_model("Qwen/Qwen3-8B"), find_gpu("h100")
    half = gpu.reported_bytes // 2
    result = plan(model, gpu, 1, parameters(gpu_memory_utilization=0.8), free_bytes=half)
    assert result.verdict is Verdict.FITS
    assert result.budget_bytes_per_gpu == int(0.8 * half)


def test_a_cache_in_four_bits_has_its_scales() -> None:
    asked = parameters("0.5.12", kv_cache_dtype="fp4_e2m1")
    result = plan(find_model(LLAMA), find_gpu("b200"), 1, asked)
    assert result.kv_bytes_per_token == 131_072 / 2 * 0.5625


@pytest.mark.parametrize(
    ("version", "gpu", "share"),
    [
        ("0.5.7", "h100", 1.0), ("0.5.8", "h100", 0.8), ("0.5.9", "h100", 0.8), ("0.5.9", "b200", 1.0),
        ("0.5.9", "rtx-pro-6000", 0.8), ("0.5.10", "b200", 0.8),
    ],
)  # fmt: skip
def test_gpt_oss_has_a_pool_for_windows_by_release_and_gpu(
    version: str, gpu: str, share: float
) -> None:
    result = plan(find_model("openai/gpt-oss-20b"), find_gpu(gpu), 1, parameters(version))
    assert result.kv_bytes_per_token == pytest.approx(24_576 * (1 + share))


@pytest.mark.parametrize(("tokens", "verdict"), [(150, "refused"), (170, "fits")])
def test_a_pool_that_holds_no_window_refuses(tokens: int, verdict: str) -> None:
    """A window is 128 tokens, a page one; the pool has 0.8 of the tokens."""
    asked = parameters(num_gpu_blocks_override=tokens)
    result = plan(find_model("openai/gpt-oss-20b"), find_gpu("h100"), 1, asked)
    assert result.verdict == verdict
    before = parameters("0.5.15", num_gpu_blocks_override=tokens)
    assert plan(find_model("openai/gpt-oss-20b"), find_gpu("h100"), 1, before).verdict == "fits"


def test_the_arithmetic_names_flags_as_sglang_calls_them() -> None:
    asked = parameters(num_gpu_blocks_override=4000)
    steps = explain(plan(find_model("openai/gpt-oss-20b"), find_gpu("h100"), 1, asked))
    text = " ".join(f"{each.title} {each.formula} {each.result} {each.source}" for each in steps)
    assert "--max-total-tokens allows 4000 blocks" in text
    assert "vLLM" not in text
    for flag in ("num-gpu-blocks", "max-num-seqs", "max-model-len", "gpu-memory-utilization"):
        assert flag not in text
