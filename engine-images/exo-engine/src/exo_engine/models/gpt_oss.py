"""gpt-oss: experts with biases and clamped gates, sinks, every other layer windowed."""

from __future__ import annotations

from dataclasses import replace

from exo_engine.models import gemma, llama
from exo_engine.models.config_file import ConfigReader
from exo_engine.models.rope_config import read_rope
from exo_engine.models.spec import ClampSpec, DecoderSpec, MixtureSpec

_MOST_EXPERTS = 2**16
"""Of all layers."""
_MOST_LIMIT = 65504.0
"""The largest number of float16, the narrowest format that gates are clamped in."""


def spec_from_config(reader: ConfigReader) -> DecoderSpec:
    """Translate a `GptOssForCausalLM` configuration."""
    spec = llama.spec_from_config(reader, rope=read_rope(reader, default_theta=150_000.0))
    has_bias = reader.boolean("attention_bias", True)
    return replace(
        spec,
        architecture="GptOssForCausalLM",
        head_dim=llama.read_head_dim(reader, 64),
        num_kv_heads=llama.read_num_kv_heads(reader, 8),
        has_qkv_bias=has_bias,
        has_output_bias=has_bias,
        has_mlp_bias=False,
        has_sinks=True,
        windows=gemma.read_windows(reader, spec.num_layers, full_every=2, default=128),
        mixture=_read_mixture(reader, spec.num_layers),
    )


def _read_mixture(reader: ConfigReader, num_layers: int) -> MixtureSpec:
    key = "num_local_experts" if reader.has("num_local_experts") else "num_experts"
    num_experts = reader.integer(key, 128)
    if num_experts * num_layers > _MOST_EXPERTS:
        raise reader.unusable(key, num_experts, f"{_MOST_EXPERTS // num_layers} or fewer")
    num_chosen = reader.integer("num_experts_per_tok", 4)
    if num_chosen > num_experts:
        raise reader.unusable("num_experts_per_tok", num_chosen, f"at most {num_experts} ({key})")
    alpha, limit = reader.number("swiglu_alpha", 1.702), reader.number("swiglu_limit", 7.0)
    if limit > _MOST_LIMIT:
        raise reader.unusable("swiglu_limit", limit, f"at most {_MOST_LIMIT:g}")
    return MixtureSpec(
        num_experts=num_experts,
        num_chosen=num_chosen,
        intermediate_size=reader.integer("intermediate_size"),
        normalizes=True,
        layers=frozenset(range(num_layers)),
        clamp=ClampSpec(alpha, limit),
        is_transposed=True,
    )
