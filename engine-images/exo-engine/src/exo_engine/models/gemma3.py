"""Gemma 3 (text): Gemma 2 without soft caps, norms of heads, and two rotary bases."""

from __future__ import annotations

from dataclasses import replace

from exo_engine.models import gemma2
from exo_engine.models.config_file import ConfigReader
from exo_engine.models.rope_config import read_rope_of
from exo_engine.models.spec import DecoderSpec, RopeSpec

_THETA, _WINDOW_THETA = 1_000_000.0, 10_000.0


def spec_from_config(reader: ConfigReader) -> DecoderSpec:
    """Translate a `Gemma3ForCausalLM` configuration."""
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if reader.has(key):
            raise reader.unusable(key, reader.values[key], "null")
    rope, window_rope = _read_ropes(reader)
    spec = gemma2.read_common(reader, rope=rope)
    every = reader.integer("sliding_window_pattern", 6)
    return replace(
        spec,
        architecture="Gemma3ForCausalLM",
        has_qk_norm=True,
        window_rope=window_rope,
        windows=gemma2.read_windows(reader, spec.num_layers, full_every=every),
    )


def _read_ropes(reader: ConfigReader) -> tuple[RopeSpec, RopeSpec]:
    """Return the rotary embedding of full layers, and of those with a window."""
    both = reader.child("rope_parameters")
    if both is None:
        theta = reader.number("rope_local_base_freq", _WINDOW_THETA)
        full = read_rope_of(reader, reader.child("rope_scaling"), _THETA)
        return full, RopeSpec(theta=theta)
    return (
        read_rope_of(reader, both.child("full_attention"), _THETA),
        read_rope_of(reader, both.child("sliding_attention"), _WINDOW_THETA),
    )
