"""Builds the decoder layers of a model from its config: weights and caches, layer by layer.

`architecture.py` calls `build_layers`. Which layer attends how and the feed-forward's choice are here, attention
itself in `attention_layers.py`, experts in `experts.py`, state-space layers in `state_layers.py`. Quantized
formats are attached later, by `architecture.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from exo_inference.planner.model.attention_layers import (
    Heads,
    attention_weights,
    expanded_spec,
    kv_spec,
    latent_spec,
    latent_weights,
    read_heads,
    unstored_projections,
    windowed,
)
from exo_inference.planner.model.compressed_layers import (
    compress_ratios,
    compressed_layer,
    stream_gates,
)
from exo_inference.planner.model.config_fields import ConfigFields, FieldProblem, whole_number
from exo_inference.planner.model.encoders import (
    build_encoder_layers,
    build_text_decoder,
    gated_as_asked,
)
from exo_inference.planner.model.experts import mlp_weights, moe_weights
from exo_inference.planner.model.families import Family
from exo_inference.planner.model.hybrid_layers import HYBRIDS, Attention
from exo_inference.planner.model.shapes import KvSpec, Layer, Shard, Weight, vector
from exo_inference.planner.model.state_layers import build_state_layer
from exo_inference.planner.model.whisper import build_decoder

_MAX_LAYERS = 4096


def build_layers(fields: ConfigFields, family: Family) -> list[Layer]:
    """Return the decoder layers in order.

    Raises:
        FieldProblem: the config lacks something that is needed, or describes something unknown.
    """
    if family.layout == "pattern":
        return list(_nemotron_layers(fields, family))
    if family.layout == "encoder_decoder":
        return build_decoder(fields)
    if family.layout == "encoder":
        return build_encoder_layers(fields, family)
    if family.layout == "text_to_text":
        return build_text_decoder(fields, gated_as_asked(fields, family))
    if family.layout in HYBRIDS:
        return HYBRIDS[family.layout](fields, family, _ordinary(fields, family))
    count = fields.integer("num_hidden_layers")
    if not 1 <= count <= _MAX_LAYERS:
        raise FieldProblem(f"num_hidden_layers is {count}, expected 1 to {_MAX_LAYERS}")
    if family.layout == "blocks":
        return list(_nas_layers(fields, family))
    kinds = attention_kinds(fields, family, count)
    if family.layout == "doubled":
        return _doubled_layers(fields, family) * count
    if family.layout == "compressed":
        return _compressed_layers(fields, family, count)
    cache: dict[tuple[object, ...], Layer] = {}
    layers = []
    for index in range(count):
        key = (kinds[index], is_moe_layer(fields, family, index), has_indexer(fields, index), _intermediate(fields, family, index),
               owns_kv(fields, index, count), _heads_of_layer(fields, index))  # fmt: skip
        if key not in cache:
            cache[key] = _build_layer(fields, family, index, kinds[index], count)
        layers.append(cache[key])
    return layers


def _ordinary(fields: ConfigFields, family: Family) -> Attention:
    """Return how an attending layer is built whose family has states in layouts of its own."""
    return Attention(
        lambda: attention_weights(fields, family, read_heads(fields, family, "full"), "full"),
        lambda: kv_spec(fields, read_heads(fields, family, "full"), "full"),
    )


def _compressed_layers(fields: ConfigFields, family: Family, count: int) -> list[Layer]:
    """Return the layers of DeepSeek-V4, all of them with experts."""
    known: dict[int, Layer] = {}
    layers = []
    for ratio in compress_ratios(fields, count):
        if ratio not in known:
            weights, kv = compressed_layer(fields, ratio)
            weights += moe_weights(fields, family)
            weights += _norms(fields, family, fields.integer("hidden_size"))
            known[ratio] = Layer(tuple(weights), kv, uses_moe=True)
        layers.append(known[ratio])
    return layers


def _doubled_layers(fields: ConfigFields, family: Family) -> list[Layer]:
    """Return one layer of LongCat as two: it attends twice, with a dense feed-forward behind each, and experts beside."""
    own = (
        *latent_weights(fields, family, has_index=False),
        *_feed_forward(fields, family, 0, is_moe=False),
        *_norms(fields, family, fields.integer("hidden_size")),
    )
    kv = latent_spec(fields, has_index=False)
    return [Layer((*own, *moe_weights(fields, family)), kv, uses_moe=True), Layer(own, kv)]


def attention_kinds(fields: ConfigFields, family: Family, count: int) -> list[str]:
    """Return per layer: full, sliding, chunked, latent, window (of latents), linear or ssd (Mamba-2)."""
    if "linear_attn_config" in fields.raw and fields.mapping("linear_attn_config"):
        full = set(fields.mapping("linear_attn_config").get("full_attn_layers") or [])
        return ["latent" if index + 1 in full else "linear" for index in range(count)]
    named = fields.sequence("layer_types")
    if fields.get("kv_lora_rank") and "linear_attention" in (named or []):
        return ["linear" if name == "linear_attention" else "latent" for name in named or []][
            :count
        ]
    if fields.get("kv_lora_rank"):
        windows = named if named is not None and fields.get("swa_kv_lora_rank") else []
        return ["window" if name == "sliding_attention" else "latent" for name in windows] or [
            "latent"
        ] * count
    if named is not None:
        if len(named) < count:
            raise FieldProblem(f"layer_types names {len(named)} layers, expected {count}")
        return [_kind_named(str(name)) for name in named[:count]]
    attending = fields.sequence("attn_layer_indices") or fields.sequence("full_attn_idxs")
    if family.others_are:
        return [
            "full" if index in (attending or []) else family.others_are for index in range(count)
        ]
    interval = fields.integer("full_attention_interval", 0)
    if interval and fields.get("linear_num_value_heads"):
        return ["full" if (index + 1) % interval == 0 else "linear" for index in range(count)]
    hybrid = fields.sequence("hybrid_layer_pattern")
    if hybrid is not None and len(hybrid) >= count:
        return ["sliding" if entry else "full" for entry in hybrid[:count]]
    return _window_kinds(fields, family, count)


def _kind_named(name: str) -> str:
    known = {
        "full_attention": "full", "attention": "full", "global_attention": "full",
        "sliding_attention": "sliding", "local_attention": "sliding", "chunked_attention": "chunked",
        "linear_attention": "linear", "mamba": "ssd", "mamba2": "ssd", "conv": "conv",
    }  # fmt: skip
    if name not in known:
        raise FieldProblem(f"its layer type {name!r} is unknown here")
    return known[name]


def _window_kinds(fields: ConfigFields, family: Family, count: int) -> list[str]:
    """Return the kinds where only a window and the family say which layers use it."""
    every, kind = family.full_every, family.windows_are
    if kind == "sliding":
        window = fields.get("sliding_window")
        first = family.full_first
        if not window or not fields.flag("use_sliding_window", default=not first):
            return ["full"] * count
        if first:
            first = fields.integer("max_window_layers", first)
            return ["sliding" if index >= first else "full" for index in range(count)]
        pattern = fields.get("sliding_window_pattern")
        if isinstance(pattern, int) and pattern > 1:
            every = pattern
    return ["full" if every and (index + 1) % every == 0 else kind for index in range(count)]


def is_moe_layer(fields: ConfigFields, family: Family, index: int) -> bool:
    """Whether the layer's feed-forward is routed experts."""
    if not fields.get("num_experts") or not fields.get("experts_per_token"):
        return False
    if family.experts_beside_mlp:
        return fields.flag("enable_moe_block")
    named = fields.sequence("mlp_layer_types")
    if named is not None and index < len(named):
        return str(named[index]) == "sparse"
    numbers = fields.get("moe_layers_enum")
    if isinstance(numbers, str | list):
        listed = numbers.split(",") if isinstance(numbers, str) else numbers
        return index in {int(each) for each in listed}
    frequency = fields.get("moe_layer_freq")
    if isinstance(frequency, list) and index < len(frequency):
        return bool(frequency[index])
    if index < fields.integer("first_k_dense_replace", 0):
        return False
    if index in (fields.sequence("mlp_only_layers") or []):
        return False
    step = fields.integer("interleave_moe_layer_step", fields.integer("decoder_sparse_step", 1))
    return step <= 1 or (index + 1) % step == 0


