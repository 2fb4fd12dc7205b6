"""Shapes read from configs: exact for every model of the catalogue, honest for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exo_inference.planner import (
    EngineParameters,
    find_gpu,
    find_model,
    load_models,
    plan,
    read_architecture,
    with_index,
    with_tensors,
)
from exo_inference.planner.catalog_models import read_entry
from exo_inference.planner.model.checkpoint import (
    TensorSize,
    parse_safetensors_header,
    stored_bytes,
)
from exo_inference.planner.model.shapes import KvKind
from tests.planner.flags import settings_of

GIB = 2**30

# The published config leaves the vocabulary at 128,896; the class it was counted with has 128,815.
# Gemma 3n was counted without its encoders (audio, image, and the embeddings that join them).
COUNTED_WITH_OTHER_FIELDS = {
    "stepfun-ai/Step-3.7-Flash": 81 * 2 * 4096,
    "google/gemma-3n-E4B-it": 681_348_640 + 300_000_000 + 2048 * (2048 + 1536 + 2 * 128),
}


@pytest.mark.parametrize("name", sorted(load_models()))
def test_every_bundled_model_is_sized_exactly(name: str) -> None:
    entry, model = load_models()[name], read_entry(name)
    assert model.cannot_size is None
    counted = entry.get("num_parameters")
    if counted is not None:
        assert model.num_parameters == counted + COUNTED_WITH_OTHER_FIELDS.get(name, 0)
    assert model.kv_elements_per_token == plain_kv_arithmetic(entry["config"])


def plain_kv_arithmetic(config: Mapping[str, Any]) -> int:
    """Elements per token by the config's own fields, written out a second time."""
    c = {**config, **config.get("text_config", {})}
    layers = c.get("num_hidden_layers") or c.get("n_layer") or 0
    if "linear_attn_config" in c:
        full = len(c["linear_attn_config"]["full_attn_layers"])
        return full * (c["kv_lora_rank"] + c["qk_rope_head_dim"])
    if c.get("kv_lora_rank"):
        return layers * (c["kv_lora_rank"] + c["qk_rope_head_dim"])
    if "compress_ratios" in c:  # a vector per token, and one with an index per 4 or 128 tokens
        ratios, dim = c["compress_ratios"][:layers], c["head_dim"]
        four = ratios.count(4) * (dim + c["index_head_dim"]) // 4
        return layers * dim + four + ratios.count(128) * dim // 128
    heads = c.get("num_attention_heads") or c.get("n_head")
    hidden = c.get("hidden_size") or c.get("n_embd")
    default_dim = 256 if str(c["model_type"]).startswith("gemma") else hidden // heads
    dim = c.get("head_dim") or c.get("attention_head_dim") or default_dim
    kv = c.get("num_key_value_heads") or c.get("num_kv_heads") or heads
    if "block_configs" in c:
        groups = [b["attention"] for b in c["block_configs"]]
        return sum(
            2 * dim * heads // g["n_heads_in_group"] for g in groups if "n_heads_in_group" in g
        )
    if c["model_type"] == "falcon" and not c.get("new_decoder_architecture"):
        kv = 1
    if "hybrid_override_pattern" in c:
        return 2 * kv * dim * c["hybrid_override_pattern"].count("*")
    if "layers_block_type" in c:
        return 2 * kv * dim * c["layers_block_type"].count("attention")
    if (
        "hybrid_layer_pattern" in c
    ):  # MiMo-V2: other heads in sliding layers, keys and values differ
        sliding = sum(c["hybrid_layer_pattern"])
        full = (layers - sliding) * kv * (dim + c["v_head_dim"])
        return full + sliding * c["swa_num_key_value_heads"] * (
            c["swa_head_dim"] + c["swa_v_head_dim"]
        )
    kinds = c.get("layer_types") or ["full_attention"] * layers
    if c.get("full_attention_interval") and "layer_types" not in c:
        step = c["full_attention_interval"]
        kinds = [
            "full_attention" if (i + 1) % step == 0 else "linear_attention" for i in range(layers)
        ]
    kinds = kinds[: layers - (c.get("num_kv_shared_layers") or 0)]
    total = 0
    for kind in kinds:
        if kind in ("linear_attention", "mamba"):
            continue
        is_global = kind == "full_attention" and c.get("global_head_dim")
        width = c["global_head_dim"] if is_global else dim
        count = (c.get("num_global_key_value_heads") or kv) if is_global else kv
        total += 2 * count * width
    return total


def plain_index_bytes(config: Mapping[str, Any]) -> float:
    """Bytes per token of sparse attention's index: fp8 and a 4-byte scale per vector of 128."""
    c = {**config, **config.get("text_config", {})}
    layers = c.get("num_hidden_layers") or c.get("n_layer") or 0
    if not c.get("index_n_heads"):
        return 0.0
    size = c["index_head_dim"] + 4
    if "compress_ratios" in c:
        return c["compress_ratios"][:layers].count(4) * size / 4
    kinds = c.get("indexer_types") or ["full"] * layers
    return float(kinds[:layers].count("full") * size)


