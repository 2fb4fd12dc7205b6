"""Feed-forward matrices and experts: routed, shared, and the router that chooses.

`layers.py` calls `mlp_weights` and `moe_weights`, `architecture.py` asks `read_moe` for the shape of the experts.
"""

from __future__ import annotations

from collections.abc import Iterator

from exo_inference.planner.model.config_fields import ConfigFields, FieldProblem, whole_number
from exo_inference.planner.model.families import Family
from exo_inference.planner.model.shapes import MoeShape, Shard, Weight


def mlp_weights(
    path: str, part: str, hidden: int, size: int, *, is_gated: bool, copies: int = 1
) -> Iterator[Weight]:
    """Yield the matrices of a feed-forward, or of `copies` experts."""
    shard = Shard.EXPERTS if part == "routed_experts" else Shard.SPLIT
    for name in ("gate_proj", "up_proj") if is_gated else ("up_proj",):
        yield Weight(f"{path}.{name}", part, size, hidden, copies, shard)
    yield Weight(f"{path}.down_proj", part, hidden, size, copies, shard)


def read_moe(fields: ConfigFields) -> MoeShape | None:
    """Return the shape of the routed experts, if there are any."""
    if not fields.get("num_experts") or not fields.get("experts_per_token"):
        return None
    if fields.text_type.startswith("gemma4") and not fields.flag("enable_moe_block"):
        return None
    count, chosen = fields.integer("num_experts"), fields.integer("experts_per_token")
    if chosen > count:
        raise FieldProblem(f"it chooses {chosen} experts per token, and has {count}")
    size = fields.integer("moe_intermediate_size", fields.integer("intermediate_size", 0))
    latent = fields.get("moe_latent_size") or fields.get("routed_expert_hidden_size")
    hidden = (
        fields.integer("hidden_size") if latent is None else whole_number("moe_latent_size", latent)
    )
    return MoeShape(
        count, chosen, size, hidden, _shared_size(fields, size),
    )  # fmt: skip


def _shared_size(fields: ConfigFields, size: int) -> int:
    """Return the intermediate size of all shared experts together."""
    for name in (
        "moe_shared_expert_intermediate_size", "shared_expert_intermediate_size", "share_expert_dim",
    ):  # fmt: skip
        if fields.get(name):
            return fields.integer(name)
    if fields.text_type in ("llama4", "llama4_text"):
        return fields.integer("intermediate_size")
    if fields.text_type in ("granitemoehybrid", "granitemoeshared"):
        return fields.integer("shared_intermediate_size", 0)
    return size * fields.integer("num_shared_experts", 0)


def moe_weights(fields: ConfigFields, family: Family) -> Iterator[Weight]:
    """Yield router, routed and shared experts."""
    moe = read_moe(fields)
    if moe is None:
        raise FieldProblem("config.json has layers of experts, but not their number")
    hidden, kind, gated = fields.integer("hidden_size"), fields.text_type, family.gated_mlp
    yield Weight("mlp.gate", "router", moe.num_experts, hidden, shard=Shard.REPLICATED)
    yield from mlp_weights(
        "experts" if kind.startswith("gemma4") else "mlp.experts", "routed_experts", moe.hidden_size, moe.intermediate_size,
        is_gated=gated, copies=moe.num_experts,
    )  # fmt: skip
    if moe.hidden_size != hidden:
        yield Weight("mlp.fc1_latent_proj", "mlp", moe.hidden_size, hidden, shard=Shard.REPLICATED)
        yield Weight("mlp.fc2_latent_proj", "mlp", hidden, moe.hidden_size, shard=Shard.REPLICATED)
    if moe.shared_intermediate_size:
        size = moe.shared_intermediate_size
        yield from mlp_weights("mlp.shared_experts", "shared_experts", hidden, size, is_gated=gated)
    if kind in ("qwen3_next", "qwen3_5_moe", "qwen3_5_moe_text", "qwen2_moe"):
        yield vector("mlp.shared_expert_gate", hidden)
    if kind in ("laguna", "ernie4_5_moe"):
        yield vector("mlp.gate.e_score_correction_bias", moe.num_experts)
    if kind == "gpt_oss":
        yield vector("mlp.gate.bias", moe.num_experts)
        yield Weight(
            "mlp.experts.bias", "expert_bias", 2 * moe.intermediate_size + hidden, 1, moe.num_experts,
            Shard.EXPERTS,
        )  # fmt: skip
    if kind.startswith("gemma4"):
        yield vector("router.scale", hidden + moe.num_experts + 3 * hidden)


def vector(path: str, size: int) -> Weight:
    """Return a vector that every rank holds: norms, biases, coefficients."""
    return Weight(path, "norm", size, 1, shard=Shard.REPLICATED)
