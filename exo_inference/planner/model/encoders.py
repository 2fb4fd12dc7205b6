"""Encoders of text, and models that write from an encoded text: BERT-likes, T5, BART.

`layers.py` and `outer_weights.py` call it by the family's layout. Shapes are those of transformers 5.23.0, checked by
parameter count. An encoder that embeds or ranks keeps no cache. A decoder layer that attends to an encoder is counted
as two, as Whisper's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from exo_inference.planner.model.config_fields import ConfigFields, FieldProblem
from exo_inference.planner.model.experts import mlp_weights, moe_weights
from exo_inference.planner.model.families import Family
from exo_inference.planner.model.shapes import KvKind, KvSpec, Layer, Shard, Weight, vector

MAX_LAYERS = 4096


def _count(fields: ConfigFields, name: str) -> int:
    count = fields.integer(name)
    if not 1 <= count <= MAX_LAYERS:
        raise FieldProblem(f"{name} is {count}, expected 1 to {MAX_LAYERS}")
    return count


def build_encoder_layers(fields: ConfigFields, family: Family) -> list[Layer]:
    """Return the layers of an encoder that stands alone; none of them has a cache.

    Raises:
        FieldProblem: a size is missing or absurd.
    """
    hidden, wide = fields.integer("hidden_size"), fields.integer("intermediate_size")
    family = _as_named(fields, family)
    shared = (
        *_attention("attention", hidden, hidden, 1, has_bias=bool(family.qkv_bias)),
        vector("norms", _norm(family, 2 * hidden)),
    )
    plain = Layer((*shared, *_feed_forward("mlp", hidden, wide, 1, family)), None)
    every, count = fields.integer("moe_every_n_layers", 0), _count(fields, "num_hidden_layers")
    if not every:
        return [plain] * count
    experts = (*moe_weights(fields, family), vector("mlp.experts.bias", hidden))
    routed = Layer((*shared, *experts), None, uses_moe=True)
    return [routed if index % every == 1 else plain for index in range(count)]


def _as_named(fields: ConfigFields, family: Family) -> Family:
    """Return the family with the biases and the feed-forward that a config of Nomic's own form names."""
    if fields.get("qkv_proj_bias") is None:
        return family
    has_bias = fields.flag("qkv_proj_bias")
    is_gated = fields.text("activation_function") == "swiglu"
    return replace(family, qkv_bias=has_bias, mlp_bias=has_bias, gated_mlp=is_gated)


def encoder_outer(fields: ConfigFields, family: Family) -> list[Weight]:
    """Return tables, pooler and classifier of an encoder that stands alone."""
    hidden = fields.integer("hidden_size")
    rows = fields.integer("type_vocab_size", 0)
    if family.positions is not None and fields.flag("position_biased_input", default=True):
        rows += fields.integer("max_position_embeddings") + family.positions
    buckets = fields.integer("relative_attention_num_buckets", 0)
    return [
        Weight("embed_tokens", "embedding", fields.integer("vocab_size"), hidden),
        vector("embeddings.norm", _norm(family, hidden)),  # before layers (post-norm) or behind
        Weight("positions", "embedding", rows, hidden, shard=Shard.REPLICATED),
        vector("relative_attention_bias", buckets * fields.integer("num_attention_heads")),
        *_relative_positions(fields, family, hidden),
        *_heads(fields, family, hidden),
    ]


def _relative_positions(fields: ConfigFields, family: Family, hidden: int) -> Iterator[Weight]:
    """Yield what DeBERTa's layers share: embeddings of distances, their norm, and a convolution.

    Raises:
        FieldProblem: layers have projections of distances of their own.
    """
    if not fields.flag("relative_attention"):
        return
    if not fields.flag("share_att_key"):
        raise FieldProblem("its share_att_key is not true, and other projections are not modelled")
    spans = (fields.get("position_buckets"), fields.get("max_relative_positions"))
    known = (each for each in spans if isinstance(each, int) and each > 0)
    reach = next(known, fields.integer("max_position_embeddings"))
    yield Weight("rel_embeddings", "embedding", 2 * reach, hidden, shard=Shard.REPLICATED)
    if "layer_norm" in fields.text("norm_rel_ebd"):
        yield vector("rel_embeddings.norm", _norm(family, hidden))
    kernel = fields.integer("conv_kernel_size", 0)
    if kernel:
        yield Weight("conv", "mlp", hidden, kernel * hidden, shard=Shard.REPLICATED)
        yield vector("conv.vectors", hidden + _norm(family, hidden))


def _heads(fields: ConfigFields, family: Family, hidden: int) -> Iterator[Weight]:
    """Yield the dense layer over a text, and what scores it in a class that does."""
    named = [str(each) for each in fields.sequence("architectures") or []]
    scores = any(each.endswith("ForSequenceClassification") for each in named)
    if family.pools or scores:
        yield Weight("pooler", "mlp", hidden, hidden, shard=Shard.REPLICATED)
        yield vector("pooler.bias", hidden)
    if scores:
        labels = len(fields.mapping("id2label")) or fields.integer("num_labels", 2)
        yield vector("classifier", labels * (hidden + 1))


