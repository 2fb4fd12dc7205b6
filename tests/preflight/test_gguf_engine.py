"""llama.cpp before it starts: what its flags mean, what is told of those that are not known, ways out to be pasted."""

from __future__ import annotations

import pytest

from exo_inference.engines import get_engine
from exo_inference.engines.cluster_engine import ClusterEngine
from exo_inference.planner import Verdict, find_gpu, find_model
from exo_inference.preflight import Subject, judge, to_wire
from exo_inference.preflight.judgement import Judgement

SMALL = "meta-llama/Llama-3.1-8B-Instruct-Q4_K_M-GGUF"
LARGE = "meta-llama/Llama-3.3-70B-Instruct-Q4_K_M-GGUF"


def judged(*flags: str, model: str = SMALL, gpu: str = "gpu3080ti", count: int = 1) -> Judgement:
    return judge(Subject(find_model(model), find_gpu(gpu), count, flags, engine="llama-cpp"))


def test_it_is_planned_by_its_own_rules() -> None:
    judgement = judged("--ctx-size", "16384", "--cache-type-k", "q8_0")
    assert judgement.verdict is Verdict.FITS
    told = to_wire(judgement)
    assert (told.engine, told.kv_capacity_tokens, told.max_num_seqs) == ("llama-cpp", 16_384, 4)
    assert told.parameters == ["--ctx-size", "16384", "--cache-type-k", "q8_0"]
    assert told.speed is None
    assert "llama.cpp's speed is not estimated" in told.notes
    assert [each.name for each in told.components] == [
        "weights",
        "activations",
        "non_torch",
        "kv_cache",
    ]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--lora", "x.gguf"), "what --lora means for its memory is not known"),
        (("--split-mode", "row"), "what --split-mode row means for its memory is not known"),
        (("--embedding",), "what --embedding means for its memory is not known"),
        (("--override-tensor", "exps=CPU"), "what --override-tensor means"),
        (("--gpu-layers", "0"), "its cache is in main memory, which is not judged"),
        (("--no-kv-offload",), "its cache is in main memory, which is not judged"),
    ],
)
def test_what_is_not_known_is_said(flags: tuple[str, ...], words: str) -> None:
    judgement = judged(*flags)
    assert (judgement.verdict, judgement.plan, judgement.advice) == (Verdict.UNKNOWN, None, ())
    (note,) = judgement.notes
    assert note.startswith(f"not sized for llama.cpp: {words}")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--parallel", "0"), "--parallel is '0', expected 1 or more"),
        (("-c", "-5"), "-c is '-5', expected a whole number"),
        (
            ("--override-tensor", "(a+)+$"),
            "--override-tensor is '(a+)+$', expected PATTERN=BUFFER",
        ),
    ],
)
@pytest.mark.parametrize("model", [SMALL, "Qwen/Qwen3-8B-AWQ"], ids=["gguf", "other"])
def test_values_with_which_it_does_not_start_are_refused(
    model: str, flags: tuple[str, ...], words: str
) -> None:
    judgement = judged(*flags, model=model)
    assert judgement.verdict is Verdict.REFUSED
    (problem,) = judgement.flag_problems
    assert (problem.index, problem.flag) == (1, flags[0])
    assert problem.detail.startswith(words)


def test_a_place_that_other_gpus_lack_leaves_the_ways_out_of_those_that_have_it() -> None:
    flags = ("--split-mode", "none", "--main-gpu", "1", "--ctx-size", "131072")
    judgement = judged(*flags, count=2)
    assert judgement.verdict is Verdict.REFUSED
    assert judgement.flag_problems == ()
    assert judgement.advice
    assert {each.plan.gpu_count for each in judgement.advice} == {2}


def test_flags_that_are_not_known_are_flags_of_the_engine() -> None:
    engine = get_engine("llama-cpp")
    assert isinstance(engine, ClusterEngine)
    assert engine.gguf is not None
    names = {flag.name for flag in engine.flags.by_spelling.values()}
    assert engine.gguf.unknown | set(engine.gguf.unknown_values) <= names


