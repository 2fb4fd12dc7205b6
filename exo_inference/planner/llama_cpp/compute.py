"""Compute buffers: what the largest graph of llama.cpp needs at once on a device. Pure.

llama.cpp reserves them when it starts, for a batch of `--ubatch-size` tokens and a full cache (`graph_reserve`,
src/llama-context.cpp). Its allocator gives memory back as soon as a tensor is done with, so the buffer is as large as
the widest moment: attention, feed-forward or logits. Which tensors live then was read off the graphs
(src/llama-graph.cpp, src/models) and checked on buffers that a build of 0c1e5709 reserves (tests/planner).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from exo_inference.planner.llama_cpp.cache import layer_kept, mask_cells
from exo_inference.planner.llama_cpp.setting import Context, LlamaSetting
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.model.shapes import KvKind, Layer

_VALUE = 4
"""Activations are float32."""
_COPIES = 4
"""Inputs of a pipeline over GPUs (`GGML_SCHED_MAX_COPIES`)."""


@dataclass(frozen=True, slots=True)
class Widths:
    """Elements of each token in the moments of a layer."""

    attention: int
    scores: int
    feed_forward: int


@dataclass(frozen=True, slots=True)
class Role:
    """What a device does.

    Attributes:
        layers: the different ones that it computes.
        has_output: it computes logits.
        is_pipelined: batches overlap on several GPUs.
        fetched: bytes of weights of a layer in main memory that it fetches to compute prompts.
        fetched_cache: the same of that layer's cache.
    """

    layers: tuple[Layer, ...]
    has_output: bool
    is_pipelined: bool = False
    fetched: int = 0
    fetched_cache: int = 0


@dataclass(frozen=True, slots=True)
class Moment:
    """What lives at once in a graph, in bytes, by the kind of tensor.

    Attributes:
        name: what is computed.
        terms: sizes by what they are, as `Term` names them.
    """

    name: str
    terms: Mapping[str, float]

    @property
    def num_bytes(self) -> float:
        """All of it."""
        return sum(self.terms.values())


class Term:
    """Kinds of tensors that live in a graph."""

    MASKS = "masks"
    ACTIVATIONS = "activations"
    SCORES = "scores of all heads"
    COPIES = "the cache in two bytes for each element"
    WEIGHTS = "weights fetched from main memory"
    CACHE = "cache fetched from main memory"
    PIPELINE = "copies of inputs for batches that overlap"
    LOGITS = "logits"
    PER_LAYER = "per-layer embeddings"


def compute_bytes(model: Architecture, setting: LlamaSetting, context: Context, role: Role) -> int:
    """Return the compute buffer of a GPU."""
    return int(widest_moment(model, setting, context, role).num_bytes)


def widest_moment(
    model: Architecture, setting: LlamaSetting, context: Context, role: Role
) -> Moment:
    """Return the moment for which a GPU's compute buffer is reserved."""
    tokens = context.batch
    masks = mask_cells(model, setting, context) * tokens
    inputs = 2 * masks if setting.flash_attention else 4 * masks
    found = [
        moment
        for layer in role.layers
        for moment in _layer_moments(model, layer, setting, context, role, masks)
    ]
    widest = max(found, key=lambda each: each.num_bytes, default=Moment("nothing", {}))
    if role.is_pipelined and role.layers:
        copies = (_COPIES - 1) * inputs + _COPIES * _VALUE * tokens * model.hidden_size
        widest = _with(widest, Term.PIPELINE, copies)
    if role.has_output:
        logits = _logits(model, setting, context)
        logits = _with(logits, Term.PIPELINE, _COPIES * inputs if role.is_pipelined else 0)
        widest = max(widest, logits, key=lambda each: each.num_bytes)
    return _with(widest, Term.PER_LAYER, 2 * _VALUE * tokens * _per_layer_inputs(model))


def _with(moment: Moment, term: str, num_bytes: float) -> Moment:
    return Moment(moment.name, {**moment.terms, term: num_bytes}) if num_bytes else moment


def _logits(model: Architecture, setting: LlamaSetting, context: Context) -> Moment:
    """Return the logits, and what lives beside them."""
    tokens = context.batch
    rows = tokens if setting.all_outputs else min(tokens, context.sequences)
    # Builds of before June 2026 kept one in models of all kinds.
    beside = model.hidden_size * (2 if _keeps_two(model) and not setting.wide_masks else 1)
    sizes = {
        Term.LOGITS: _VALUE * rows * model.vocab_size,
        Term.ACTIVATIONS: _VALUE * tokens * beside,
    }
    return Moment("the output", sizes)


def _per_layer_inputs(model: Architecture) -> int:
    """Return the elements of what Gemma's embedding has for each layer, which live in two orders through a graph."""
    return sum(w.in_features for w in model.outer_weights if w.part == "per_layer_embedding")


def _layer_moments(
    model: Architecture,
    layer: Layer,
    setting: LlamaSetting,
    context: Context,
    role: Role,
    masks: int,
) -> tuple[Moment, Moment]:
    """Return a layer's attention and its feed-forward part, beside masks of so many elements."""
    widths, unit = _widths(model, layer), _VALUE * context.batch
    attention = _attention_sizes(model, layer, setting, context, masks)
    if role.fetched_cache:
        attention[Term.CACHE] = role.fetched_cache
    inputs = 2 * masks if setting.flash_attention else 4 * masks
    forward = {Term.MASKS: inputs, Term.ACTIVATIONS: unit * float(widths.feed_forward)}
    if role.fetched:
        forward[Term.WEIGHTS] = role.fetched
    return Moment("attention", attention), Moment("a feed-forward part", forward)