def build_text_decoder(fields: ConfigFields, family: Family) -> list[Layer]:
    """Return the decoder of a model that encodes its prompt: per layer one that caches tokens and one for the encoder.

    Raises:
        FieldProblem: a size is missing or absurd.
    """
    hidden, wide, heads, inner = _sizes(fields, "decoder")
    count = _count(fields, _layers_of(fields, "decoder"))
    has_bias, dim = bool(family.qkv_bias), inner // max(1, heads)
    positions = fields.integer("max_position_embeddings", _ASSUMED_POSITIONS)
    own = Layer(
        (
            *_attention("self_attn", hidden, inner, 1, has_bias=has_bias),
            *_feed_forward("mlp", hidden, wide, 1, family),
            vector("norms", _norm(family, 2 * hidden)),
        ),
        KvSpec(KvKind.FULL, heads, dim, dim),
    )
    cross = Layer(
        (
            *_attention("encoder_attn", hidden, inner, 1, has_bias=has_bias),
            vector("norms", _norm(family, hidden)),
        ),
        KvSpec(KvKind.CROSS, heads, dim, dim, window=positions),
    )
    return [layer for _ in range(count) for layer in (own, cross)]


def text_encoder(fields: ConfigFields, family: Family) -> list[Weight]:
    """Return the encoder in front of such a decoder, with the tables of positions and the last norms."""
    hidden, wide, heads, inner = _sizes(fields, "encoder")
    count = _count(fields, _layers_of(fields, "encoder"))
    weights = [
        *_attention("encoder.attention", hidden, inner, count, has_bias=bool(family.qkv_bias)),
        *_feed_forward("encoder.mlp", hidden, wide, count, family),
        Weight("encoder.norms", "norm", _norm(family, 2 * hidden), 1, count, Shard.REPLICATED),
        vector("last_norms", _norm(family, hidden)),  # the decoder's stands with the tables
    ]
    buckets = fields.integer("relative_attention_num_buckets", 0)
    if buckets:
        weights.append(vector("relative_attention_bias", 2 * buckets * heads))
    if family.positions is not None:  # the decoder's table stands with the embeddings
        rows = fields.integer("max_position_embeddings") + family.positions
        weights.append(
            Weight("encoder.positions", "embedding", rows, hidden, shard=Shard.REPLICATED)
        )
    return weights


_ASSUMED_POSITIONS = 512
"""Of T5's configs, which bound no length (`n_positions` of the published ones)."""


def _layers_of(fields: ConfigFields, side: str) -> str:
    if fields.raw.get(f"{side}_layers") is not None:
        return f"{side}_layers"
    own = f"num_{side}_layers"
    return own if fields.raw.get(own) is not None else "num_layers"


def _sizes(fields: ConfigFields, side: str) -> tuple[int, int, int, int]:
    """Return hidden size, width of the feed-forward, heads, and the width of all heads."""
    hidden = fields.integer("hidden_size")
    wide = fields.integer(f"{side}_ffn_dim", fields.integer("d_ff", 0))
    heads = fields.integer(f"{side}_attention_heads", fields.integer("num_attention_heads", 0))
    if not heads or not wide:
        raise FieldProblem(f"its {side} has {heads} heads and a width of {wide}")
    return hidden, wide, heads, heads * fields.integer("d_kv", hidden // heads)


def _attention(
    path: str, hidden: int, inner: int, copies: int, *, has_bias: bool
) -> Iterator[Weight]:
    yield Weight(f"{path}.qkv_proj", "attention", 3 * inner, hidden, copies)
    yield Weight(f"{path}.o_proj", "attention", hidden, inner, copies)
    if has_bias:
        yield Weight(f"{path}.bias", "norm", 3 * inner + hidden, 1, copies, Shard.REPLICATED)


def _feed_forward(
    path: str, hidden: int, wide: int, copies: int, family: Family
) -> Iterator[Weight]:
    yield from mlp_weights(path, "mlp", hidden, wide, is_gated=family.gated_mlp, copies=copies)
    if family.mlp_bias:  # a gated one has none on the way up (GTE)
        size = hidden if family.gated_mlp else wide + hidden
        yield Weight(f"{path}.bias", "norm", size, 1, copies, Shard.REPLICATED)


def gated_as_asked(fields: ConfigFields, family: Family) -> Family:
    """Return the family with the feed-forward that T5's `feed_forward_proj` names."""
    return replace(family, gated_mlp=fields.text("feed_forward_proj").startswith("gated"))


def _norm(family: Family, size: int) -> int:
    return size * (2 if family.norm_bias else 1)
