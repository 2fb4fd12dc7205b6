"""The weights outside the decoder layers: embeddings, head, encoders, and prediction layers.

`architecture.py` reads them from a config and gives them their number formats.
"""

from __future__ import annotations

from dataclasses import replace

from exo_inference.planner.model.audio import build_audio
from exo_inference.planner.model.compressed_layers import hyper_head
from exo_inference.planner.model.config_fields import ConfigFields, FieldProblem
from exo_inference.planner.model.encoders import encoder_outer, gated_as_asked, text_encoder
from exo_inference.planner.model.families import Family
from exo_inference.planner.model.shapes import KvKind, Layer, Shard, VisionShape, Weight
from exo_inference.planner.model.vision import build_vision
from exo_inference.planner.model.whisper import build_encoder

MAX_VOCAB_SIZE = 10_000_000


def outer_weights(
    fields: ConfigFields, family: Family
) -> tuple[list[Weight], VisionShape | None, bool]:
    """Return the weights outside the layers, the image encoder, and whether all encoders are known.

    Raises:
        FieldProblem: a field that they need is absent or absurd.
    """
    hidden, vocab = fields.integer("hidden_size"), fields.integer("vocab_size")
    if vocab > MAX_VOCAB_SIZE:
        raise FieldProblem(f"vocab_size is {vocab}, expected at most {MAX_VOCAB_SIZE}")
    if family.layout == "encoder":
        text = encoder_outer(fields, family)
        beside = build_vision(fields)
        return (text, None, True) if beside is None else (text + beside[0], *beside[1:])
    is_tied = fields.flag("tie_word_embeddings", default=family.ties_by_default)
    weights = [Weight("embed_tokens", "embedding", vocab, hidden)]
    score = _score(fields, hidden)
    weights += score
    if not is_tied and not score:  # a tied head is the embedding, and loaded once
        weights.append(Weight("lm_head", "lm_head", vocab, hidden))
    final = 0 if family.norms == 0 else hidden * (2 if family.norm_bias else 1)
    weights.append(Weight("norm", "norm", final, 1, shard=Shard.REPLICATED))
    if family.embedding_norm:
        weights.append(
            Weight("word_embeddings_layernorm", "norm", 2 * hidden, 1, shard=Shard.REPLICATED)
        )
    if family.layout == "compressed" or family.gates_streams:
        weights.append(hyper_head(fields))
    if family.positions is not None:
        rows = fields.integer("max_position_embeddings") + family.positions
        weights.append(Weight("embed_positions", "embedding", rows, hidden, shard=Shard.REPLICATED))
    if family.lm_head_bias or fields.flag("lm_head_bias"):
        weights.append(Weight("lm_head.bias", "norm", vocab, 1))
    extra = fields.integer("hidden_size_per_layer_input", 0)
    if extra and family.per_layer_inputs:
        width = extra * fields.integer("num_hidden_layers")
        rows = fields.integer("vocab_size_per_layer_input", vocab)
        weights += [
            Weight("embed_tokens_per_layer", "per_layer_embedding", rows, width),
            Weight("per_layer_model_projection", "mlp", width, hidden),
            Weight("per_layer_projection_norm", "norm", extra, shard=Shard.REPLICATED),
        ]
    if family.altup:
        copies = 2 * (fields.integer("altup_num_inputs") - 1)
        weights.append(Weight("altup_projections", "mlp", hidden, hidden, max(1, copies)))
    if family.layout == "text_to_text":
        return weights + text_encoder(fields, gated_as_asked(fields, family)), None, True
    if family.layout == "encoder_decoder":
        encoder, encoder_shape = build_encoder(fields)
        return weights + encoder, encoder_shape, True
    audio, is_known_audio = build_audio(fields)
    built = build_vision(fields)
    if built is None:
        return weights + audio, None, is_known_audio
    vision_weights, shape, is_known = built
    return weights + vision_weights + audio, shape, is_known and is_known_audio


def _score(fields: ConfigFields, hidden: int) -> list[Weight]:
    """Return what a reward model, or one that labels tokens, has for an output head (vLLM 0.32.0, qwen2_rm.py); nothing for other models."""
    named = [str(each) for each in fields.sequence("architectures") or []]
    if any(each.endswith("ForTokenClassification") for each in named):
        labels = len(fields.mapping("id2label")) or fields.integer("num_labels", 2)
        return [Weight("score", "mlp", labels, hidden + 1, shard=Shard.REPLICATED)]
    if not any(each.endswith("RewardModel") for each in named):
        return []
    labels = 2 if any("Process" in each for each in named) else 1
    return [
        Weight("score.0", "mlp", hidden, hidden + 1),
        Weight("score.2", "mlp", labels, hidden + 1, shard=Shard.REPLICATED),
    ]


def _like_last(fields: ConfigFields, family: Family, layers: list[Layer]) -> list[Weight]:
    """Return the weights of one prediction layer: those of the model's last layer that attends.

    Where attention and feed-forward are layers of their own (Nemotron-H), `mtp_hybrid_override_pattern` names both.
    """
    attends = next(
        (each for each in reversed(layers) if each.kv and each.kv.kind is not KvKind.STATE),
        layers[-1],
    )
    if family.layout != "pattern" or "E" not in (
        fields.text("mtp_hybrid_override_pattern") or "*E"
    ):
        return list(attends.weights)
    experts = next((each for each in reversed(layers) if each.uses_moe), None)
    return [*attends.weights, *(experts.weights if experts is not None else ())]


def mtp_weights(
    fields: ConfigFields, family: Family, layers: list[Layer]
) -> tuple[list[Weight], int]:
    """Return the weights of the prediction layers: a decoder layer each, and a joining projection."""
    count = max(
        fields.integer("num_nextn_predict_layers", 0), fields.integer("mtp_num_hidden_layers", 0)
    )
    if not count or not layers:
        return [], 0
    hidden = fields.integer("hidden_size")
    built = _like_last(fields, family, layers)
    weights = [replace(w, copies=w.copies * count, format=None) for w in built]
    weights.append(Weight("eh_proj", "mtp", hidden, 2 * hidden, count, Shard.REPLICATED))
    weights.append(Weight("mtp_norms", "norm", 3 * hidden, 1, count, Shard.REPLICATED))
    return weights, count