def _attention_sizes(
    model: Architecture, layer: Layer, setting: LlamaSetting, context: Context, masks: int
) -> dict[str, float]:
    """Return what lives in a layer's attention, beside masks of so many elements."""
    tokens, unit = context.batch, _VALUE * context.batch
    widths, spec = _widths(model, layer), layer.kv
    if spec is not None and spec.kind is KvKind.STATE:
        return {}
    if not setting.flash_attention:
        scores = _VALUE * _cells(model, layer, setting, context) * tokens * model.num_heads
        beside = unit * float(widths.scores)
        return {Term.MASKS: 4 * masks, Term.SCORES: scores, Term.ACTIVATIONS: beside}
    if setting.wide_masks:
        queries = _rows(layer, "q_proj") or _queries(model, layer)
        return {
            Term.MASKS: 6.0 * masks,
            Term.ACTIVATIONS: unit * 2 * (model.hidden_size + queries),
        }
    kept = layer_kept(spec, model.model_type, setting, context)
    sizes = {Term.MASKS: 2 * masks, Term.ACTIVATIONS: unit * float(widths.attention)}
    return {**sizes, Term.COPIES: kept.copied_bytes} if kept.copied_bytes else sizes


def _cells(model: Architecture, layer: Layer, setting: LlamaSetting, context: Context) -> int:
    """Return the cells of a stream that a layer's scores are over."""
    if layer.kv is None:  # another layer's
        return mask_cells(model, setting, context)
    return layer_kept(layer.kv, model.model_type, setting, context).cells // context.streams


def _keeps_two(model: Architecture) -> bool:
    """Whether the last layer's input and output live at once: hybrids, and models with biases of experts."""
    return _is_hybrid(model) or _has_expert_bias(model)


def _is_hybrid(model: Architecture) -> bool:
    return any(
        layer.kv is not None and layer.kv.kind is KvKind.STATE for layer, _ in model.layer_counts
    )


def _has_expert_bias(model: Architecture) -> bool:
    return any(w.part == "expert_bias" for layer, _ in model.layer_counts for w in layer.weights)


def _queries(model: Architecture, layer: Layer) -> int:
    """Return the elements of a token's queries, without a gate beside them."""
    spec = layer.kv
    if spec is not None and spec.key_dim and spec.kind is not KvKind.LATENT:
        return model.num_heads * spec.key_dim
    return _rows(layer, "o_proj")


def _rows(layer: Layer, name: str) -> int:
    """Return what goes into an output projection, or comes out of another one."""
    for weight in layer.weights:
        if weight.path.endswith(name):
            return weight.in_features if name == "o_proj" else weight.out_features
    return 0


def _widths(model: Architecture, layer: Layer) -> Widths:
    hidden, queries = model.hidden_size, _queries(model, layer)
    spec = layer.kv
    if spec is not None and spec.kind is KvKind.LATENT:
        latent = _latent_width(model, layer)
        return Widths(latent, latent, _feed_forward(model, layer, queries))
    keys = spec.num_heads * spec.key_dim if spec is not None else 0
    gate = queries if _is_hybrid(model) else 0
    return Widths(
        hidden + 2 * queries + gate,
        2 * (hidden + queries + keys) + gate,
        _feed_forward(model, layer, queries),
    )


def _latent_width(model: Architecture, layer: Layer) -> int:
    """Return MLA's: queries in two parts, one of them absorbed, and joined again."""
    assert layer.kv is not None
    joined = model.num_heads * layer.kv.key_dim
    rank = _columns(layer, "kv_b_proj") or layer.kv.key_dim
    queries = _rows(layer, "q_b_proj") or _rows(layer, "q_proj")
    turned = model.num_heads * (layer.kv.key_dim - rank)
    return queries + turned + model.num_heads * rank + joined + 3 * model.hidden_size


def _columns(layer: Layer, name: str) -> int:
    return next((w.in_features for w in layer.weights if w.path.endswith(name)), 0)


def _feed_forward(model: Architecture, layer: Layer, queries: int) -> int:
    hidden, moe = model.hidden_size, model.moe
    if moe is not None and any(w.part == "routed_experts" for w in layer.weights):
        used = moe.experts_per_token
        if _is_hybrid(model):
            return 2 * used * hidden + hidden
        beside = queries if _has_expert_bias(model) else 0
        return 2 * used * hidden + used * moe.intermediate_size + 2 * hidden + beside
    width = max((w.out_features for w in layer.weights if w.path.endswith("up_proj")), default=0)
    return 3 * width + 2 * hidden + (0 if _is_hybrid(model) else queries)


def host_compute_bytes(model: Architecture, setting: LlamaSetting, context: Context) -> int:
    """Return the compute buffer of main memory: what every graph gets from outside."""
    masks = mask_cells(model, setting, context) * context.batch
    size = 4 if setting.wide_masks or not setting.flash_attention else 2
    return size * masks + 2 * _VALUE * context.batch * model.hidden_size


def output_bytes(model: Architecture, context: Context) -> int:
    """Return what logits are copied to in main memory."""
    return _VALUE * context.sequences * model.vocab_size
