"""What a model is, as far as memory and speed go: from any Hugging Face config.json.

`read_architecture` never raises for a model it does not know: the result says "cannot size this,
because". Planning (`planning.py`), advice and grading read the result; nothing here knows about GPUs
or engines. Exact tensor sizes of a checkpoint (`checkpoint.py`) can be laid over it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from exo_inference.planner.model.assumptions import (
    is_embedding,
    is_told_to_look_ahead,
    note_assumptions,
    ranks_by_name,
)
from exo_inference.planner.model.config_fields import (
    ConfigFields,
    FieldProblem,
    check_positive,
    derived_max_model_len,
    longest_model_len,
    rotary_len,
    stated_model_len,
)
from exo_inference.planner.model.experts import read_moe
from exo_inference.planner.model.families import FAMILIES, UNCHECKED, Family
from exo_inference.planner.model.layers import build_layers
from exo_inference.planner.model.outer_weights import MAX_VOCAB_SIZE, mtp_weights, outer_weights
from exo_inference.planner.model.quantization import (
    BF16,
    MXFP4,
    FormatChooser,
    Quantization,
    read_quantization,
)
from exo_inference.planner.model.shapes import KvKind, Layer, MoeShape, VisionShape, Weight

DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}

_MAX_PARAMETERS = 10**15
_MAX_KV_ELEMENTS = 10**10
_MAX_SIZE = 10**9


@dataclass(frozen=True, eq=False)
class Architecture:
    """One model.

    Attributes:
        name: as the user gave it.
        cannot_size: the reason, for a model that this planner does not understand; then the other
            fields are empty.
        outer_weights: everything outside the decoder layers (embeddings, head, encoder, norms).
        rope_elements: entries of the rotary tables that vLLM keeps on each GPU.
        rope_stretch: how many times the context they are long.
        pads_experts: vLLM pads the experts.
        mtp_weights: multi-token-prediction layers, loaded only for speculative decoding.
        mtp_layer: the cache of one of them.
        checkpoint_bytes: size of the weights by the checkpoint's own headers, when known.
        weights_error: relative error bar of the weights (0.01 = 1 %).
        weights_more: by what share they may be larger beside it, where that is lopsided.
        notes: what was assumed.
    """

    name: str
    model_type: str = ""
    cannot_size: str | None = None
    text_type: str = ""
    """Of the model of text inside, which may be younger than what it stands in."""
    hidden_size: int = 0
    vocab_size: int = 0
    num_heads: int = 0
    intermediate_size: int = 0
    max_model_len: int | None = None
    longest_model_len: int | None = None
    """What a flag may ask for; None: `max_model_len`."""
    stated_model_len: int | None = None
    """What config.json names, which engines of GGUF files take; None: nothing."""
    dtype: str = "bfloat16"
    layers: tuple[Layer, ...] = ()
    outer_weights: tuple[Weight, ...] = ()
    rope_elements: int = 0
    rope_stretch: int = 1
    moe: MoeShape | None = None
    vision: VisionShape | None = None
    mtp_weights: tuple[Weight, ...] = ()
    num_mtp_layers: int = 0
    pads_experts: bool = False
    quantization: Quantization | None = None
    min_batched_tokens: int = 0
    is_embedding: bool = False
    looks_ahead: bool = False
    """A token attends to those behind it, so that a prompt is computed whole."""
    checkpoint_bytes: int | None = None
    weights_error: float = 0.01
    weights_more: float = 0.0
    notes: tuple[str, ...] = ()
    source: str = "config.json"

    @property
    def writes(self) -> bool:
        """Whether it is there to write texts, neither to embed nor to score them."""
        return not (self.is_embedding or ranks_by_name(self.name))

    @cached_property
    def num_parameters(self) -> int:
        """Parameters that a server loads (without prediction layers); tied ones count once."""
        return sum(w.num_elements for w in self.outer_weights) + sum(
            count * sum(w.num_elements for w in layer.weights) for layer, count in self.layer_counts
        )

    @cached_property
    def num_active_parameters(self) -> int:
        """Parameters that one token passes through, the embedding table left out."""
        share = self.moe.experts_per_token / self.moe.num_experts if self.moe else 1.0
        total = 0.0
        for weights, count in self._weight_sets:
            for weight in weights:
                if weight.part in ("vision", "projector", "embedding", "per_layer_embedding"):
                    continue
                is_expert = weight.part in ("routed_experts", "expert_bias")
                total += count * weight.num_elements * (share if is_expert else 1.0)
        if not any(w.part == "lm_head" for w in self.outer_weights):
            total += self.vocab_size * self.hidden_size
        return int(total)

    @cached_property
    def layer_counts(self) -> tuple[tuple[Layer, int], ...]:
        """Different layers with how often each occurs."""
        counts = Counter(id(layer) for layer in self.layers)
        unique = {id(layer): layer for layer in self.layers}
        return tuple((layer, counts[key]) for key, layer in unique.items())

    @cached_property
    def layer_halves(self) -> tuple[int, ...]:
        """The halves of each of `layer_counts`."""
        return tuple(layer.count_halves() for layer, _ in self.layer_counts)

    @cached_property
    def num_halves(self) -> int:
        """Halves of all layers."""
        counts = (count for _, count in self.layer_counts)
        return sum(count * halves for count, halves in zip(counts, self.layer_halves, strict=True))

    @cached_property
    def _weight_sets(self) -> tuple[tuple[tuple[Weight, ...], int], ...]:
        inner = tuple((layer.weights, count) for layer, count in self.layer_counts)
        return ((self.outer_weights, 1), *inner)

    @cached_property
    def kv_elements_per_token(self) -> int:
        """Cache elements that one more token adds while no window is full, over all ranks."""
        return sum(layer.kv.elements_per_token for layer in self.layers if layer.kv is not None)

    @property
    def dtype_bytes(self) -> int:
        """Bytes per weight of the checkpoint's own dtype."""
        return DTYPE_BYTES.get(self.dtype, 2)


