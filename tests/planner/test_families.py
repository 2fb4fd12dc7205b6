"""Families that no bundled model has: their parameter counts equal those of the models instantiated.

`family_counts.json` holds configs (the library's defaults, and variants) and the parameters of the models that
transformers 5.23.0 builds from them on the meta device.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from exo_inference.planner import (
    EngineParameters,
    explain,
    find_gpu,
    find_model,
    load_models,
    plan,
    read_architecture,
)
from exo_inference.planner.catalog_models import _further_models
from exo_inference.planner.model.families import FAMILIES, UNCHECKED
from exo_inference.planner.releases.classes import check_class

COUNTS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("family_counts.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_a_family_is_counted_as_it_is_built(name: str) -> None:
    model = read_architecture(COUNTS[name]["config"], name=name)
    assert model.cannot_size is None
    assert model.num_parameters == COUNTS[name]["num_parameters"]


PUBLISHED = {
    "internlm2": (7_737_708_544, (92544, 4096, 14336, 32, 32, 8, False)),  # internlm/internlm2-chat-7b
    "exaone": (7_818_448_896, (102400, 4096, 14336, 32, 32, 8, False)),  # LGAI-EXAONE/EXAONE-3.0-7.8B-Instruct
    "baichuan": (7_505_973_248, (125696, 4096, 11008, 32, 32, 32, False)),  # baichuan-inc/Baichuan2-7B-Base
    "minicpm": (2_724_880_896, (122753, 2304, 5760, 40, 36, 36, True)),  # openbmb/MiniCPM-2B-sft-bf16
}  # fmt: skip
"""Families whose code is in their repositories alone: the Hub's counts, and the shape in config.json."""


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_family_without_a_class_has_its_published_count(name: str) -> None:
    count, (vocab, hidden, wide, layers, heads, kv_heads, is_tied) = PUBLISHED[name]
    config = {
        "model_type": name, "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": wide,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "tie_word_embeddings": is_tied, "max_position_embeddings": 4096,
    }  # fmt: skip
    assert read_architecture(config, name=name).num_parameters == count


def _model_types(value: object) -> set[str]:
    """Every `model_type` in a JSON value, in small letters as it is read."""
    if not isinstance(value, dict | list):
        return set()
    parts = value.values() if isinstance(value, dict) else value
    own = value.get("model_type") if isinstance(value, dict) else None
    return set().union({own.lower()} if isinstance(own, str) else set(), *map(_model_types, parts))


def test_every_family_is_compared_with_a_model() -> None:
    further = [
        e
        for e in _further_models().values()
        if "num_parameters" in e or "published_parameters" in e
    ]
    compared = _model_types(COUNTS) | PUBLISHED.keys() | _model_types(load_models())
    compared = compared.union(*map(_model_types, further))
    assert FAMILIES.keys() - compared == UNCHECKED - compared


def test_the_page_names_the_families_that_were_compared_with_nothing() -> None:
    page = Path(__file__).parents[2].joinpath("docs/concepts/planning.md").read_text("utf-8")
    named = re.search(r"except those of\n(.*), for which there was nothing to compare", page)
    assert named is not None
    assert re.findall(r"`([^`]+)`", named[1]) == sorted(UNCHECKED)


def test_the_page_lists_the_model_types_that_are_known() -> None:
    page = Path(__file__).parents[2].joinpath("docs/concepts/planning.md").read_text("utf-8")
    listed = page.partition("<!-- model types -->")[2].partition("<!-- end -->")[0]
    assert re.findall(r"`([^`]+)`", listed) == sorted(FAMILIES)


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_a_family_is_planned(name: str) -> None:
    model = read_architecture(COUNTS[name]["config"], name=name)
    result = plan(
        model,
        find_gpu("gpub300"),
        1,
        EngineParameters(max_model_len=448, others=("--trust-remote-code",)),
    )
    assert result.verdict == ("refused" if check_class(model, result.parameters.rules) else "fits")
    assert result.kv_bytes_per_token == model.kv_elements_per_token * 2


