"""Quantized checkpoints are planned for releases that read them, and refused by name for others."""

from __future__ import annotations

from typing import Any

import pytest

from exo_inference.engines.flags.catalogue import flags_of, listed_releases
from exo_inference.planner import (
    Plan,
    Verdict,
    advise,
    find_gpu,
    find_model,
    plan,
    read_architecture,
)
from exo_inference.planner.checkpoint_releases import DEPRECATED, GONE, SINCE, check_class
from exo_inference.planner.engine_rules import rules_for
from exo_inference.planner.parameters import EngineParameters

QWEN: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 128, "hidden_size": 1024,
    "intermediate_size": 3072, "max_position_embeddings": 40960, "num_attention_heads": 16, "num_hidden_layers": 28,
    "num_key_value_heads": 8, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "vocab_size": 151936,
}  # fmt: skip
HQQ = {
    "quant_method": "hqq",
    "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}},
    "skip_modules": ["lm_head"],
}


def plan_of(checkpoint: dict[str, Any] | None, version: str, *others: str, **flags: Any) -> Plan:
    extra = {} if checkpoint is None else {"quantization_config": checkpoint}
    model = read_architecture({**QWEN, **extra}, name="mine")
    asked = EngineParameters(engine_version=version, max_model_len=4096, others=others, **flags)
    return plan(model, find_gpu("L4"), 1, asked)


@pytest.mark.parametrize(
    ("quantization", "last", "first"),
    [
        (HQQ, "0.12.0", "0.15.1"),
        ({"quant_method": "gguf", "file_type": "Q4_K_M"}, "0.23.0", "0.24.0"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "0.27.0", "0.28.0"),
    ],
    ids=["hqq", "gguf", "bitsandbytes"],
)
def test_a_checkpoint_is_refused_by_name_from_the_release_that_dropped_its_method(
    quantization: dict[str, Any], last: str, first: str
) -> None:
    assert plan_of(quantization, last).verdict is Verdict.FITS
    refused = plan_of(quantization, first)
    assert refused.verdict is Verdict.REFUSED
    (problem,) = [each for each in refused.problems if each.code == "quantization"]
    assert f"mine is {quantization['quant_method']}" in problem.detail
    assert f"vLLM {first}" in problem.detail
    assert f"before {first}" in problem.detail


def test_a_method_is_not_taken_before_the_release_that_has_it() -> None:
    mixed = {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"model.layers.0.mlp.up_proj": {"quant_algo": "NVFP4"}}}  # fmt: skip
    assert "use 0.17.0 or later" in plan_of(mixed, "0.16.0").problems[0].detail
    assert not plan_of(mixed, "0.24.0").problems


def test_a_deprecated_method_needs_the_flag_that_allows_it() -> None:
    fbgemm = {"quant_method": "fbgemm_fp8"}
    assert plan_of(fbgemm, "0.12.0").verdict is Verdict.FITS
    refused = plan_of(fbgemm, "0.15.1")
    assert refused.verdict is Verdict.REFUSED
    assert "add --allow-deprecated-quantization" in refused.problems[0].detail


@pytest.mark.parametrize(
    ("flags", "verdict"),
    [
        ("--allow-deprecated-quantization", Verdict.FITS),
        ("--allow_deprecated_quantization", Verdict.FITS),
        ("--no-allow-deprecated-quantization --allow_deprecated-quantization", Verdict.FITS),
        ("--allow-deprecated-quantization --no-allow-deprecated-quantization", Verdict.REFUSED),
        ("--allow-deprecated-quantization --no-allow_deprecated_quantization", Verdict.REFUSED),
    ],
)
def test_the_last_flag_that_allows_deprecated_methods_or_does_not_holds(
    flags: str, verdict: Verdict
) -> None:
    assert plan_of({"quant_method": "fbgemm_fp8"}, "0.15.1", *flags.split()).verdict is verdict


