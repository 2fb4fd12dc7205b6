"""State-space and linear-attention layers: Mamba-2, Gated DeltaNet, Kimi Delta Attention.

`layers.py` calls `build_state_layer`. Shapes are those of the published implementations; the state
sizes are what vLLM allocates per request (checked on the page sizes it prints for Qwen3-Next and
Qwen3.5).
"""

from __future__ import annotations

from exo_inference.planner.model.config_fields import ConfigFields, whole_number
from exo_inference.planner.model.shapes import KvKind, KvSpec, Shard, Weight


def build_state_layer(fields: ConfigFields, kind: str) -> tuple[list[Weight], KvSpec]:
    """Return weights and state of a layer of kind `linear`, `ssd` (Mamba-2), `selective` (Mamba) or `conv`.

    Raises:
        FieldProblem: a size is missing.
    """
    if kind == "ssd":
        return _mamba2(fields)
    if kind == "selective":
        return _mamba1(fields)
    if kind == "conv":
        return _short_conv(fields)
    if fields.mapping("linear_attn_config"):
        return _kimi_delta(fields)
    if fields.get("linear_num_heads"):
        return _full_rank_delta(fields)
    return _gated_delta(fields)


def _mamba2(fields: ConfigFields) -> tuple[list[Weight], KvSpec]:
    hidden = fields.integer("hidden_size")
    heads = _first(fields, "mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "num_heads")
    dim = _first(fields, "mamba_head_dim", "mamba_d_head", "mamba_headdim", "head_dim")
    state = _first(fields, "ssm_state_size", "mamba_d_state", "state_size", default=128)
    groups = _first(fields, "n_groups", "mamba_n_groups", "mamba_ngroups", default=1)
    kernel = fields.integer("conv_kernel", fields.integer("mamba_d_conv", 4))
    inner = heads * dim or _first(fields, "mamba_expand", "expand", default=2) * hidden
    heads = heads or inner // max(1, dim)
    conv = inner + 2 * groups * state
    has_bias = fields.flag("use_conv_bias", default=fields.flag("mamba_conv_bias", default=True))
    normed = inner if fields.flag("mamba_rms_norm", default=True) else 0
    weights = [
        Weight("mixer.in_proj", "attention", inner + conv + heads, hidden),
        Weight("mixer.conv1d", "norm", conv, kernel),
        Weight("mixer.state", "norm", 3 * heads + normed + (conv if has_bias else 0)),
        Weight("mixer.out_proj", "attention", hidden, inner),
    ]
    spec = KvSpec(
        KvKind.STATE, conv_elements=conv, conv_positions=kernel - 1, state_elements=inner * state,
        state_bytes_per_element=_state_bytes(fields),
    )  # fmt: skip
    return weights, spec


def _first(fields: ConfigFields, *names: str, default: int = 0) -> int:
    """Return the first of these fields that is there."""
    found = next((name for name in names if fields.raw.get(name) is not None), None)
    return default if found is None else whole_number(found, fields.raw[found])


def _mamba1(fields: ConfigFields) -> tuple[list[Weight], KvSpec]:
    """Mamba (arXiv 2312.00752); Jamba norms its steps and projections."""
    hidden = fields.integer("hidden_size")
    inner = _first(fields, "expand", "mamba_expand", default=2) * hidden
    state = _first(fields, "state_size", "mamba_d_state", default=16)
    kernel = _first(fields, "conv_kernel", "mamba_d_conv", default=4)
    asked = fields.get("time_step_rank") or fields.get("mamba_dt_rank") or "auto"
    rank = -(-hidden // 16) if asked == "auto" else whole_number("mamba_dt_rank", asked)
    normed = rank + 2 * state if fields.get("mamba_dt_rank") else 0
    weights = [
        Weight("mixer.in_proj", "attention", 2 * inner, hidden),
        Weight("mixer.conv1d", "norm", inner, kernel),
        Weight("mixer.x_proj", "attention", rank + 2 * state, inner),
        Weight("mixer.dt_proj", "attention", inner, rank),
        Weight("mixer.state", "norm", inner * state + 3 * inner),
        Weight("mixer.norms", "norm", normed, shard=Shard.REPLICATED),
        Weight("mixer.out_proj", "attention", hidden, inner),
    ]
    spec = KvSpec(
        KvKind.STATE, conv_elements=inner, conv_positions=kernel - 1, state_elements=inner * state,
        state_bytes_per_element=_state_bytes(fields),
    )  # fmt: skip
    return weights, spec


def _short_conv(fields: ConfigFields) -> tuple[list[Weight], KvSpec]:
    """LFM2's gated short convolution (transformers, Lfm2ShortConv): two gates and a value per channel."""
    hidden, kernel = fields.integer("hidden_size"), fields.integer("conv_L_cache", 3)
    bias = 5 * hidden if fields.flag("conv_bias") else 0
    weights = [
        Weight("conv.in_proj", "attention", 3 * hidden, hidden),
        Weight("conv.conv", "norm", hidden, kernel),
        Weight("conv.bias", "norm", bias),
        Weight("conv.out_proj", "attention", hidden, hidden),
    ]
    spec = KvSpec(KvKind.STATE, conv_elements=hidden, conv_positions=kernel - 1)
    return weights, spec


def _gated_delta(fields: ConfigFields) -> tuple[list[Weight], KvSpec]:
    hidden = fields.integer("hidden_size")
    k_heads, v_heads = (
        fields.integer("linear_num_key_heads"),
        fields.integer("linear_num_value_heads"),
    )
    k_dim, v_dim = fields.integer("linear_key_head_dim"), fields.integer("linear_value_head_dim")
    kernel = fields.integer("linear_conv_kernel_dim", 4)
    keys, values = k_heads * k_dim, v_heads * v_dim
    conv = 2 * keys + values
    weights = [
        Weight("linear_attn.in_proj_qkv", "attention", conv, hidden),
        Weight("linear_attn.in_proj_z", "attention", values, hidden),
        # Too small for quantized kernels: recipes leave it in 16 bit, and so does the catalogue.
        Weight("linear_attn.in_proj_ba", "router", 2 * v_heads, hidden),
        Weight("linear_attn.conv1d", "norm", conv, kernel),
        Weight("linear_attn.state", "norm", 2 * v_heads + v_dim),
        Weight("linear_attn.out_proj", "attention", hidden, values),
    ]
    spec = KvSpec(
        KvKind.STATE, conv_elements=conv, conv_positions=kernel - 1,
        state_elements=v_heads * v_dim * k_dim, state_bytes_per_element=_state_bytes(fields),
    )  # fmt: skip
    return weights, spec


def _kimi_delta(fields: ConfigFields) -> tuple[list[Weight], KvSpec]:
    """Kimi Delta Attention (arXiv 2510.26692): per-channel gates of low rank."""
    config = ConfigFields(fields.mapping("linear_attn_config"))
    hidden, heads, dim = (
        fields.integer("hidden_size"),
        config.integer("num_heads"),
        config.integer("head_dim"),
    )
    kernel, inner = config.integer("short_conv_kernel_size", 4), heads * dim
    full_gate = config.flag("use_full_rank_gate")
    weights = [Weight(f"self_attn.{n}_proj", "attention", inner, hidden) for n in ("q", "k", "v")]
    weights += [
        Weight("self_attn.o_proj", "attention", hidden, inner),
        Weight("self_attn.f_a_proj", "attention", dim, hidden, shard=Shard.REPLICATED),
        Weight("self_attn.f_b_proj", "attention", inner, dim),
        Weight("self_attn.b_proj", "attention", heads, hidden),
        Weight("self_attn.conv1d", "norm", 3 * inner, kernel),
        Weight("self_attn.state", "norm", inner + heads + dim),
    ]
    if full_gate:
        weights.append(Weight("self_attn.g_proj", "attention", inner, hidden))
    else:
        weights += [
            Weight("self_attn.g_a_proj", "attention", dim, hidden, shard=Shard.REPLICATED),
            Weight("self_attn.g_b_proj", "attention", inner, dim),
        ]
    spec = KvSpec(
        KvKind.STATE, conv_elements=3 * inner, conv_positions=kernel - 1,
        state_elements=heads * dim * dim, state_bytes_per_element=4,
    )  # fmt: skip
    return weights, spec


def _full_rank_delta(fields: ConfigFields) -> tuple[list[Weight], KvSpec]:
    """Ling 3.0's Kimi Delta Attention: the gates that forget and that let through are of full rank."""
    hidden, heads = fields.integer("hidden_size"), fields.integer("linear_num_heads")
    dim, kernel = fields.integer("linear_head_dim"), fields.integer("linear_conv_kernel_dim", 4)
    inner = heads * dim
    weights = [
        Weight(f"self_attn.{n}_proj", "attention", inner, hidden) for n in ("q", "k", "v", "f", "g")
    ]
    weights += [
        Weight("self_attn.o_proj", "attention", hidden, inner),
        Weight("self_attn.b_proj", "attention", heads, hidden),
        Weight("self_attn.conv1d", "norm", 3 * inner, kernel),
        Weight("self_attn.state", "norm", inner + heads + dim),
    ]
    spec = KvSpec(
        KvKind.STATE, conv_elements=3 * inner, conv_positions=kernel - 1,
        state_elements=heads * dim * dim, state_bytes_per_element=4,
    )  # fmt: skip
    return weights, spec


def _state_bytes(fields: ConfigFields) -> int | None:
    """Return the bytes per state element that the checkpoint asks for; None: the run's dtype."""
    asked = fields.text("mamba_ssm_dtype") or fields.text("mamba_ssm_cache_dtype")
    return {"float32": 4, "float16": 2, "bfloat16": 2}.get(asked)
