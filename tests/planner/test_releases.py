"""A release of an engine is refused by name for a model or a GPU that it cannot serve at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from exo_inference.planner import Verdict, advise, find_gpu, find_model, plan
from exo_inference.planner.catalog_models import _further_models, load_models, read_entry
from exo_inference.planner.engine_rules import Version, parse_version, rules_for
from exo_inference.planner.gpu_catalog import load_gpus
from exo_inference.planner.model.families import FAMILIES
from exo_inference.planner.parameters import EngineParameters
from exo_inference.planner.releases.classes import CLASSES, check_class
from exo_inference.planner.releases.gpus import GPUS, check_gpu
from exo_inference.planner.releases.sglang import SGLANG_CLASSES, SGLANG_GPUS

REGISTRIES: dict[str, Any] = json.loads(
    Path(__file__).with_name("vllm_classes.json").read_text(encoding="utf-8")
)
SGLANG: dict[str, Any] = json.loads(
    Path(__file__).with_name("sglang_classes.json").read_text(encoding="utf-8")
)
SERVED: dict[str, list[str]] = REGISTRIES["model_types"] | REGISTRIES["checkpoints"]
"""Architectures by model type, and by checkpoint where it has another than its type or is younger."""

BY_TRANSFORMERS = {
    "apertus", "arcee", "exaone4", "glm4", "gptj", "granitemoe", "granitemoeshared", "opt", "phi", "phimoe", "solar", "starcoder2",
    "cohere2_vision", "bert", "falcon_mamba", "mamba", "mamba2", "whisper", "xlm-roberta", "xlm-roberta-flash",
    "openbmb/MiniCPM-V-4_5",
}  # fmt: skip
"""What Transformers' classes may have served in SGLang before its own, what it has no plan for, and MiniCPM-V 4.5, which its class knows
since 0.5.9."""

OTHERWISE = {
    "t5": "no release has it", "mpnet": "no release has it", "deberta-v2": "no release has it", "mistral3": "by Mistral's own format before", "ministral3": "by Mistral's own format before",
    "smollm3": "by Transformers' class before", "arcee": "by Transformers' class before", "internvl": "by Transformers' class before", "vaultgemma": "by Transformers' class before",
    "helium": "by Transformers' class", "camembert": "by another name", "dots1": "by Transformers' class since", "aya_vision": "by Transformers' class since",
    "xlm-roberta-flash": "without rotary positions before", "nomic-ai/nomic-embed-text-v2-moe": "without experts before",
    "openbmb/MiniCPM-V-4_5": "other versions before",
    "kimi_k2": "by DeepSeek-V3's class, with the attention of 0.10.0",
}  # fmt: skip
"""Of which the registry does not say which releases serve them."""


@pytest.mark.parametrize("kind", sorted(SERVED.keys() - OTHERWISE.keys()))
def test_the_table_of_model_types_is_what_the_registries_say(kind: str) -> None:
    spans = [REGISTRIES["architectures"][name] for name in SERVED[kind]]
    firsts = [parse_version(first) for first, _ in spans if first is not None]
    assert firsts, "some release has it"
    first = min(each for each in firsts if each is not None)
    gone = None if any(last is None for _, last in spans) else max(last for _, last in spans)
    oldest = parse_version(REGISTRIES["releases"][0])
    found = (None if first == oldest else first, None if gone is None else parse_version(gone))
    assert CLASSES.get(kind, (None, None)) == found


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
        ("deepseek-ai/DeepSeek-V3.2", "0.10.2", "use 0.11.0 or later"), ("allenai/Olmo-3-7B-Instruct", "0.10.2", "use 0.11.0 or later"),
        ("THUDM/GLM-4-32B-0414", "0.8.3", "use 0.8.4 or later"), ("THUDM/GLM-4-32B-0414", "0.8.4", ""),
        ("tiiuae/Falcon-H1-7B-Instruct", "0.8.5", "use 0.9.0 or later"), ("google/gemma-3n-E4B-it", "0.9.1", "use 0.9.2 or later"),
        ("google/gemma-3n-E4B-it", "0.9.2", ""), ("MiniMaxAI/MiniMax-M2", "0.11.0", "use 0.11.1 or later"),
        ("moonshotai/Kimi-K2-Instruct", "0.9.2", "use 0.10.0 or later"), ("moonshotai/Kimi-K2-Instruct", "0.10.0", ""),
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", "0.11.0", "use 0.11.1 or later"), ("moonshotai/Kimi-K2.5", "0.14.1", "use 0.15.0 or later"),
        ("mistralai/Ministral-3-8B-Instruct-2512", "0.11.2", "use 0.12.0 or later"), ("mistralai/Ministral-3-8B-Instruct-2512", "0.12.0", ""),
        ("mistralai/Mistral-Small-3.1-24B-Instruct-2503", "0.8.0", "use 0.8.1 or later"),
        ("nomic-ai/nomic-embed-text-v1.5", "0.8.4", "use 0.8.5 or later"), ("nomic-ai/nomic-embed-text-v1.5", "0.8.5", ""),
        ("Snowflake/snowflake-arctic-embed-m-v2.0", "0.8.4", "use 0.8.5 or later"),
        ("Alibaba-NLP/gte-base-en-v1.5", "0.8.5", "use 0.9.0 or later"), ("jinaai/jina-embeddings-v3", "0.8.3", "use 0.8.4 or later"),
        ("Qwen/Qwen3-Omni-30B-A3B-Instruct", "0.11.0", "use 0.11.1 or later"), ("jinaai/jina-embeddings-v3", "0.8.4", ""),
        ("openbmb/MiniCPM-V-4_5", "0.10.1", "use 0.10.2 or later"), ("openbmb/MiniCPM-V-4_5", "0.10.2", ""), ("openbmb/MiniCPM-V-2_6", "0.6.6", ""),
        ("nomic-ai/nomic-embed-text-v2-moe", "0.8.5", "use 0.9.0 or later"), ("nomic-ai/nomic-embed-text-v2-moe", "0.9.0", ""),
        ("deepseek-ai/DeepSeek-OCR", "0.11.0", "use 0.11.1 or later"), ("google/embeddinggemma-300m", "0.10.1", "use 0.10.2 or later"),
        ("Alibaba-NLP/gte-multilingual-reranker-base", "0.8.5", "use 0.10.2 or later"),
        ("zai-org/GLM-4.5V", "0.10.0", "use 0.10.1 or later"), ("zai-org/GLM-4.5V", "0.10.1", ""),
        ("CohereLabs/aya-vision-8b", "0.8.2", "use 0.8.3 or later"), ("CohereLabs/aya-vision-8b", "0.28.0", ""),
        ("moonshotai/Kimi-VL-A3B-Instruct", "0.8.4", "use 0.8.5 or later"), ("mistralai/Voxtral-Mini-3B-2507", "0.9.2", "use 0.10.0 or later"),
        ("ibm-granite/granite-swash-2b", "0.28.0", "use 0.29.0 or later"), ("ibm-granite/granite-swash-2b", "0.29.0", ""),
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


def test_classes_of_one_engine_are_not_those_of_another() -> None:
    model = find_model("Qwen/Qwen3-8B")
    assert check_class(model, rules_for("vllm", "0.8.3"))
    assert check_class(model, rules_for("sglang", "0.4.5")) == []
    assert check_class(model, rules_for("exo", "0.1.0")) == []


@pytest.mark.parametrize(
    ("gpu", "last", "first"),
    [
        ("RTX 5090", "0.6.6", "0.9.2"), ("gpurtx6000pro", "0.9.1", "0.9.2"), ("B200", "0.7.0", "0.9.0"), ("GB200", "0.8.5", "0.9.0"),
        ("B200", "0.10.0", "0.10.1"), ("RTX 5090", "0.10.0", "0.10.1"), ("gpub300", "0.13.0", "0.14.0"), ("GB300", "0.13.0", "0.14.0"),
        ("jetson-thor", "0.10.0", "0.10.1"), ("GB10", "0.10.1", "0.10.2"), ("MI355X", "0.10.1", "0.10.2"), ("RX 9070 XT", "0.8.2", "0.8.3"),
    ],
)  # fmt: skip
def test_a_gpu_is_not_taken_before_the_release_that_has_kernels_for_it(
    gpu: str, last: str, first: str
) -> None:
    model, found = find_model("Qwen/Qwen2.5-0.5B-Instruct"), find_gpu(gpu)
    refused = plan(model, found, 1, EngineParameters(engine_version=last))
    assert refused.verdict is Verdict.REFUSED
    (problem,) = refused.problems
    assert problem.code == "gpu-type"
    assert problem.detail.startswith(f"vLLM {last} has no kernels for {found.name} (")
    assert problem.detail.endswith(f": use {first} or later")
    assert not plan(model, found, 1, EngineParameters(engine_version=first)).problems


def test_a_gpu_is_not_taken_from_the_release_on_that_has_no_kernels_for_it_any_more() -> None:
    model, gpu = find_model("Qwen/Qwen2.5-0.5B-Instruct"), find_gpu("V100")
    assert plan(model, gpu, 1, EngineParameters(engine_version="0.19.1")).verdict is Verdict.FITS
    refused = plan(model, gpu, 1, EngineParameters(engine_version="0.20.0"))
    assert refused.verdict is Verdict.REFUSED
    assert "any more: use a release before 0.20.0, or another GPU" in refused.problems[0].detail


@pytest.mark.parametrize("release", ["0.6.6", "0.8.5", "0.10.0", "0.13.0", "0.28.0"])
def test_no_way_out_is_a_gpu_that_the_release_has_no_kernels_for(release: str) -> None:
    model, parameters = find_model("Qwen/Qwen2.5-32B-Instruct"), EngineParameters(engine_version=release)  # fmt: skip
    every = tuple(load_gpus().values())
    refused = {gpu.name for gpu in every if check_gpu(gpu, parameters.rules)}
    for gpu in ("gpua5000", "gpu2"):
        ways = advise(model, find_gpu(gpu), 1, parameters, other_gpus=every, limit=30)
        assert any("gpu-type" in way.kinds for way in ways), gpu
        assert not {way.plan.gpu for way in ways} & refused


def test_a_gpu_that_is_too_new_has_an_older_one_as_its_way_out() -> None:
    model, gpu = find_model("Qwen/Qwen2.5-7B-Instruct"), find_gpu("gpurtx6000pro")
    ways = advise(model, gpu, 1, EngineParameters(engine_version="0.6.6"))
    assert ways
    assert {way.kinds for way in ways} == {("gpu-type",)}


def test_every_model_type_that_is_planned_has_its_releases() -> None:
    bundled = {read_entry(name).model_type for name in (*load_models(), *_further_models())}
    assert REGISTRIES["model_types"].keys() >= FAMILIES.keys() | bundled
    assert SERVED.keys() >= CLASSES.keys() | SGLANG_CLASSES.keys()


def test_kinds_of_gpus_are_told_with_addresses_and_are_in_the_catalogue() -> None:
    assert all(each.source.startswith("https://") for each in GPUS.values())
    kinds = {gpu.gfx or gpu.capability for gpu in load_gpus().values()}
    assert kinds >= GPUS.keys()
    assert rules_for("exo", "0.28.0").gpus == {}
    assert kinds >= SGLANG_GPUS.keys()


def _first_of_sglang(kind: str) -> Version | None:
    """Return the first release of SGLang with a class; None where the oldest one has it, or none."""
    releases, firsts = SGLANG["releases"], SGLANG["architectures"]
    having = [firsts[name] for name in SERVED[kind] if name in firsts]
    first = min(having, key=releases.index, default=None)
    return None if first in (None, releases[0]) else parse_version(first)


@pytest.mark.parametrize("kind", sorted(SERVED.keys() - BY_TRANSFORMERS))
def test_sglangs_table_of_model_types_is_what_its_releases_say(kind: str) -> None:
    found = _first_of_sglang(kind)
    if found == (0, 5, 1):
        found = (0, 5, 0)  # of which there are candidates alone
    assert SGLANG_CLASSES.get(kind, (None, None)) == (found, None)


@pytest.mark.parametrize(
    ("name", "gpu", "last", "first"),
    [
        ("Qwen/Qwen3-8B", "H100", "0.4.4", "0.4.5"), ("openai/gpt-oss-20b", "H100", "0.4.10", "0.5.0"),
        ("openbmb/MiniCPM-V-4_5", "H100", "0.5.8", "0.5.9"), ("moonshotai/Kimi-VL-A3B-Instruct", "H100", "0.4.5", "0.4.6"),
        ("zai-org/GLM-4.1V-9B-Thinking", "H200", "0.4.10", "0.5.0"), ("zai-org/GLM-OCR", "H100", "0.5.8", "0.5.9"),
        ("Qwen/Qwen3-VL-8B-Instruct", "H100", "0.5.2", "0.5.3"), ("google/gemma-4-26B-A4B-it", "H200", "0.5.10", "0.5.11"),
        ("meta-llama/Llama-3.1-8B-Instruct", "B200", "0.4.4", "0.4.5"), ("meta-llama/Llama-3.1-8B-Instruct", "RTX 5090", "0.4.4", "0.4.5"),
    ],
)  # fmt: skip
def test_sglang_is_refused_before_the_release_that_serves_it(
    name: str, gpu: str, last: str, first: str
) -> None:
    early, later = (
        plan(
            find_model(name),
            find_gpu(gpu),
            1,
            EngineParameters(engine="sglang", engine_version=each),
        )
        for each in (last, first)
    )
    assert early.verdict is Verdict.REFUSED
    assert any(
        f"SGLang {last} has no" in each.detail and f"use {first} or" in each.detail
        for each in early.problems
    )
    assert later.verdict is Verdict.FITS
