"""Gemma 4 (text, dense): other heads in full layers than in windowed ones, and layers that share their keys."""

from __future__ import annotations

from dataclasses import replace

from exo_engine.models import gemma
from exo_engine.models.config_file import ConfigReader
from exo_engine.models.spec import DecoderSpec, HeadsSpec, LayerInputSpec, RopeSpec

_ROPE = RopeSpec(1_000_000.0, kind="proportional", rotary_part=0.25)


def spec_from_config(reader: ConfigReader) -> DecoderSpec:
    """Translate a `Gemma4ForCausalLM` configuration."""
    for key in ("enable_moe_block", "attention_bias"):
        if reader.boolean(key, False):
            raise reader.unusable(key, True, "false")
    rope, window_rope = gemma.read_ropes(reader, _ROPE)
    spec = gemma.read_common(reader, rope=rope)
    windows = gemma.read_windows(reader, spec.num_layers, full_every=6, default=512)
    windows = (*windows[:-1], None)
    has_values = not reader.boolean("attention_k_eq_v", False)
    full_dim, num_full = gemma.read_full(reader, windows, spec.num_kv_heads, has_values=has_values)
    size = reader.integer("hidden_size_per_layer_input", 256, at_least=0)
    vocab = reader.integer("vocab_size_per_layer_input", 262_144, at_least=spec.vocab_size)
    return replace(
        spec,
        architecture="Gemma4ForCausalLM",
        num_kv_heads=num_full,
        head_dim=full_dim,
        has_values=has_values,
        window_heads=HeadsSpec(spec.num_kv_heads, spec.head_dim, window_rope),
        has_qk_norm=True,
        has_value_norm=True,
        norm_offset=0.0,
        attention_scale=1.0,
        logit_cap=gemma.read_cap(reader, "final_logit_softcapping", None),
        windows=windows,
        kv_layers=gemma.read_kv_layers(reader, windows),
        shared_width=2 if reader.boolean("use_double_wide_mlp", False) else 1,
        layer_inputs=LayerInputSpec(size, vocab) if size else None,
        has_layer_scale=True,
    )
