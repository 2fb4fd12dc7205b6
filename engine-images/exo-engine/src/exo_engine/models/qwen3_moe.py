"""Qwen3 with experts: in every layer, or every few, a mixture takes the place of the MLP."""

from __future__ import annotations

from dataclasses import replace

from exo_engine.models import llama, qwen3
from exo_engine.models.config_file import ConfigReader
from exo_engine.models.spec import DecoderSpec, MixtureSpec

_MOST_EXPERTS = 2**16
"""Of all layers; a checkpoint that names each of three matrices could not have more."""


def spec_from_config(reader: ConfigReader) -> DecoderSpec:
    """Translate a `Qwen3MoeForCausalLM` configuration."""
    spec = qwen3.spec_from_config(reader)
    has_window = reader.boolean("use_sliding_window", False) and reader.has("sliding_window")
    window = reader.integer("sliding_window") if has_window else None
    return replace(
        spec,
        architecture="Qwen3MoeForCausalLM",
        head_dim=llama.read_head_dim(reader),
        windows=(window,) * spec.num_layers,
        mixture=read_mixture(reader, spec.num_layers),
    )


def read_mixture(
    reader: ConfigReader, num_layers: int, *, normalizes: bool = False
) -> MixtureSpec | None:
    """Return the mixture of some layers, whose weights are normalised by default or not; or None."""
    key = "num_experts" if reader.has("num_experts") else "num_local_experts"
    num_experts = reader.integer(key, 128, at_least=0)
    if num_experts * num_layers > _MOST_EXPERTS:
        raise reader.unusable(key, num_experts, f"{_MOST_EXPERTS // num_layers} or fewer")
    step = reader.integer("decoder_sparse_step", 1)
    dense = reader.values.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(each) is int for each in dense):
        raise reader.unusable("mlp_only_layers", dense, "a list of numbers of layers")
    layers = frozenset(range(step - 1, num_layers, step)) - frozenset(dense)
    if not num_experts or not layers:
        return None
    num_chosen = reader.integer("num_experts_per_tok", 8)
    if num_chosen > num_experts:
        raise reader.unusable("num_experts_per_tok", num_chosen, f"at most {num_experts} ({key})")
    return MixtureSpec(
        num_experts=num_experts,
        num_chosen=num_chosen,
        intermediate_size=reader.integer("moe_intermediate_size", 768),
        normalizes=reader.boolean("norm_topk_prob", normalizes),
        layers=layers,
    )