def read_architecture(
    config: Mapping[str, Any],
    *,
    name: str = "",
    hf_quant_config: Mapping[str, Any] | None = None,
    source: str = "config.json",
) -> Architecture:
    """Return the architecture that a config.json describes.

    Args:
        config: the parsed file.
        name: for messages.
        hf_quant_config: the `quantization` object of ModelOpt's hf_quant_config.json, if there is one.
        source: where the config came from.

    Returns:
        The architecture; with `cannot_size` set where it is not understood.
    """
    shown = name or str(config.get("_name_or_path") or "model")
    try:
        return _plausible(_read(ConfigFields(config), shown, hf_quant_config, source))
    except (ValueError, TypeError, AttributeError, KeyError, IndexError, ArithmeticError) as exc:
        reason = _name_field(config, exc)
        return Architecture(shown, str(config.get("model_type") or ""), reason, source=source)


def _name_field(config: Mapping[str, Any], exc: Exception) -> str:
    """Return why a config is not understood; the interpreter's own words would help nobody."""
    said = str(exc)
    is_ours = isinstance(exc, ValueError) and not said.startswith(("invalid literal", "could not"))
    if is_ours:
        return said
    for path, value in _leaves(config, ""):
        if isinstance(value, str) and isinstance(exc, ValueError) and said.endswith(repr(value)):
            return f"{path} in config.json is {value!r:.60}, expected a number"
    for name, value in config.items():
        if name.endswith("_config") and value is not None and not isinstance(value, Mapping):
            return f"{name} in config.json is {value!r:.60}, expected an object"
    nested = [name for name, value in config.items() if isinstance(value, Mapping)]
    where = f"; look at {' and '.join(nested)}" if nested else ""
    return f"config.json is not of the usual form{where}"


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the values of nested objects with their names joined by dots."""
    if not isinstance(value, Mapping):
        yield path, value
        return
    for name, each in value.items():
        yield from _leaves(each, f"{path}.{name}" if path else str(name))


def _read(
    fields: ConfigFields, name: str, hf_quant_config: Mapping[str, Any] | None, source: str
) -> Architecture:
    family = _find_family(fields)
    check_positive(fields)
    notes: list[str] = []
    quantization = _find_quantization(fields, hf_quant_config)
    dtype = _checked_dtype(fields.text("dtype") or _vision_free_dtype(fields))
    # Shapes first and formats afterwards: which weights are quantized goes by the names of modules.
    chooser = FormatChooser(quantization, _PLAIN)
    layers = _with_formats(build_layers(fields, family), chooser)
    outer, vision, is_known_vision = outer_weights(fields, family)
    error = _weights_error(fields, quantization, notes, is_known_vision=is_known_vision)
    error += note_assumptions(fields, family, notes)
    mtp, num_mtp = mtp_weights(fields, family, layers)
    return Architecture(
        name=name,
        model_type=fields.model_type,
        text_type=fields.text_type,
        hidden_size=fields.integer("hidden_size"),
        vocab_size=fields.integer("vocab_size"),
        num_heads=0 if family.layout == "states" else fields.integer("num_attention_heads"),
        intermediate_size=_widest(layers),
        max_model_len=_usable(derived_max_model_len(fields, family), family),
        longest_model_len=_usable(longest_model_len(fields, family), family),
        stated_model_len=stated_model_len(fields),
        dtype=dtype,
        layers=tuple(layers),
        outer_weights=tuple(_formatted("", weight, chooser) for weight in outer),
        rope_elements=_rope_elements(fields, family),
        rope_stretch=family.rope_stretch,
        moe=read_moe(fields, family),
        vision=vision,
        mtp_weights=tuple(_formatted("mtp.", weight, chooser) for weight in mtp),
        num_mtp_layers=num_mtp,
        pads_experts=family.pads_experts,
        quantization=quantization,
        min_batched_tokens=family.min_batched_tokens if vision is not None else 0,
        is_embedding=is_embedding(fields, family, name),
        looks_ahead=family.encodes or is_told_to_look_ahead(fields),
        weights_error=error,
        notes=tuple(notes),
        source=source,
    )


def _usable(length: int | None, family: Family) -> int | None:
    return None if length is None else max(1, length - family.unused_positions)


def _plausible(model: Architecture) -> Architecture:
    """Return the model, unless its numbers cannot be a model's.

    Raises:
        FieldProblem: a size is zero or absurd.
    """
    for name, size in (
        ("hidden_size", model.hidden_size),
        ("vocab_size", model.vocab_size),
    ):
        if not 1 <= size <= MAX_VOCAB_SIZE:
            raise FieldProblem(f"{name} is {size}")
    attends = any(layer.kv is None or layer.kv.kind is not KvKind.STATE for layer in model.layers)
    if attends and not 1 <= model.num_heads <= MAX_VOCAB_SIZE:
        raise FieldProblem(f"num_attention_heads is {model.num_heads}")
    if not 0 < model.num_parameters < _MAX_PARAMETERS:
        raise FieldProblem(f"its sizes come to {model.num_parameters:.3g} parameters")
    vision, moe = model.vision, model.moe
    sizes = [model.rope_elements // 1000, model.num_mtp_layers * 10**6, model.intermediate_size]
    sizes += [vision.max_tokens, vision.hidden_size, vision.intermediate_size] if vision else []
    sizes += [moe.intermediate_size, moe.hidden_size, moe.experts_per_token] if moe else []
    if max(sizes) > _MAX_SIZE:
        raise FieldProblem(f"one of its sizes comes to {max(sizes):.3g}")
    for layer, _ in model.layer_counts:
        if layer.kv is None or layer.kv.kind is KvKind.CROSS:
            continue
        kept = layer.kv.elements_per_token + layer.kv.state_elements + layer.kv.conv_elements
        if kept < 1:
            raise FieldProblem(f"its {layer.kv.kind} layers come to a cache without elements")
    if model.kv_elements_per_token > _MAX_KV_ELEMENTS:
        raise FieldProblem(
            f"its sizes come to {model.kv_elements_per_token:.3g} KV elements per token"
        )
    return model


def _weights_error(
    fields: ConfigFields,
    quantization: Quantization | None,
    notes: list[str],
    *,
    is_known_vision: bool,
) -> float:
    """Return the relative error bar of the weights; what widens it goes to the notes."""
    error = 0.01
    if fields.text_type in UNCHECKED:
        notes.append("its parameter count could not be compared with a published one")
        error += 0.04
    if not is_known_vision:
        notes.append("the size of its image or audio encoder is known only roughly")
        error += 0.02
    if quantization is not None and not quantization.is_complete:
        notes.append("its list of unquantized modules is known only in part")
        error += 0.05
    return error


_PLAIN = BF16
"""Stands for "not quantized"; the run's dtype decides its bytes."""


