"""Qwen2 and Qwen2.5: biases on queries, keys and values; optional sliding window in upper layers."""

from __future__ import annotations

from dataclasses import replace

from exo_engine.models import llama
from exo_engine.models.config_file import ConfigReader
from exo_engine.models.spec import DecoderSpec


def spec_from_config(reader: ConfigReader) -> DecoderSpec:
    """Translate a `Qwen2ForCausalLM` configuration."""
    spec = llama.spec_from_config(reader)
    return replace(
        spec,
        architecture="Qwen2ForCausalLM",
        has_qkv_bias=True,
        has_output_bias=False,
        has_mlp_bias=False,
        windows=read_windows(reader, spec.num_layers),
    )


def read_windows(reader: ConfigReader, num_layers: int) -> tuple[int | None, ...]:
    """Return each layer's window, from `layer_types` or from `max_window_layers`."""
    if not reader.boolean("use_sliding_window", False) or not reader.has("sliding_window"):
        return (None,) * num_layers
    window = reader.integer("sliding_window")
    known = {"full_attention": None, "sliding_attention": window}
    kinds = reader.kinds("layer_types", num_layers, known)
    if kinds is None:
        first = reader.integer("max_window_layers", 28, at_least=0)
        return tuple(window if layer >= first else None for layer in range(num_layers))
    return tuple(known[kind] for kind in kinds)