def has_indexer(fields: ConfigFields, index: int) -> bool:
    """Whether the layer has its own sparse-attention index (DeepSeek-V3.2, GLM-5)."""
    if not fields.get("index_n_heads") or not fields.get("kv_lora_rank"):
        return False
    kinds = fields.sequence("indexer_types")
    return kinds is None or index >= len(kinds) or str(kinds[index]) == "full"


def owns_kv(fields: ConfigFields, index: int, count: int) -> bool:
    """Whether the layer has a cache of its own rather than an earlier layer's (Gemma 3n, 4 E)."""
    return index < count - fields.integer("num_kv_shared_layers", 0)


def _intermediate(fields: ConfigFields, family: Family, index: int) -> int:
    value = fields.get("intermediate_size")
    if isinstance(value, list):
        return whole_number("intermediate_size", value[index] if index < len(value) else None)
    if value is None and family.mlp_multiple is not None:
        return fields.integer("expansion_ratio", family.mlp_multiple) * fields.integer(
            "hidden_size"
        )
    if family.rounds_mlp_width:
        return _rounded_width(fields)
    if value is None and fields.get("moe_intermediate_size"):
        return 0
    return fields.integer("intermediate_size") // family.mlp_divisor


def _rounded_width(fields: ConfigFields) -> int:
    """Return LFM2's width of the feed-forward (transformers, Lfm2MLP): two thirds, rounded up."""
    size = fields.integer("block_ff_dim", fields.integer("intermediate_size"))
    if not fields.flag("block_auto_adjust_ff_dim", default=True):
        return size
    multiplier, step = (
        fields.get("block_ffn_dim_multiplier"),
        fields.integer("block_multiple_of", 256),
    )
    size = 2 * size // 3
    if isinstance(multiplier, int | float):
        size = int(multiplier * size)
    return -(-size // max(1, step)) * step


def _build_layer(fields: ConfigFields, family: Family, index: int, kind: str, count: int) -> Layer:
    hidden = fields.integer("hidden_size")
    weights: list[Weight] = []
    unstored: list[Weight] = []
    kv: KvSpec | None
    if kind in ("linear", "ssd", "conv"):
        state_weights, kv = build_state_layer(fields, kind)
        weights += state_weights
    elif kind in ("latent", "window"):
        latent, has_index = fields, kind == "latent" and has_indexer(fields, index)
        if kind == "window":
            latent = windowed(fields)
        weights += latent_weights(latent, family, has_index=has_index)
        kv = latent_spec(latent, has_index=has_index, in_window=kind == "window")
        if family.expands_latents:
            kv = expanded_spec(fields)
    else:
        heads = read_heads(fields, family, kind)
        heads = replace(heads, num_heads=_heads_of_layer(fields, index) or heads.num_heads)
        is_owner = owns_kv(fields, index, count)
        weights += attention_weights(fields, family, heads, kind, is_owner=is_owner)
        kv = kv_spec(fields, heads, kind) if is_owner else None
        if family.fills_qkv:
            unstored = unstored_projections(fields, heads, kind, is_owner=is_owner)
    is_moe = is_moe_layer(fields, family, index)
    weights += _feed_forward(fields, family, index, is_moe=is_moe)
    weights += _norms(fields, family, hidden)
    if family.gates_streams:
        weights += stream_gates(fields)
    return Layer(
        tuple(weights), kv, is_windowed=kind in ("sliding", "chunked", "window"), uses_moe=is_moe,
        unstored=tuple(unstored),
    )  # fmt: skip


def _heads_of_layer(fields: ConfigFields, index: int) -> int | None:
    """Return the query heads of a layer where they differ (Laguna), or None."""
    listed = fields.sequence("num_attention_heads_per_layer")
    if listed is None or index >= len(listed):
        return None
    return whole_number("num_attention_heads_per_layer", listed[index])


def _feed_forward(
    fields: ConfigFields, family: Family, index: int, *, is_moe: bool
) -> Iterator[Weight]:
    hidden = fields.integer("hidden_size")
    if is_moe:
        yield from moe_weights(fields, family)
    if is_moe and not family.experts_beside_mlp:
        return
    size = _intermediate(fields, family, index)
    if fields.get("dense_intermediate_size") and fields.get("num_experts"):
        size = fields.integer("dense_intermediate_size")
    if family.mlp_width_field:
        size = fields.integer(family.mlp_width_field, size)
    if fields.flag("use_double_wide_mlp") and not owns_kv(
        fields, index, fields.integer("num_hidden_layers")
    ):
        size *= 2
    yield from mlp_weights("mlp", "mlp", hidden, size, is_gated=family.gated_mlp)
    if fields.flag("mlp_bias") if family.mlp_bias is None else family.mlp_bias:
        yield vector("mlp.bias", size * (2 if family.gated_mlp else 1) + hidden)
    if family.activation_vectors:
        yield vector("mlp.act_fn", family.activation_vectors)


def _norms(fields: ConfigFields, family: Family, hidden: int) -> Iterator[Weight]:
    count = family.norms
    if family.multi_query and fields.flag("new_decoder_architecture"):
        count = 2
    yield vector("norms", hidden * count * (2 if family.norm_bias else 1))
    extra = fields.integer("hidden_size_per_layer_input", 0)
    if extra and family.per_layer_inputs:
        yield Weight("per_layer_input_gate", "mlp", extra, hidden, shard=Shard.REPLICATED)
        yield Weight("per_layer_projection", "mlp", hidden, extra, shard=Shard.REPLICATED)
        yield vector("post_per_layer_input_norm", hidden)
    if family.adaptive_norms:
        yield Weight("ada_rms_norm", "mlp", family.adaptive_norms, hidden, 2, Shard.REPLICATED)
    if family.altup:
        yield from _altup(fields, hidden)


def _altup(fields: ConfigFields, hidden: int) -> Iterator[Weight]:
    """Yield what Gemma 3n adds to a layer: alternating updates (AltUp) and a low-rank branch (LAuReL)."""
    inputs, rank = fields.integer("altup_num_inputs"), fields.integer("laurel_rank")
    one = Shard.REPLICATED
    # Coefficients, a router and its norm, and a scale per channel.
    yield vector("altup.vectors", inputs * inputs * (1 + inputs) + 2 * hidden)
    yield Weight("altup.modality_router", "router", inputs, hidden, shard=one)
    yield Weight("laurel.linear_left", "mlp", rank, hidden, shard=one)
    yield Weight("laurel.linear_right", "mlp", hidden, rank, shard=one)
    yield vector("laurel.post_laurel_norm", hidden)


def _nemotron_layers(fields: ConfigFields, family: Family) -> Iterator[Layer]:
    """Yield the layers of Nemotron-H: each is one of Mamba, attention, MLP or experts."""
    named = {
        "mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "moe": "E", "mlp": "-",
    }  # fmt: skip
    listed = fields.sequence("layers_block_type")
    pattern = fields.text("hybrid_override_pattern")
    if listed is not None:
        pattern = "".join(named.get(str(entry), "?") for entry in listed)
    if not 1 <= len(pattern) <= _MAX_LAYERS:
        raise FieldProblem("config.json has no hybrid_override_pattern")
    known: dict[str, Layer] = {}
    for symbol in pattern:
        if symbol not in known:
            known[symbol] = _nemotron_layer(fields, family, symbol)
        yield known[symbol]


def _nemotron_layer(fields: ConfigFields, family: Family, symbol: str) -> Layer:
    hidden = fields.integer("hidden_size")
    weights: list[Weight] = [vector("norm", hidden)]
    kv: KvSpec | None = None
    if symbol == "M":
        state_weights, kv = build_state_layer(fields, "ssd")
        weights += state_weights
    elif symbol == "*":
        if not fields.get("head_dim"):
            raise FieldProblem("config.json has no head_dim")
        heads = read_heads(fields, family, "full")
        weights += attention_weights(fields, family, heads, "full")
        kv = kv_spec(fields, heads, "full")
    elif symbol == "E":
        weights += moe_weights(fields, family)
    elif symbol == "-":
        size = fields.integer("intermediate_size")
        weights += mlp_weights("mixer", "mlp", hidden, size, is_gated=False)
    else:
        raise FieldProblem(f"hybrid_override_pattern holds {symbol!r}, expected M, *, E or -")
    return Layer(tuple(weights), kv, uses_moe=symbol == "E")


def _nas_layers(fields: ConfigFields, family: Family) -> Iterator[Layer]:
    """Yield the layers of Nemotron-NAS: each block says whether it attends and how wide its MLP is."""
    hidden, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    blocks = fields.sequence("block_configs")
    if blocks is None:
        raise FieldProblem("config.json has no block_configs")
    for block in blocks:
        attention, ffn = block.get("attention") or {}, block.get("ffn") or {}
        weights: list[Weight] = []
        kv: KvSpec | None = None
        if attention.get("replace_with_linear"):
            weights.append(Weight("self_attn.linear_attn", "attention", hidden, hidden))
        elif not attention.get("no_op"):
            group = whole_number("n_heads_in_group", attention.get("n_heads_in_group"))
            dim = hidden // num_heads
            heads = Heads(num_heads, max(1, num_heads // max(1, group)), dim, dim)
            weights += attention_weights(fields, family, heads, "full")
            kv = kv_spec(fields, heads, "full")
        has_attention, has_ffn = bool(weights), not ffn.get("no_op")
        if ffn.get("replace_with_linear"):
            weights.append(Weight("mlp.linear_mlp", "mlp", hidden, hidden))
        elif has_ffn:
            size = _nas_width(float(ffn.get("ffn_mult") or 0), hidden)
            weights += mlp_weights("mlp", "mlp", hidden, size, is_gated=True)
        weights.append(vector("norms", hidden * (int(has_attention) + int(has_ffn))))
        yield Layer(tuple(weights), kv)


def _nas_width(multiple: float, hidden: int) -> int:
    """Return the MLP width of a Nemotron-NAS block: 2/3 of the multiple, rounded up to 256."""
    size = int(2 * multiple * hidden / 3)
    return size if size % 256 == 0 else size + 256 - size % 256
