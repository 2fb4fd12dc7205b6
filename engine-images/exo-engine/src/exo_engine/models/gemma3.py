"""Gemma 3 (text): Gemma 2 without soft caps, norms of heads, and two rotary bases."""

from __future__ import annotations

from dataclasses import replace

from exo_engine.models import gemma
from exo_engine.models.config_file import ConfigReader
from exo_engine.models.spec import DecoderSpec, RopeSpec


def spec_from_config(reader: ConfigReader) -> DecoderSpec:
    """Translate a `Gemma3ForCausalLM` configuration."""
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if reader.has(key):
            raise reader.unusable(key, reader.values[key], "null")
    spec = gemma.read_later(reader, RopeSpec(1_000_000.0))
    every = reader.integer("sliding_window_pattern", 6)
    return replace(
        spec,
        architecture="Gemma3ForCausalLM",
        windows=gemma.read_windows(reader, spec.num_layers, full_every=every),
    )