def test_quantizing_while_loading_ends_with_the_method() -> None:
    assert plan_of(None, "0.27.0", quantization="bitsandbytes").verdict is Verdict.FITS
    refused = plan_of(None, "0.28.0", quantization="bitsandbytes")
    assert refused.verdict is Verdict.REFUSED
    assert "--quantization is bitsandbytes" in refused.problems[0].detail


def test_hqq_takes_four_bits_with_a_scale_and_a_zero_point_for_every_64_weights() -> None:
    plain = plan_of(None, "0.12.0").weights_bytes_per_gpu
    rows = 151936 * 1024 * 2  # the table of tokens stays in 16 bit
    expected = rows + (find_model("Qwen/Qwen3-0.6B").num_parameters * 2 - rows) * 4.5 / 16
    assert plan_of(HQQ, "0.12.0").weights_bytes_per_gpu == pytest.approx(
        expected, rel=0.025
    )  # pages of the allocator apart
    assert plan_of(HQQ, "0.12.0").weights_bytes_per_gpu < plain / 2
    eight = {**HQQ, "quant_config": {"weight_quant_params": {"nbits": 8, "group_size": 64}}}
    assert "8 bit in groups of 64, is unknown" in plan_of(eight, "0.12.0").problems[0].detail


def test_the_table_is_that_of_the_flags_of_each_release() -> None:
    releases = listed_releases()
    choices = {each: set(flags_of(each).by_name["quantization"].choices) for each in releases}
    for method, version in {**SINCE, **GONE}.items():
        has_it = [each for each in releases if method in choices[each]]
        number = ".".join(map(str, version))
        if method in SINCE:
            assert has_it == list(releases[releases.index(number) :]), method
        else:
            assert has_it == list(releases[: releases.index(number)]), method
    for method, version in DEPRECATED.items():
        assert all(method in each for each in choices.values()), method
        allowed = [
            each for each in releases if "allow-deprecated-quantization" in flags_of(each).by_name
        ]
        assert allowed[0] == ".".join(map(str, version))


@pytest.mark.parametrize(
    ("name", "release", "said"),
    [
        ("google/flan-t5-xl", "0.28.0", "as no release has"), ("google/flan-t5-xl", "0.6.6", "as no release has"),
        ("facebook/bart-large-cnn", "0.11.0", "use a release before 0.11.0"), ("facebook/bart-large-cnn", "0.10.2", ""),
        ("Qwen/Qwen3-8B", "0.8.3", "use 0.8.4 or later"), ("Qwen/Qwen3-8B", "0.8.4", ""),
        ("Qwen/Qwen3-30B-A3B", "0.8.2", "use 0.8.4 or later"), ("openai/gpt-oss-20b", "0.10.0", "use 0.10.1 or later"),
        ("openai/gpt-oss-20b", "0.10.1", ""), ("Qwen/Qwen3-Next-80B-A3B-Instruct", "0.10.1", "use 0.10.2 or later"),
        ("meta-llama/Llama-3.1-8B-Instruct", "0.6.6", ""), ("openai/whisper-large-v3", "0.6.6", "use 0.7.0 or later"),
        ("openai/whisper-large-v3", "0.7.0", ""), ("google/gemma-3-4b-it", "0.6.6", "use 0.8.0 or later"),
        ("google/gemma-3-1b-it", "0.7.3", "use 0.8.0 or later"), ("google/gemma-3-4b-it", "0.8.0", ""),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "0.8.2", "use 0.8.3 or later"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "0.8.3", ""), ("ibm-granite/granite-4.0-h-small", "0.8.5", "use 0.9.0 or later"),
        ("ibm-granite/granite-4.0-h-small", "0.9.0", ""), ("zai-org/GLM-4.6-FP8", "0.9.2", "use 0.10.0 or later"),
        ("zai-org/GLM-4.6-FP8", "0.10.0", ""), ("Qwen/Qwen3-VL-8B-Instruct", "0.10.2", "use 0.11.0 or later"),
        ("Qwen/Qwen3.5-9B", "0.16.0", "use 0.17.0 or later"), ("Qwen/Qwen3.5-9B", "0.17.0", ""),
        ("google/gemma-4-26B-A4B-it", "0.18.1", "use 0.19.0 or later"), ("google/gemma-4-26B-A4B-it", "0.19.0", ""),
        ("deepseek-ai/DeepSeek-V4-Flash", "0.19.1", "use 0.20.0 or later"), ("deepseek-ai/DeepSeek-V4-Flash", "0.20.0", ""),
        ("deepseek-ai/DeepSeek-V3.2", "0.10.2", "use 0.11.0 or later"),
        ("nomic-ai/nomic-embed-text-v1.5", "0.8.4", "use 0.8.5 or later"), ("nomic-ai/nomic-embed-text-v1.5", "0.8.5", ""),
        ("Snowflake/snowflake-arctic-embed-m-v2.0", "0.8.4", "use 0.8.5 or later"),
        ("Alibaba-NLP/gte-base-en-v1.5", "0.8.5", "use 0.9.0 or later"), ("jinaai/jina-embeddings-v3", "0.8.4", "use 0.8.5 or later"),
        ("tiiuae/Falcon-H1-34B-Instruct", "0.8.5", "use 0.9.0 or later"),
        ("Qwen/Qwen3-Omni-30B-A3B-Instruct", "0.11.0", "use 0.11.1 or later"),
        ("sentence-transformers/all-mpnet-base-v2", "0.32.0", "Text Embeddings Inference, which is no engine here, serves it"),
        ("mixedbread-ai/mxbai-rerank-base-v1", "0.28.0", "Text Embeddings Inference, which is no engine here, serves it"),
    ],
)  # fmt: skip
def test_a_release_without_a_class_for_the_model_is_refused(
    name: str, release: str, said: str
) -> None:
    result = plan(find_model(name), find_gpu("H200"), 2, EngineParameters(engine_version=release))
    found = [each for each in result.problems if "has no class for" in each.detail]
    assert bool(found) == bool(said)
    if said:
        assert said in found[0].detail
        assert result.verdict is Verdict.REFUSED
    assert not any("no class" in note for note in result.notes)


