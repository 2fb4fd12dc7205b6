"""Qwen3 (dense): norms on queries and keys, and a head size of its own."""

from __future__ import annotations

from dataclasses import replace

from exo_engine.models import llama
from exo_engine.models.config_file import ConfigReader
from exo_engine.models.qwen2 import read_windows
from exo_engine.models.spec import DecoderSpec

_DEFAULT_HEAD_DIM = 128


def spec_from_config(reader: ConfigReader) -> DecoderSpec:
    """Translate a `Qwen3ForCausalLM` configuration."""
    spec = llama.spec_from_config(reader)
    has_attention_bias = reader.boolean("attention_bias", False)
    return replace(
        spec,
        architecture="Qwen3ForCausalLM",
        head_dim=llama.read_head_dim(reader, _DEFAULT_HEAD_DIM),
        has_qkv_bias=has_attention_bias,
        has_output_bias=has_attention_bias,
        has_mlp_bias=False,
        has_qk_norm=True,
        windows=read_windows(reader, spec.num_layers),
    )
