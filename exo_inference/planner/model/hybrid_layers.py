"""Layers of families that mix states with attention in ways of their own: Mamba, Jamba, Falcon-H1, Zamba2.

`layers.py` calls `HYBRIDS` by the family's layout. Shapes are those of transformers 5.23.0, checked by parameter count.
Where a block attends and keeps a state as well (Falcon-H1, Zamba2), it is counted as two layers, one for each cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from exo_inference.planner.model.config_fields import ConfigFields, FieldProblem
from exo_inference.planner.model.experts import mlp_weights, moe_weights
from exo_inference.planner.model.families import Family
from exo_inference.planner.model.shapes import KvKind, KvSpec, Layer, Shard, Weight, vector
from exo_inference.planner.model.state_layers import build_state_layer

MAX_LAYERS = 4096


@dataclass(frozen=True, slots=True)
class Attention:
    """How a family's attending layer is built: what `layers.py` knows of ordinary attention."""

    weights: Callable[[], Iterator[Weight]]
    spec: Callable[[], KvSpec]


Build = Callable[[ConfigFields, Family, Attention], list[Layer]]


def _count(fields: ConfigFields) -> int:
    count = fields.integer("num_hidden_layers")
    if not 1 <= count <= MAX_LAYERS:
        raise FieldProblem(f"num_hidden_layers is {count}, expected 1 to {MAX_LAYERS}")
    return count


def _states_alone(fields: ConfigFields, family: Family, attention: Attention) -> list[Layer]:
    """Mamba, Mamba-2 and Falcon-Mamba: a norm and a mixer."""
    weights, kv = build_state_layer(fields, family.others_are)
    layer = Layer((*weights, vector("norm", fields.integer("hidden_size"))), kv)
    return [layer] * _count(fields)


def _alternating(fields: ConfigFields, family: Family, attention: Attention) -> list[Layer]:
    """Jamba: one layer of a period attends, one of another has experts."""
    attends = fields.integer("attn_layer_period", 8), fields.integer("attn_layer_offset", 4)
    routes = fields.integer("expert_layer_period", 2), fields.integer("expert_layer_offset", 1)
    known: dict[tuple[bool, bool], Layer] = {}
    layers = []
    for index in range(_count(fields)):
        key = (
            _is_due(index, attends),
            _is_due(index, routes) and fields.integer("num_experts", 16) > 1,
        )
        if key not in known:
            known[key] = _jamba_layer(fields, family, attention, *key)
        layers.append(known[key])
    return layers


def _is_due(index: int, period: tuple[int, int]) -> bool:
    return period[0] > 0 and index % period[0] == period[1]


def _jamba_layer(
    fields: ConfigFields, family: Family, attention: Attention, attends: bool, routes: bool
) -> Layer:
    hidden = fields.integer("hidden_size")
    weights, kv = (
        ([*attention.weights()], attention.spec())
        if attends
        else build_state_layer(fields, family.others_are)
    )
    size = fields.integer("intermediate_size")
    feed = (
        moe_weights(fields, family)
        if routes
        else mlp_weights("mlp", "mlp", hidden, size, is_gated=True)
    )
    return Layer((*weights, *feed, vector("norms", 2 * hidden)), kv, uses_moe=routes)


def _side_by_side(fields: ConfigFields, family: Family, attention: Attention) -> list[Layer]:
    """Falcon-H1: attention and a mixer beside each other in each block."""
    hidden, size = fields.integer("hidden_size"), fields.integer("intermediate_size")
    feed = mlp_weights("mlp", "mlp", hidden, size, is_gated=True)
    own = Layer((*attention.weights(), *feed, vector("norms", 2 * hidden)), attention.spec())
    weights, kv = build_state_layer(fields, family.others_are)
    return [own, Layer(tuple(weights), kv)] * _count(fields)


def _shared_attention(fields: ConfigFields, family: Family, attention: Attention) -> list[Layer]:
    """Zamba2: mixers, and now and then one of few attending blocks that share their weights.

    Each use has a projection and adapters of low rank of its own, and a cache.
    """
    hidden = fields.integer("hidden_size")
    weights, state = build_state_layer(fields, family.others_are)
    mixer = Layer((*weights, vector("norm", hidden)), state)
    uses = _uses(fields)
    shared = max(1, fields.integer("num_mem_blocks", 1))
    spec = _zamba_spec(fields)
    layers = []
    for index in range(_count(fields)):
        if index in uses:
            block = uses.index(index)
            own = [*_zamba_block(fields, spec)] if block < shared else []
            linear = Weight("linear", "attention", hidden, hidden)
            layers.append(Layer((*own, *_zamba_adapters(fields), linear), spec))
        layers.append(mixer)
    return layers


def _uses(fields: ConfigFields) -> list[int]:
    """Return the layers that use a shared block: listed by number, or by the kind of every layer."""
    kinds = fields.sequence("layers_block_type") or []
    listed = fields.sequence("hybrid_layer_ids") or [
        index for index, kind in enumerate(kinds) if kind == "hybrid"
    ]
    return [index for index in listed if isinstance(index, int)]


def _zamba_spec(fields: ConfigFields) -> KvSpec:
    heads = max(1, fields.integer("num_attention_heads"))
    dim = fields.integer("attention_head_dim", 2 * fields.integer("hidden_size") // heads)
    return KvSpec(KvKind.FULL, fields.integer("num_key_value_heads", heads), dim, dim)


def _zamba_block(fields: ConfigFields, spec: KvSpec) -> Iterator[Weight]:
    """Yield the weights of one shared block, whose attention reads the embedding beside the hidden state."""
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    yield Weight("self_attn.q_proj", "attention", heads * spec.key_dim, 2 * hidden)
    for name in ("k", "v"):
        rows = spec.num_heads * spec.key_dim
        yield Weight(
            f"self_attn.{name}_proj", "attention", rows, 2 * hidden, shard=Shard.KV_HEADS,
            heads=spec.num_heads,
        )  # fmt: skip
    yield Weight("self_attn.o_proj", "attention", hidden, heads * spec.value_dim)
    yield from mlp_weights(
        "mlp", "mlp", hidden, fields.integer("intermediate_size", 4 * hidden), is_gated=True
    )
    yield vector("norms", 3 * hidden)


def _zamba_adapters(fields: ConfigFields) -> Iterator[Weight]:
    """Yield the adapters that one use of a shared block has of its own."""
    hidden, rank = fields.integer("hidden_size"), fields.integer("adapter_rank", 128)
    wide = fields.integer("intermediate_size", 4 * hidden)
    yield Weight("mlp.adapter", "mlp", rank, hidden + 2 * wide)
    if fields.flag("use_shared_attention_adapter"):
        yield Weight("self_attn.adapter", "attention", rank, 4 * hidden, 3)


HYBRIDS: Mapping[str, Build] = {
    "states": _states_alone,
    "alternating": _alternating,
    "side_by_side": _side_by_side,
    "shared_attention": _shared_attention,
}
"""By the layout that a family has."""
