"""The same model with its linear layers in another format.

Used for `--quantization fp8` (the engine quantizes while it loads), for advice ("use a 4-bit
checkpoint") and for catalogue names that say their quantization.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from exo_inference.planner.model.name_words import FULL, PLAIN, UNQUANTIZED
from exo_inference.planner.model.quantization import (
    INT8_WEIGHT_ONLY,
    FormatChooser,
    Quantization,
    WeightFormat,
    quantization_named,
)
from exo_inference.planner.model.shapes import KvKind, Weight

if TYPE_CHECKING:
    from exo_inference.planner.model.architecture import Architecture

ONLINE: Mapping[str, str] = {
    "fp8": "fp8", "fp8_per_tensor": "fp8", "fp8_per_channel": "fp8-channel", "fp8_per_block": "fp8-block",
    "int8_per_channel_weight_only": "int8", "mxfp8": "mxfp8", "bitsandbytes": "bitsandbytes",
    "int8": "int8-weight-only", "int4": "int4-group-32",
    "int4_per_group_64": "int4-group-64", "int4_per_group_128": "int4-group-128",
}  # fmt: skip
"""Values of --quantization that quantize plain weights while they are loaded, and their form; `int8` and
those of INT4 are exo-engine's, the others are vLLM's."""

INT8_HEAD = frozenset({"int8", "int4", "int4_per_group_64", "int4_per_group_128"})
"""Those with which exo-engine's kernels for processors have the output head in INT8, too."""

_HEADS = ("lm_head", "embed_tokens")
"""Paths of what logits are computed with: the first that there is."""


@lru_cache(maxsize=256)
def with_quantization(architecture: Architecture, method: str) -> Architecture:
    """Return the model with every linear layer in the method's usual form.

    Embeddings, output head (but see `with_int8_head`), norms, routers and image encoders keep 16 bits, as the methods do.

    Raises:
        ValueError: the method is unknown.
    """
    quantization = quantization_named(method)
    chooser = FormatChooser(quantization, _KEPT)
    layers: dict[int, object] = {}
    changed = []
    for layer in architecture.layers:
        if id(layer) not in layers:
            weights = tuple(_requantized(weight, chooser) for weight in layer.weights)
            layers[id(layer)] = replace(layer, weights=weights)
        changed.append(layers[id(layer)])
    return replace(
        architecture,
        layers=tuple(changed),  # type: ignore[arg-type]
        outer_weights=tuple(_requantized(w, chooser) for w in architecture.outer_weights),
        quantization=_with_kv(quantization, architecture.quantization),
        checkpoint_bytes=None,
    )


@lru_cache(maxsize=64)
def without_quantization(architecture: Architecture) -> Architecture:
    """Return the model with all weights in the run's own type, whatever its files are in."""
    layers = {
        id(layer): replace(layer, weights=tuple(replace(w, format=None) for w in layer.weights))
        for layer, _ in architecture.layer_counts
    }
    return replace(
        architecture,
        layers=tuple(layers[id(layer)] for layer in architecture.layers),
        outer_weights=tuple(replace(w, format=None) for w in architecture.outer_weights),
        mtp_weights=tuple(replace(w, format=None) for w in architecture.mtp_weights),
        quantization=None,
        pads_experts=False,
        checkpoint_bytes=None,
    )


@lru_cache(maxsize=64)
def with_int8_head(architecture: Architecture) -> Architecture:
    """Return the model with its output head, or the embedding that is one, in INT8."""
    paths = {weight.path for weight in architecture.outer_weights}
    head = next(path for path in _HEADS if path in paths)
    weights = tuple(
        replace(weight, format=INT8_WEIGHT_ONLY) if weight.path == head else weight
        for weight in architecture.outer_weights
    )
    return replace(architecture, outer_weights=weights)


def has_int8_head(architecture: Architecture) -> bool:
    """Whether the output head, or the embedding that is one, is in INT8."""
    return any(
        weight.path in _HEADS and weight.format == INT8_WEIGHT_ONLY
        for weight in architecture.outer_weights
    )


def with_attention(architecture: Architecture, form: WeightFormat | None) -> Architecture:
    """Return the model with the projections of all its attention and state layers in one form; None is the run's own."""
    layers = {
        id(layer): replace(
            layer,
            weights=tuple(
                replace(weight, format=form) if weight.part == "attention" else weight
                for weight in layer.weights
            ),
        )
        for layer, _ in architecture.layer_counts
    }
    return replace(architecture, layers=tuple(layers[id(layer)] for layer in architecture.layers))


def stored_bytes(architecture: Architecture) -> float:
    """Return the bytes of all weights, each in its own form, on one GPU, prediction layers left out."""
    of_layers = sum(
        count * weight.num_elements * _bits(weight)
        for layer, count in architecture.layer_counts
        for weight in layer.weights
    )
    return (of_layers + sum(w.num_elements * _bits(w) for w in architecture.outer_weights)) / 8


def in_usual_form(model: Architecture, method: str) -> Architecture:
    """Return the model in a quantization that its name says, with what that leaves open.

    In 4-bit floats the attention of models with state layers is taken to be in 8 bit, as in NVIDIA's own files of
    Qwen3.6 (hf_quant_config.json in the catalogue). Others keep all of it in 16 bit, or none.
    """
    if method in UNQUANTIZED:
        dtype = "float32" if method == FULL else model.dtype.replace("float32", "bfloat16")
        return replace(without_quantization(model), dtype=dtype)
    found = with_quantization(model, method)
    if method != "nvfp4" or not has_states(model):
        return found
    usual = with_attention(found, quantization_named("fp8").default)
    most = with_attention(found, None)
    more = stored_bytes(most) / stored_bytes(usual) - 1
    return replace(usual, weights_more=more)


_IN_WORDS = {
    "gptq-8bit": "gptq in 8 bit, in groups of 128,",
    "bitsandbytes-8bit": "bitsandbytes in 8 bit",
    PLAIN: "16 bit",
    FULL: "float32",
}


def words_of(method: str) -> str:
    """Return a quantization that a name says as notes write it."""
    return _IN_WORDS.get(method, method)


def has_states(model: Architecture) -> bool:
    """Whether some of the model's layers keep a state instead of a cache."""
    kinds = {layer.kv.kind for layer, _ in model.layer_counts if layer.kv is not None}
    return KvKind.STATE in kinds


def derived_error(model: Architecture, method: str) -> float:
    """Return how far a checkpoint's weights can be off that only its name is known of.

    Linear layers of a plain text model are quantized whole (0.3 to 1.3 % off in collected starts). Which of experts,
    image encoders and states stay in 16 bit differs from checkpoint to checkpoint, and so does what is in 4-bit floats.
    """
    is_plain = (
        model.moe is None
        and model.vision is None
        and method not in ("nvfp4", "mxfp4", "bitsandbytes", "bitsandbytes-8bit")
    )
    if method in UNQUANTIZED:
        return 0.01
    return 0.02 if is_plain and not has_states(model) else 0.1


def _bits(weight: Weight) -> float:
    return 16.0 if weight.format is None else weight.format.bits


_KEPT = quantization_named("w4a16").default
"""Only marks "not chosen" below; never attached to a weight."""


def _requantized(weight: Weight, chooser: FormatChooser) -> Weight:
    form = chooser.choose(f"layers.0.{weight.path}", weight.part)
    if form is _KEPT or weight.part in ("expert_bias",):
        return replace(weight, format=None)
    return replace(weight, format=form)


def _with_kv(new: Quantization, old: Quantization | None) -> Quantization:
    return new if old is None else replace(new, kv_cache_dtype=old.kv_cache_dtype)