def test_models_of_other_kinds_are_not_sized() -> None:
    (note,) = judged(model="Qwen/Qwen3-Embedding-8B-Q8_0-GGUF").notes
    assert "which embeds or scores texts, is not known" in note


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B-GGUF:Q4_K_M"), ("Qwen/Qwen3-8B-AWQ", "Qwen/qwen3-8b-GGUF:Q4_K_M"),
        ("openai/gpt-oss-20b", "openai/gpt-oss-20b-GGUF:Q4_K_M"), ("Qwen/Qwen3-Embedding-8B", "Qwen/Qwen3-Embedding-8B-GGUF:Q4_K_M"),
    ],
)  # fmt: skip
def test_a_repository_without_gguf_files_does_not_start(model: str, named: str) -> None:
    judgement = judged(model=model, gpu="H100")
    assert judgement.verdict is Verdict.REFUSED
    (problem,) = judgement.plan_problems
    assert f"{model} has none: name a repository of GGUF files" in problem.detail
    assert problem.detail.endswith(named)
    assert judgement.advice == ()
    assert find_model(named).name == named


@pytest.mark.parametrize(
    "model",
    ["Qwen/Qwen3-8B-GGUF:F16", "me/Qwen3-8B-F32-GGUF", "me/Qwen3-8B-BF16-GGUF", "Qwen/Qwen3-8B-GGUF", "me/Qwen3-8B-Q4_0",
     "ggml-org/gpt-oss-20b-GGUF"],
)  # fmt: skip
def test_a_name_of_gguf_files_starts(model: str) -> None:
    assert judged(model=model, gpu="H100").verdict is Verdict.FITS


def test_values_in_blocks_need_flash_attention() -> None:
    judgement = judged("--cache-type-v", "q8_0", "--flash-attn", "off")
    assert judgement.verdict is Verdict.REFUSED
    assert "needs flash attention" in judgement.plan_problems[0].detail
    assert judgement.advice == ()


def test_ways_out_of_a_context_that_is_too_long_can_be_pasted() -> None:
    judgement = judged("--ctx-size", "131072", "--threads", "8", gpu="gpu3080ti")
    assert judgement.verdict is Verdict.REFUSED
    kinds = {tuple(way.kinds) for way in to_wire(judgement).advice}
    assert {("max-model-len",), ("kv-cache-dtype", "max-model-len"), ("gpu-type",)} <= kinds
    for way in judgement.advice:
        flags = way.plan.parameters.format()
        assert "--threads" in flags
        assert flags.count("--ctx-size") == 1
        assert way.plan.verdict is Verdict.FITS
        if not way.options:
            assert judged(*flags).verdict is Verdict.FITS


def test_another_spelling_of_a_flag_is_replaced() -> None:
    judgement = judged("-c", "131072", "-fa", "on")
    way = next(each for each in judgement.advice if each.kinds == ("max-model-len",))
    flags = way.plan.parameters.format()
    assert "-c" not in flags
    assert flags[:2] == ["-fa", "on"]


def test_experts_may_go_to_main_memory() -> None:
    judgement = judged("--ctx-size", "8192", model="ggml-org/gpt-oss-120b-GGUF", gpu="gpua5000")
    way = next(each for each in judgement.advice if each.kinds == ("gpu-layers",))
    assert way.flags[0] == "--n-cpu-moe"
    assert "computed by the CPU, many times slower" in way.effect


def test_layers_that_are_moved_are_tight_and_not_refused() -> None:
    judgement = judged("--gpu-layers", "auto", model=LARGE, gpu="gpua5000")
    assert judgement.verdict is Verdict.TIGHT
    assert [(each.code, each.refuses) for each in judgement.plan_problems] == [
        ("gpu-layers", False)
    ]
    assert all(each.plan.verdict is Verdict.FITS for each in judgement.advice)