def _find_family(fields: ConfigFields) -> Family:
    if fields.flag("is_encoder_decoder") and fields.text_type not in FAMILIES:
        raise FieldProblem(
            f"{fields.model_type} has an encoder and a decoder, which is not modelled"
        )
    text, outer = fields.text_type.removesuffix("_text"), fields.model_type
    family = FAMILIES.get(fields.text_type) or FAMILIES.get(text) or FAMILIES.get(outer)
    if family is None:
        if not fields.model_type:
            raise FieldProblem("config.json has no model_type")
        raise FieldProblem(f"the architecture {fields.model_type!r:.64} is unknown here")
    if fields.text_type not in FAMILIES:
        fields.text_type = text if text in FAMILIES else outer
    return family


def _find_quantization(
    fields: ConfigFields, hf_quant_config: Mapping[str, Any] | None
) -> Quantization | None:
    declared = fields.outer.get("quantization_config") or fields.raw.get("quantization_config")
    declared = declared or fields.raw.get("compression_config")
    quantization = read_quantization(declared, hf_quant_config)
    for form in quantization.formats() if quantization is not None else ():
        if not 0.5 <= form.bits <= 64:
            raise FieldProblem(f"its quantization comes to {form.bits:.3g} bits per weight")
    if quantization is None or quantization.expert_format is not None:
        return quantization
    if fields.text("expert_dtype") == "fp4":  # DeepSeek-V4
        quantization = replace(quantization, expert_format=MXFP4)
    return quantization


