"""Gemma 3 (text): Gemma 2 without soft caps, norms of heads, and two rotary bases."""

from __future__ import annotations

from dataclasses import replace

from exo_engine.models import gemma
from exo_engine.models.config_file import ConfigReader
from exo_engine.models.spec import DecoderSpec, HeadsSpec, RopeSpec


def spec_from_config(reader: ConfigReader) -> DecoderSpec:
    """Translate a `Gemma3ForCausalLM` configuration."""
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if reader.has(key):
            raise reader.unusable(key, reader.values[key], "null")
    rope, window_rope = gemma.read_ropes(reader, RopeSpec(1_000_000.0))
    spec = gemma.read_common(reader, rope=rope)
    every = reader.integer("sliding_window_pattern", 6)
    return replace(
        spec,
        architecture="Gemma3ForCausalLM",
        has_qk_norm=True,
        window_heads=HeadsSpec(spec.num_kv_heads, spec.head_dim, window_rope),
        windows=gemma.read_windows(reader, spec.num_layers, full_every=every),
    )
