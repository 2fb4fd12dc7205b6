"""Whisper: an audio encoder, and decoder layers that attend to it as well as to what was written.

`architecture.py` and `layers.py` call it. Shapes are those of transformers' modeling_whisper.py (5.23.0), checked by
parameter count. vLLM keeps the encoder's keys and values per request beside the decoder's
(v1/kv_cache_interface.py CrossAttentionSpec). A decoder layer is counted as two: attending to itself with the
feed-forward, and attending to the encoder.
"""

from __future__ import annotations

from collections.abc import Iterator

from exo_inference.planner.model.config_fields import ConfigFields, FieldProblem
from exo_inference.planner.model.shapes import (
    KvKind,
    KvSpec,
    Layer,
    Shard,
    VisionShape,
    Weight,
    vector,
)

_MAX_LAYERS = 4096


def build_decoder(fields: ConfigFields) -> list[Layer]:
    """Return the decoder: for each layer one that caches tokens and one that caches the encoder.

    Raises:
        FieldProblem: a size is missing or absurd.
    """
    count, hidden = fields.integer("decoder_layers"), fields.integer("hidden_size")
    heads = fields.integer("num_attention_heads")
    if not 1 <= count <= _MAX_LAYERS or heads < 1:
        raise FieldProblem(f"it has {count} decoder layers of {heads} heads")
    dim, wide = hidden // heads, fields.integer("decoder_ffn_dim")
    own = Layer(
        (
            *_attention("self_attn", hidden, heads),
            *_feed_forward(hidden, wide),
            vector("vectors", 4 * hidden),
        ),
        KvSpec(KvKind.FULL, heads, dim, dim),
    )
    positions = fields.integer("max_source_positions")
    cross = Layer(
        (*_attention("encoder_attn", hidden, heads), vector("vectors", 2 * hidden)),
        KvSpec(KvKind.CROSS, heads, dim, dim, window=positions),
    )
    return [layer for _ in range(count) for layer in (own, cross)]


def build_encoder(fields: ConfigFields) -> tuple[list[Weight], VisionShape]:
    """Return the encoder's weights, with the tables of positions, and its shape."""
    count, hidden = fields.integer("encoder_layers"), fields.integer("hidden_size")
    wide, positions = fields.integer("encoder_ffn_dim"), fields.integer("max_source_positions")
    bins, targets = fields.integer("num_mel_bins"), fields.integer("max_target_positions")
    part = "vision"  # an encoder in front of the text, like an image's
    # Vectors of a block: biases of queries, values, output and feed-forward, and two norms.
    block = [
        Weight("encoder.qkvo", part, 4 * hidden, hidden, count),
        Weight("encoder.fc", part, wide, hidden, 2 * count),
        Weight("encoder.vectors", part, 8 * hidden + wide, 1, count, Shard.REPLICATED),
    ]  # fmt: skip
    outer = [
        Weight("encoder.conv", part, hidden, 3 * (bins + hidden)),
        Weight("encoder.conv_bias_and_norm", part, 2 * hidden + 2 * hidden, 1, shard=Shard.REPLICATED),
        Weight("encoder.positions", part, positions, hidden, shard=Shard.REPLICATED),
        Weight("decoder.positions", "embedding", targets, hidden, shard=Shard.REPLICATED),
    ]  # fmt: skip
    return block + outer, VisionShape(hidden, wide, count, positions)


def _attention(path: str, hidden: int, heads: int) -> Iterator[Weight]:
    yield Weight(f"{path}.q_proj", "attention", hidden, hidden)
    for name in ("k", "v"):
        yield Weight(
            f"{path}.{name}_proj", "attention", hidden, hidden, shard=Shard.KV_HEADS, heads=heads
        )
    yield Weight(f"{path}.o_proj", "attention", hidden, hidden)
    yield vector("vectors", 3 * hidden)  # biases of all but the keys


def _feed_forward(hidden: int, wide: int) -> Iterator[Weight]:
    yield Weight("mlp.up_proj", "mlp", wide, hidden)
    yield Weight("mlp.down_proj", "mlp", hidden, wide)
    yield vector("vectors", wide + hidden)