def _checked_dtype(name: str) -> str:
    """Return a torch dtype by name.

    Raises:
        FieldProblem: there is no such dtype.
    """
    bare = name.removeprefix("torch.")
    if bare not in (*DTYPE_BYTES, "float64", "double", "auto"):
        known = ", ".join(DTYPE_BYTES)
        raise FieldProblem(f"its dtype is {name!r:.60}, expected one of {known}")
    return bare


def _vision_free_dtype(fields: ConfigFields) -> str:
    outer = fields.outer.get("torch_dtype") or fields.outer.get("dtype")
    return outer if isinstance(outer, str) else "bfloat16"


def _with_formats(layers: list[Layer], chooser: FormatChooser) -> list[Layer]:
    """Attach formats; equal layers stay one object, so that planning can count them."""
    unique: dict[tuple[Weight, ...], dict[object, Layer]] = {}
    result = []
    plain_only = not chooser.is_active
    formatted_once: dict[int, Layer] = {}
    for index, layer in enumerate(layers):
        if plain_only:
            result.append(layer)
            continue
        if chooser.is_uniform:
            if id(layer) not in formatted_once:
                weights = tuple(_formatted("layers.0.", w, chooser) for w in layer.weights)
                formatted_once[id(layer)] = replace(layer, weights=weights)
            result.append(formatted_once[id(layer)])
            continue
        weights = tuple(_formatted(f"layers.{index}.", w, chooser) for w in layer.weights)
        known = unique.setdefault(weights, {})
        key = (layer.kv, layer.is_windowed)
        if key not in known:
            known[key] = replace(layer, weights=weights)
        result.append(known[key])
    return result


def _formatted(prefix: str, weight: Weight, chooser: FormatChooser) -> Weight:
    form = chooser.choose(prefix + weight.path, weight.part)
    return weight if form is _PLAIN else replace(weight, format=form)


def _widest(layers: list[Layer]) -> int:
    sizes = [
        w.out_features for layer in layers for w in layer.weights if w.path.endswith("mlp.up_proj")
    ]
    sizes += [
        w.out_features for layer in layers for w in layer.weights if w.path == "mixer.up_proj"
    ]
    return max(sizes, default=0)


def _rope_elements(fields: ConfigFields, family: Family) -> int:
    """Return the entries of the rotary tables: positions x rotary dimensions, cos and sin together.

    Checked on the weights vLLM prints: Llama-3.1-8B 14.9889 GiB is the checkpoint's 14.9575 and a
    table of 131,072 x 128 in bf16; Mistral-7B-v0.3 13.5084 likewise; gemma-3-27b-it 51.45 GiB is 51.1576 and tables
    of 1,048,576 and 131,072 x 128.
    """
    if not family.rope_caches:
        return 0
    length = rotary_len(fields) or 0
    heads = max(1, fields.integer("num_attention_heads"))
    dim = fields.integer(
        "head_dim", family.default_head_dim or fields.integer("hidden_size") // heads
    )
    partial = fields.mapping("rope_parameters").get("partial_rotary_factor")
    partial = fields.get("partial_rotary_factor") if partial is None else partial
    partial = family.partial_rotary if partial is None else partial
    if fields.get("qk_rope_head_dim"):
        dim, partial = fields.integer("qk_rope_head_dim"), None
    if isinstance(partial, int | float) and 0 < partial <= 1:
        dim = int(dim * partial)
    if family.plain_windows:
        own = min(length, fields.integer("max_position_embeddings", length))
        widest = fields.integer("global_head_dim", dim) if family.has_global_heads else dim
        return length * widest + own * dim
    return length * dim * family.rope_caches * family.rope_stretch
