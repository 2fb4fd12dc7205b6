"""Feed-forward matrices and experts: routed, shared, and the router that chooses.

`layers.py` calls `mlp_weights` and `moe_weights`, `architecture.py` asks `read_moe` for the shape of the experts.
"""

from __future__ import annotations

from collections.abc import Iterator

from exo_inference.planner.model.config_fields import ConfigFields, FieldProblem, whole_number
from exo_inference.planner.model.families import Family
from exo_inference.planner.model.shapes import MoeShape, Shard, Weight, vector


def mlp_weights(
    path: str, part: str, hidden: int, size: int, *, is_gated: bool, copies: int = 1
) -> Iterator[Weight]:
    """Yield the matrices of a feed-forward, or of `copies` experts."""
    shard = Shard.EXPERTS if part == "routed_experts" else Shard.SPLIT
    for name in ("gate_proj", "up_proj") if is_gated else ("up_proj",):
        yield Weight(f"{path}.{name}", part, size, hidden, copies, shard)
    yield Weight(f"{path}.down_proj", part, hidden, size, copies, shard)


def read_moe(fields: ConfigFields, family: Family) -> MoeShape | None:
    """Return the shape of the routed experts, if there are any."""
    if not fields.get("num_experts") or not fields.get("experts_per_token"):
        return None
    if family.experts_beside_mlp and not fields.flag("enable_moe_block"):
        return None
    count, chosen = fields.integer("num_experts"), fields.integer("experts_per_token")
    if chosen > count:
        raise FieldProblem(f"it chooses {chosen} experts per token, and has {count}")
    size = _expert_widths(fields)[0]
    latent = fields.get("moe_latent_size") or fields.get("routed_expert_hidden_size")
    hidden = (
        fields.integer("hidden_size") if latent is None else whole_number("moe_latent_size", latent)
    )
    return MoeShape(
        count, chosen, size, hidden, _shared_size(fields, family, size),
    )  # fmt: skip


def _expert_widths(fields: ConfigFields) -> list[int]:
    """Return the widths of the sets of routed experts: where there are two, of texts and of images (ERNIE 4.5 VL).

    A longer list has the width of each layer (Hunyuan), which has to be the same.
    """
    given = fields.get("moe_intermediate_size")
    if isinstance(given, list) and 0 < len(given) <= 2:
        return [whole_number("moe_intermediate_size", each) for each in given[:2]]
    return [fields.integer("moe_intermediate_size", fields.integer("intermediate_size", 0))]


def _shared_size(fields: ConfigFields, family: Family, size: int) -> int:
    """Return the intermediate size of all shared experts together."""
    for name in (
        "moe_shared_expert_intermediate_size", "shared_expert_intermediate_size", "share_expert_dim",
    ):  # fmt: skip
        if fields.get(name):
            return fields.integer(name)
    if family.shared_width_field:
        return fields.integer(family.shared_width_field, 0)
    return size * fields.integer("num_shared_experts", 0)


def moe_weights(fields: ConfigFields, family: Family) -> Iterator[Weight]:
    """Yield router, routed and shared experts."""
    moe = read_moe(fields, family)
    if moe is None:
        raise FieldProblem("config.json has layers of experts, but not their number")
    hidden = fields.integer("hidden_size")
    gated = family.gated_mlp or family.gates_experts
    rows = moe.num_experts + fields.integer(
        "zero_expert_num", 0
    )  # LongCat: experts that do nothing
    yield Weight("mlp.gate", "router", rows, hidden, shard=Shard.REPLICATED)
    yield from mlp_weights(
        "experts" if family.experts_beside_mlp else "mlp.experts", "routed_experts", moe.hidden_size, moe.intermediate_size,
        is_gated=gated, copies=moe.num_experts,
    )  # fmt: skip
    for width in _expert_widths(fields)[1:]:
        yield Weight("mlp.vision_gate", "router", moe.num_experts, hidden, shard=Shard.REPLICATED)
        yield from mlp_weights(
            "mlp.vision_experts",
            "routed_experts",
            hidden,
            width,
            is_gated=gated,
            copies=moe.num_experts,
        )
        if family.corrects_experts:
            yield vector("mlp.vision_gate.e_score_correction_bias", moe.num_experts)
    if moe.hidden_size != hidden:
        yield Weight("mlp.fc1_latent_proj", "mlp", moe.hidden_size, hidden, shard=Shard.REPLICATED)
        yield Weight("mlp.fc2_latent_proj", "mlp", hidden, moe.hidden_size, shard=Shard.REPLICATED)
    if moe.shared_intermediate_size:
        size = moe.shared_intermediate_size
        yield from mlp_weights("mlp.shared_experts", "shared_experts", hidden, size, is_gated=gated)
    if family.gates_shared_experts:
        yield vector("mlp.shared_expert_gate", hidden)
    if family.corrects_experts:
        yield vector("mlp.gate.e_score_correction_bias", moe.num_experts)
    if family.biases_experts:
        yield vector("mlp.gate.bias", moe.num_experts)
        yield Weight(
            "mlp.experts.bias", "expert_bias", 2 * moe.intermediate_size + hidden, 1, moe.num_experts,
            Shard.EXPERTS,
        )  # fmt: skip
    if family.experts_beside_mlp:
        yield vector("router.scale", hidden + moe.num_experts + 3 * hidden)
