"""DeepSeek-V2 and V3: latent attention, and after some dense layers mixtures with shared experts."""

from __future__ import annotations

import math

from exo_engine.models.config_file import ConfigReader
from exo_engine.models.rope_config import read_rope, read_scale
from exo_engine.models.spec import DecoderSpec, LatentSpec, MixtureSpec, RoutingSpec

_V2 = "DeepseekV2ForCausalLM"
_MOST_EXPERTS = 2**16
"""Of all layers; a checkpoint that names each of three matrices could not have more."""


def spec_from_config(reader: ConfigReader) -> DecoderSpec:
    """Translate a `DeepseekV2ForCausalLM` or `DeepseekV3ForCausalLM` configuration."""
    reader.refuse("attention_bias", "mlp_bias")
    is_v2 = _V2 in reader.values["architectures"]
    turned = reader.integer("qk_rope_head_dim", 64)
    if turned % 2:
        raise reader.unusable("qk_rope_head_dim", turned, "an even number")
    num_layers, num_heads = (
        reader.integer("num_hidden_layers"),
        reader.integer("num_attention_heads"),
    )
    return DecoderSpec(
        architecture=_V2 if is_v2 else "DeepseekV3ForCausalLM",
        vocab_size=reader.integer("vocab_size"),
        hidden_size=reader.integer("hidden_size"),
        intermediate_size=reader.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=turned,
        rms_norm_eps=reader.number("rms_norm_eps", 1e-6),
        max_position_embeddings=reader.integer("max_position_embeddings", 2048),
        rope=read_rope(reader),
        ties_embeddings=reader.boolean("tie_word_embeddings", False),
        windows=(None,) * num_layers,
        latent=_read_latent(reader, turned, is_v2=is_v2),
        mixture=_read_mixture(reader, num_layers, is_v2=is_v2),
        beside=() if is_v2 else (f"model.layers.{num_layers}.",),  # what guesses tokens ahead
    )


def _read_latent(reader: ConfigReader, turned: int, *, is_v2: bool) -> LatentSpec:
    plain = reader.integer("qk_nope_head_dim", 128)
    has_rank = "q_lora_rank" not in reader.values or reader.has("q_lora_rank")
    return LatentSpec(
        num_latent=reader.integer("kv_lora_rank", 512),
        query_rank=reader.integer("q_lora_rank", 1536) if has_rank else None,
        plain_dim=plain,
        turned_dim=turned,
        value_dim=reader.integer("v_head_dim", 128),
        scale=(plain + turned) ** -0.5 * _scale_factor(reader),
        turns_neighbours=is_v2 or reader.boolean("rope_interleave", True),
    )


def _scale_factor(reader: ConfigReader) -> float:
    """What a stretched rotary embedding multiplies scores by (`mscale_all_dim`)."""
    scaling = reader.child("rope_parameters") or reader.child("rope_scaling")
    if scaling is None or not scaling.values.get("mscale_all_dim"):
        return 1.0
    if scaling.text("rope_type", scaling.text("type", "default")) == "default":
        return 1.0
    factor, weight = scaling.number("factor"), read_scale(scaling, "mscale_all_dim")
    return (0.1 * weight * math.log(factor) + 1.0) ** 2 if factor > 1 else 1.0


def _read_mixture(reader: ConfigReader, num_layers: int, *, is_v2: bool) -> MixtureSpec | None:
    first = reader.integer("first_k_dense_replace", 0 if is_v2 else 3, at_least=0)
    step = reader.integer("moe_layer_freq", 1)
    if step != 1:
        raise reader.unusable("moe_layer_freq", step, "1")
    num_experts = reader.integer("n_routed_experts", 64 if is_v2 else 256)
    if num_experts * num_layers > _MOST_EXPERTS:
        expected = f"{_MOST_EXPERTS // num_layers} or fewer"
        raise reader.unusable("n_routed_experts", num_experts, expected)
    if first >= num_layers:
        return None
    routing = _read_routing(reader, num_experts, is_v2=is_v2)
    num_chosen = reader.integer("num_experts_per_tok", 8)
    reachable = num_experts // routing.num_groups * routing.num_groups_chosen
    if num_chosen > reachable:
        raise reader.unusable("num_experts_per_tok", num_chosen, f"at most {reachable}")
    normalizes = reader.boolean("norm_topk_prob", not is_v2)
    if is_v2 and normalizes:
        raise reader.unusable("norm_topk_prob", True, "false")
    inner = reader.integer("moe_intermediate_size", 1407 if is_v2 else 2048)
    num_shared = reader.integer("n_shared_experts", 2 if is_v2 else 1)
    return MixtureSpec(
        num_experts=num_experts,
        num_chosen=num_chosen,
        intermediate_size=inner,
        normalizes=normalizes,
        layers=frozenset(range(first, num_layers)),
        routing=routing,
        shared_size=num_shared * inner,
    )


def _read_routing(reader: ConfigReader, num_experts: int, *, is_v2: bool) -> RoutingSpec:
    choices = {"greedy": "softmax", "group_limited_greedy": "softmax"}
    choices = choices if is_v2 else {"noaux_tc": "sigmoid"}
    method = reader.text("topk_method", next(iter(choices)))
    if method not in choices:
        raise reader.unusable("topk_method", method, f"one of {', '.join(choices)}")
    scoring = reader.text("scoring_func", choices[method])
    if scoring != choices[method]:
        raise reader.unusable("scoring_func", scoring, choices[method])
    has_groups = method != "greedy"
    num_groups = reader.integer("n_group", 1 if is_v2 else 8) if has_groups else 1
    most = reader.integer("topk_group", 1 if is_v2 else 4) if has_groups else 1
    if num_experts % num_groups:
        raise reader.unusable(
            "n_group", num_groups, f"a divisor of n_routed_experts ({num_experts})"
        )
    if most > num_groups:
        raise reader.unusable("topk_group", most, f"at most n_group ({num_groups})")
    num_judging = 1 if is_v2 else 2
    if num_groups > 1 and num_experts // num_groups < num_judging:
        raise reader.unusable("n_group", num_groups, f"groups of {num_judging} experts or more")
    return RoutingSpec(
        scoring="softmax" if is_v2 else "sigmoid",
        num_groups=num_groups,
        num_groups_chosen=most,
        num_judging=num_judging,
        has_bias=not is_v2,
        scale=reader.number("routed_scaling_factor", 1.0 if is_v2 else 2.5),
        is_float32=True,
    )