def test_every_request_to_whisper_holds_the_encoders_positions() -> None:
    model = read_architecture(COUNTS["whisper"]["config"], name="whisper")
    result = plan(model, find_gpu("L4"), 1, EngineParameters())
    assert result.max_model_len == 448
    block = 16 * 2 * 1280 * 2 * 32  # keys and values of 16 positions in 32 layers
    assert result.needed_kv_bytes_per_gpu == (448 // 16 + -(-1500 // 16)) * block
    assert any(step.title.endswith("attention to the encoder") for step in explain(result))


def test_layers_may_have_different_numbers_of_heads() -> None:
    name = next(name for name in COUNTS if name.startswith("laguna with"))
    model = read_architecture(COUNTS[name]["config"], name=name)
    rows = {
        w.out_features for layer in model.layers for w in layer.weights if w.path.endswith("q_proj")
    }
    assert rows == {48 * 128, 72 * 128}


@pytest.mark.parametrize("name", ["bert", "xlm-roberta", "modernbert"])
def test_an_encoder_keeps_no_cache_and_still_has_a_plan(name: str) -> None:
    model = read_architecture(COUNTS[name]["config"], name=name)
    result = plan(model, find_gpu("L4"), 1, EngineParameters())
    assert (result.verdict, result.kv_capacity_tokens) == ("fits", 0)
    assert result.max_model_len == {"bert": 512, "xlm-roberta": 8192, "modernbert": 8192}[name]
    assert result.component("activations") is not None
    assert result.component("kv_cache") is None
    assert result.available_kv_bytes_per_gpu == 0
    assert explain(result)


@pytest.mark.parametrize(
    ("name", "count", "tokens"),
    [
        ("nomic-ai/nomic-embed-text-v1", 136_731_648, 2048), ("nomic-ai/nomic-embed-text-v2-moe", 475_292_928, 512),
        ("Alibaba-NLP/gte-base-en-v1.5", 136_776_192, 8192), ("Alibaba-NLP/gte-multilingual-base", 305_368_320, 8192),
        ("Alibaba-NLP/gte-multilingual-reranker-base", 305_959_681, 8192),
        ("sentence-transformers/all-mpnet-base-v2", 109_486_464, 512), ("mixedbread-ai/mxbai-rerank-base-v1", 184_422_913, 512),
        ("Qwen/Qwen3-Omni-30B-A3B-Thinking", 31_719_205_488, 65536),
    ],
)  # fmt: skip
def test_a_model_has_the_count_that_is_published_and_no_more_tokens_than_engines_take(
    name: str, count: int, tokens: int
) -> None:
    """Counts as mteb's `n_parameters`; vLLM to 0.17.1 starts Nomic's models with the positions they were trained on."""
    model = find_model(name)
    assert (model.num_parameters, model.max_model_len) == (count, tokens)


def test_every_second_layer_of_nomics_mixture_has_experts() -> None:
    model = find_model("nomic-ai/nomic-embed-text-v2-moe")
    assert [layer.uses_moe for layer in model.layers] == [False, True] * 6
    assert model.moe is not None
    assert (model.moe.num_experts, model.moe.experts_per_token) == (8, 2)


def test_jinas_adapters_are_not_counted_as_one_of_them_is_added_to_the_weights() -> None:
    model = find_model("jinaai/jina-embeddings-v3")
    hidden, wide, rank, tasks = 1024, 4096, 4, 5
    layer = (3 * hidden + hidden) + 2 * hidden + 2 * (hidden + wide)
    tables = (250_002 + hidden) + (1 + hidden) + 2 * hidden
    adapters = tasks * rank * (24 * layer + tables)
    assert model.num_parameters + adapters == 572_310_396  # published
    assert model.model_type == "xlm-roberta-flash"
    refused = plan(model, find_gpu("L4"), 1, EngineParameters(engine="exo"))
    assert any("exo-engine serves" in each.detail for each in refused.problems)


def test_a_deberta_with_projections_of_distances_is_not_guessed() -> None:
    config = {**COUNTS["deberta-v2 with a convolution"]["config"], "share_att_key": False}
    assert "share_att_key" in (read_architecture(config, name="deberta").cannot_size or "")


@pytest.mark.parametrize("name", ["Pixtral-12B-2409", "Pixtral-Large-Instruct-2411"])
def test_pixtral_has_the_context_that_vllm_takes_where_params_json_names_none(name: str) -> None:
    assert find_model(f"mistralai/{name}").max_model_len == 128_000


def test_a_projector_without_biases_has_none() -> None:
    config = COUNTS["pixtral"]["config"]
    plain = read_architecture({**config, "multimodal_projector_bias": False}, name="pixtral")
    assert COUNTS["pixtral"]["num_parameters"] - plain.num_parameters == 2 * 5120


@pytest.mark.parametrize(("engine", "keeps"), [("exo", False), ("vllm", True)])
def test_a_decoder_that_embeds_keeps_no_cache_where_texts_are_computed_whole(
    engine: str, keeps: bool
) -> None:
    parameters = EngineParameters(engine=engine, runner="pooling")
    result = plan(find_model("Qwen/Qwen3-0.6B"), find_gpu("L4"), 1, parameters)
    assert result.verdict == "fits"
    assert (result.component("kv_cache") is not None) == keeps
    assert (result.kv_capacity_tokens > 0) == keeps


@pytest.mark.parametrize(("name", "count"), [("mamba2", 4), ("mamba", 2)])
def test_a_model_of_states_alone_is_split_over_any_number_of_gpus(name: str, count: int) -> None:
    model = read_architecture(COUNTS[name]["config"], name=name)
    flags = EngineParameters(tensor_parallel_size=count, max_num_seqs=64)
    result = plan(model, find_gpu("L4"), count, flags)
    assert result.verdict == "fits"
    assert result.kv_bytes_per_token == 0
    assert result.needed_kv_bytes_per_gpu > 0  # its state


def test_a_block_that_attends_and_keeps_a_state_has_two_caches() -> None:
    model = read_architecture(COUNTS["falcon_h1"]["config"], name="falcon_h1")
    kinds = [str(layer.kv.kind) for layer in model.layers if layer.kv is not None]
    assert kinds[:2] == ["full", "state"]
    assert kinds.count("full") == kinds.count("state") == 32


def test_encoders_beside_the_text_model_are_counted_where_both_are_in_one_object() -> None:
    flat = dict(_further_models()["Qwen/Qwen3-ASR-0.6B"]["config"])
    thinker = {key: flat.pop(key) for key in ("text_config", "audio_config")}
    nested = read_architecture({**flat, "thinker_config": thinker}, name="as on the Hub")
    assert nested.num_parameters == find_model("Qwen/Qwen3-ASR-0.6B").num_parameters
    printed = 16.7371 * 2**30  # "Model loading took", vLLM 0.10.2; the talker is not loaded
    assert find_model("Qwen/Qwen2.5-Omni-7B").num_parameters * 2 == pytest.approx(printed, rel=0.01)


def test_zamba2_says_which_layers_attend_by_number_or_by_kind() -> None:
    config: dict[str, Any] = {
        "model_type": "zamba2", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 4, "mamba_d_state": 16,
        "mamba_ngroups": 1, "mamba_headdim": 16, "n_mamba_heads": 8, "num_mem_blocks": 2, "adapter_rank": 8,
        "max_position_embeddings": 128,
    }  # fmt: skip
    kinds = ["hybrid" if index in (1, 4) else "mamba" for index in range(6)]
    by_number, by_kind, without = (
        read_architecture({**config, **more}, name="zamba", source="test")
        for more in ({"hybrid_layer_ids": [1, 4]}, {"layers_block_type": kinds}, {})
    )
    assert by_kind.layers == by_number.layers
    assert by_kind.num_parameters == by_number.num_parameters > without.num_parameters