@pytest.mark.parametrize("dtype_bytes", [2, 1], ids=["16 bit", "fp8"])
@pytest.mark.parametrize("name", sorted(load_models()))
def test_a_planned_token_takes_the_configs_bytes(name: str, dtype_bytes: int) -> None:
    config = load_models()[name]["config"]
    flags = ["--kv-cache-dtype=bfloat16" if dtype_bytes == 2 else "--kv-cache-dtype=fp8"]
    result = plan(read_entry(name), find_gpu("H200"), 1, settings_of(flags))
    elements, index = plain_kv_arithmetic(config), plain_index_bytes(config)
    expected = elements * dtype_bytes + index
    c = {**config, **config.get("text_config", {})}
    if "compress_ratios" in c:  # the index is in the elements as well
        ratios, dim = c["compress_ratios"][: c["num_hidden_layers"]], c["head_dim"]
        row = dim * 2 if dtype_bytes == 2 else 584
        expected = len(ratios) * row + (ratios.count(4) / 4 + ratios.count(128) / 128) * row + index
    elif index and dtype_bytes == 1:  # fp8_ds_mla: 656 bytes per latent
        expected = 656 * c["num_hidden_layers"] + index
    assert result.kv_bytes_per_token == pytest.approx(expected, rel=1e-12)


def test_a_quantized_checkpoint_has_its_published_size() -> None:
    off = {}
    for name, entry in load_models().items():
        published, model = entry.get("published_bytes"), read_entry(name)
        # Prediction layers are in the files but not loaded; Gemma 4 E ships an audio tower.
        if not published or model.cannot_size or model.num_mtp_layers or "gemma-4-E" in name:
            continue
        error = stored_bytes(model) / published - 1
        if abs(error) > 0.003:
            off[name] = error
    assert off == {}


def test_deepseek_v4_has_its_published_size_with_the_prediction_layer() -> None:
    model = find_model("deepseek-ai/DeepSeek-V4-Pro")
    published = load_models()[model.name]["published_bytes"]
    draft = sum(
        w.format.matrix_bytes(w.out_features, w.in_features) * w.copies
        if w.format is not None
        else w.num_elements * 2
        for w in model.mtp_weights
    )
    assert stored_bytes(model) + draft == pytest.approx(published, rel=0.001)
    forms = {w.format.name if w.format else "" for w in model.layers[2].weights}
    assert {"fp8-block", "mxfp4", "fp32", ""} == forms


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({}, "no model_type"),
        ({"model_type": "no-such-model"}, "no-such-model"),
        (
            {"model_type": "m2m_100", "is_encoder_decoder": True},
            "m2m_100 has an encoder and a decoder, which is not modelled",
        ),
        (
            {"model_type": "whisper", "is_encoder_decoder": True},
            "no decoder_layers",
        ),
        (
            {"model_type": "marian", "is_encoder_decoder": True},
            "marian has an encoder and a decoder",
        ),
        (
            {"model_type": "deepseek_v4", "num_hidden_layers": 2},
            "no compress_ratios for its 2 layers",
        ),
        (
            {"model_type": "deepseek_v4", "num_hidden_layers": 1, "compress_ratios": [7]},
            "compress_ratios holds 7",
        ),
        ({"model_type": "llama"}, "num_hidden_layers"),
        ({"model_type": "llama", "num_hidden_layers": "many"}, "expected a number"),
        ({"model_type": "llama", "num_hidden_layers": 10**9}, "expected 1 to"),
        ({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 0}, ""),
    ],
)
def test_what_cannot_be_sized_says_because(config: dict[str, Any], word: str) -> None:
    reason = read_architecture(config, name="x").cannot_size
    assert reason is not None
    assert word in reason


junk = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 10**15), st.floats(), st.text(max_size=8), st.just([]), st.just({}),
    st.lists(st.integers(-1, 9), max_size=4), st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)  # fmt: skip


@pytest.mark.parametrize("examples", [75, pytest.param(300, marks=pytest.mark.slow)])
def test_no_config_makes_reading_or_planning_raise(examples: int) -> None:
    settings(max_examples=examples)(given(st.data())(plan_mutated))()


def plan_mutated(data: st.DataObject) -> None:
    """Plan a model whose config.json has junk in it."""
    config = dict(load_models()[data.draw(st.sampled_from(sorted(load_models())))]["config"])
    inner = data.draw(st.sampled_from(["", *(k for k, v in config.items() if isinstance(v, dict))]))
    if inner:
        config[inner] = dict(config[inner])
    target = config[inner] if inner else config
    for key in data.draw(
        st.lists(st.sampled_from(sorted(target) or ["x"]), min_size=1, max_size=3)
    ):
        target[key] = data.draw(junk)
    model = read_architecture(config, name="mutated")
    for version in ("0.12.0", "0.33.0"):
        result = plan(model, find_gpu("L4"), 2, EngineParameters(engine_version=version))
        assert (result.verdict == "unknown") == (model.cannot_size is not None)


