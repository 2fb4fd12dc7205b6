"""Mistral 7B and its successors: Llama's shape, with a sliding window in the early ones."""

from __future__ import annotations

from dataclasses import replace

from exo_engine.models import llama
from exo_engine.models.config_file import ConfigReader
from exo_engine.models.spec import DecoderSpec

_DEFAULT_NUM_KV_HEADS = 8
_DEFAULT_WINDOW = 4096


def spec_from_config(reader: ConfigReader) -> DecoderSpec:
    """Translate a `MistralForCausalLM` configuration."""
    window = read_window(reader)
    spec = llama.spec_from_config(reader)
    return replace(
        spec,
        architecture="MistralForCausalLM",
        num_kv_heads=llama.read_num_kv_heads(reader, _DEFAULT_NUM_KV_HEADS),
        has_qkv_bias=False,
        has_output_bias=False,
        has_mlp_bias=False,
        windows=(window,) * spec.num_layers,
    )


def read_window(reader: ConfigReader) -> int | None:
    """Return the sliding window: null means none, absent means the family's first default."""
    if "sliding_window" in reader.values and not reader.has("sliding_window"):
        return None
    return reader.integer("sliding_window", _DEFAULT_WINDOW)