def test_gpus_share_whole_layers() -> None:
    told = to_wire(judged("--ctx-size", "4096", model=LARGE, gpu="gpua5000", count=2))
    assert told.verdict == Verdict.FITS.value
    assert (told.pipeline_parallel_size, len(told.stages)) == (2, 2)
    assert [each.num_layers for each in told.stages] == [41, 39]
    assert told.stages[0].available_kv_bytes > told.stages[1].available_kv_bytes
    assert any(
        "whole layers are split over the GPUs, 41, 40 of them" in note for note in told.notes
    )


def layer_way(*flags: str, model: str, gpu: str) -> tuple[str, tuple[str, ...]]:
    """Return what the way out that moves layers says, and its flags; pasted, it plans as it says."""
    way = next(
        each
        for each in judged(*flags, model=model, gpu=gpu).advice
        if each.kinds == ("gpu-layers",)
    )
    again = judged(*way.plan.parameters.format(), model=model, gpu=gpu)
    assert again.plan is not None
    assert again.verdict is Verdict.FITS
    assert again.plan.available_kv_bytes_per_gpu == way.plan.available_kv_bytes_per_gpu
    assert again.plan.max_model_len == way.plan.max_model_len
    return way.effect, way.flags


def test_layers_of_a_dense_model_are_moved_whatever_is_said_of_experts() -> None:
    effect, flags = layer_way("--cpu-moe", model="Qwen/QwQ-32B-BF16-GGUF", gpu="gpu3")
    assert effect.startswith("21 of 65 layers, the output being one, in main memory")
    assert flags == ("--gpu-layers", "44")


def test_more_experts_are_moved_than_were_asked_for() -> None:
    name = "deepseek-ai/DeepSeek-V3.1-IQ4_XS-GGUF"
    effect, flags = layer_way("--n-cpu-moe", "10", model=name, gpu="h100")
    assert effect.startswith("the experts of 50 of 61 layers in main memory")
    assert flags == ("--n-cpu-moe", "50")


def test_experts_are_moved_of_as_many_layers_as_were_asked_for() -> None:
    name = "Qwen/Qwen3.5-397B-A17B-Q4_0-GGUF"
    effect, flags = layer_way("--gpu-layers", "20", model=name, gpu="gpua30")
    assert effect.startswith("the experts of 56 of 60 layers in main memory")
    assert flags == ("--n-cpu-moe", "56")


def test_layers_go_to_main_memory_beside_experts_where_these_are_not_enough() -> None:
    name = "deepseek-ai/DeepSeek-V3.1-IQ4_XS-GGUF"
    effect, flags = layer_way("--cpu-moe", "--ctx-size", "100000", model=name, gpu="t4")
    assert "experts" not in effect
    assert flags[0] == "--gpu-layers"
    effect, flags = layer_way("--ctx-size", "100000", model=name, gpu="t4")
    assert effect.startswith("the experts of 61 of 61 layers and ")
    assert flags[::2] == ("--n-cpu-moe", "--gpu-layers")


def test_fit_moves_no_layers_where_experts_are_placed() -> None:
    name = "Qwen/Qwen3-235B-A22B-Q4_K_M-GGUF"
    auto = ("--gpu-layers", "auto", "--n-cpu-moe", "5")
    assert judged(*auto, model=name, gpu="t4").verdict is Verdict.REFUSED
    assert layer_way(*auto, model=name, gpu="t4")[1] == ("--n-cpu-moe", "90")


def test_one_request_at_a_time_has_the_cache_of_one_slot() -> None:
    judgement = judged("--kv-unified-per-slot", "65536", "--parallel", "4", gpu="gpua5000")
    way = next(each for each in judgement.advice if each.kinds == ("max-num-seqs",))
    assert way.plan.kv_capacity_tokens == 65_536
    assert judged(*way.plan.parameters.format(), gpu="gpua5000").verdict is Verdict.FITS