def test_an_unknown_quantization_cannot_be_sized() -> None:
    entry = load_models()["Qwen/Qwen3-0.6B"]["config"]
    model = read_architecture({**entry, "quantization_config": {"quant_method": "magic"}})
    assert model.cannot_size is not None
    assert "magic" in model.cannot_size


def test_unquantized_modules_of_a_list_keep_sixteen_bits() -> None:
    model = find_model("nvidia/Gemma-4-26B-A4B-NVFP4")
    parts = {w.path.partition(".")[0]: w.format for layer in model.layers for w in layer.weights}
    assert parts["self_attn"] is None
    experts = [w for layer in model.layers for w in layer.weights if w.part == "routed_experts"]
    assert {w.format.name if w.format else None for w in experts} == {"nvfp4"}


def test_mixed_precision_is_read_per_module() -> None:
    model = find_model("nvidia/Qwen3.6-27B-NVFP4")
    forms = {
        w.path: w.format.name if w.format else "16 bit"
        for layer in model.layers
        for w in layer.weights
    }
    assert forms["mlp.gate_proj"] == "nvfp4"
    assert forms["linear_attn.out_proj"] == "fp8"
    assert forms["linear_attn.in_proj_ba"] == "16 bit"


def test_headers_give_the_exact_size() -> None:
    model = find_model("Qwen/Qwen3-0.6B")
    tensors = [
        TensorSize("model.embed_tokens.weight", "BF16", (151936, 1024)),
        TensorSize("lm_head.weight", "BF16", (151936, 1024)),  # a stored copy of tied embeddings
        TensorSize("model.layers.0.mlp.up_proj.weight", "BF16", (3072, 1024)),
        TensorSize("mtp.fc.weight", "BF16", (1024, 2048)),
    ]
    assert with_tensors(model, tensors).checkpoint_bytes == 2 * 1024 * (151936 + 3072)


def test_a_header_is_parsed_and_a_cut_one_refused() -> None:
    text = (
        b'{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}'
    )
    data = len(text).to_bytes(8, "little") + text
    assert parse_safetensors_header(data) == [TensorSize("a", "BF16", (2, 3))]
    with pytest.raises(ValueError, match="header"):
        parse_safetensors_header(data[:-1])


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"{",
        b"[" * 100_000,
        b'{"a":1}',
        b'{"a":{"dtype":"BF16"}}',
        b'{"a":{"dtype":"F8","shape":[Infinity]}}',
    ],
    ids=["list", "cut", "deep", "no tensor", "no shape", "endless"],
)
def test_a_header_of_another_form_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_safetensors_header(len(text).to_bytes(8, "little") + text)


def test_an_index_that_counts_more_than_is_loaded_widens_the_band() -> None:
    model = find_model("Qwen/Qwen3-8B")
    exact = with_index(model, {"metadata": {"total_size": int(stored_bytes(model))}})
    assert exact.checkpoint_bytes is not None
    other = with_index(model, {"metadata": {"total_size": 2 * stored_bytes(model)}})
    assert other.checkpoint_bytes is None
    assert other.weights_error > model.weights_error


def test_windows_and_states_are_kinds_of_their_own() -> None:
    kinds = {layer.kv.kind for layer in find_model("openai/gpt-oss-20b").layers if layer.kv}
    assert kinds == {KvKind.FULL, KvKind.SLIDING}
    kinds = {layer.kv.kind for layer in find_model("Qwen/Qwen3.5-9B").layers if layer.kv}
    assert kinds == {KvKind.FULL, KvKind.STATE}


@pytest.mark.parametrize(
    ("method", "gigabytes"), [("fp16", 16), ("fp8", 8), ("w4a16", 4)], ids=["fp16", "fp8", "fp4"]
)
def test_the_guide_sizes_an_8b_model_by_bits(method: str, gigabytes: int) -> None:
    """The guide's 16, 8 and 4 GB count every parameter of 8 billion at that many bits."""
    parameters = find_model("meta-llama/Llama-3.1-8B-Instruct").num_parameters
    bits = {"fp16": 16, "fp8": 8, "w4a16": 4}[method]
    assert parameters * bits / 8 / 1e9 == pytest.approx(gigabytes, rel=0.01)


@pytest.mark.parametrize(("tokens", "gib"), [(4096, 1.25), (131072, 40.0)])
def test_the_guide_sizes_the_cache_of_a_70b_model(tokens: int, gib: float) -> None:
    model = find_model("meta-llama/Llama-3.1-70B-Instruct")
    assert tokens * model.kv_elements_per_token * 2 / GIB == gib
