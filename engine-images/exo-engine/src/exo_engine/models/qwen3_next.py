"""Qwen3-Next: Qwen3.5's layers with their projections merged per head, and a mixture in each."""

from __future__ import annotations

from dataclasses import replace

from exo_engine.models import qwen3_5, qwen3_moe
from exo_engine.models.config_file import ConfigReader
from exo_engine.models.spec import DecoderSpec


def spec_from_config(reader: ConfigReader) -> DecoderSpec:
    """Translate a `Qwen3NextForCausalLM` configuration."""
    for key in ("num_experts", "num_experts_per_tok", "moe_intermediate_size"):
        reader.integer(key, at_least=0)  # Qwen3-MoE's defaults are others
    spec = qwen3_5.spec_from_config(reader, default_rotary_part=0.25)
    assert spec.delta is not None, "every Qwen3.5 has one"
    mixture = qwen3_moe.read_mixture(reader, spec.num_layers, normalizes=True)
    if mixture is not None:
        size = reader.integer("shared_expert_intermediate_size", 512)
        mixture = replace(mixture, shared_size=size, gates_shared=True)
    return replace(
        spec,
        architecture="Qwen3NextForCausalLM",
        delta=replace(spec.delta, is_merged=True),
        mixture=mixture,
    )