_GTE, _RANKS = (
    f'--hf-overrides={{"architectures":["{name}"]}}'
    for name in ("GteNewModel", "GteNewForSequenceClassification")
)


@pytest.mark.parametrize(
    ("name", "given", "missing"),
    [
        ("jinaai/jina-embeddings-v3", (), ("--trust-remote-code",)),
        ("jinaai/jina-embeddings-v3", ("--trust_remote_code",), ()),
        ("Alibaba-NLP/gte-multilingual-base", (), ("--trust-remote-code", _GTE)),
        ("Alibaba-NLP/gte-multilingual-base", ("--trust-remote-code",), (_GTE,)),
        ("Alibaba-NLP/gte-multilingual-reranker-base", ("--trust-remote-code",), (_RANKS,)),
        ("Snowflake/snowflake-arctic-embed-m-v2.0", (), ()), ("BAAI/bge-m3", (), ()),
    ],
)  # fmt: skip
def test_code_that_comes_with_a_model_is_run_only_where_flags_say_so(
    name: str, given: tuple[str, ...], missing: tuple[str, ...]
) -> None:
    model, gpu, flags = find_model(name), find_gpu("L4"), EngineParameters(others=given)
    result = plan(model, gpu, 1, flags)
    assert result.verdict is (Verdict.REFUSED if missing else Verdict.FITS)
    for flag in missing:
        assert flag in result.problems[0].detail
    first = next(iter(advise(model, gpu, 1, flags)), None)
    assert (first.plan.parameters.others if first else given) == (*given, *missing)


@pytest.mark.parametrize(("engine", "release"), [("sglang", "0.4.4"), ("exo", "0.1.0")])
def test_classes_of_one_engine_are_not_those_of_another(engine: str, release: str) -> None:
    model = find_model("Qwen/Qwen3-8B")
    assert check_class(model, rules_for("vllm", release))
    assert check_class(model, rules_for(engine, release)) == []
