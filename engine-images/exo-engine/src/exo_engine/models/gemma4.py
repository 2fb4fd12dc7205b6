"""Gemma 4 (text, dense): other heads in full layers than in windowed ones, and layers that share their keys."""

from __future__ import annotations

from dataclasses import replace

from exo_engine.models import gemma, llama
from exo_engine.models.config_file import ConfigReader
from exo_engine.models.spec import DecoderSpec, LayerInputSpec, RopeSpec


def spec_from_config(reader: ConfigReader) -> DecoderSpec:
    """Translate a `Gemma4ForCausalLM` configuration."""
    reader.refuse("enable_moe_block", "attention_bias")
    spec = gemma.read_later(reader, RopeSpec(1_000_000.0, "proportional", rotary_part=0.25))
    windows = gemma.read_windows(reader, spec.num_layers, full_every=6, default=512)
    windows = (*windows[:-1], None)
    full_dim, num_full = _read_full(reader, windows)
    size = reader.integer("hidden_size_per_layer_input", 256, at_least=0)
    vocab = reader.integer("vocab_size_per_layer_input", 262_144, at_least=spec.vocab_size)
    return replace(
        spec,
        architecture="Gemma4ForCausalLM",
        num_kv_heads=num_full,
        head_dim=full_dim,
        has_values=not reader.boolean("attention_k_eq_v", False),
        has_value_norm=True,
        norm_offset=0.0,
        attention_scale=1.0,
        logit_cap=gemma.read_cap(reader, "final_logit_softcapping", None),
        windows=windows,
        kv_layers=_read_kv_layers(reader, windows),
        shared_width=2 if reader.boolean("use_double_wide_mlp", False) else 1,
        layer_inputs=LayerInputSpec(size, vocab) if size else None,
        has_layer_scale=True,
    )


def _read_full(reader: ConfigReader, windows: gemma.PerLayer) -> tuple[int, int]:
    """Return head size and key/value heads of full layers: from each one's own object, or for all."""
    each = reader.child("per_layer_config")
    if each is None:
        kind = "global_" if reader.boolean("attention_k_eq_v", False) else ""
        number = llama.read_num_kv_heads(reader, key=f"num_{kind}key_value_heads")
        return llama.read_head_dim(reader, 512, key="global_head_dim"), number
    own = [each.child(str(i)) or reader for i, window in enumerate(windows) if window is None]
    if any(one.values != own[-1].values for one in own):
        raise reader.unusable("per_layer_config", each.values, "the same in all full layers")
    reader = replace(own[-1], values={**reader.values, **own[-1].values})
    return llama.read_head_dim(reader, 256), llama.read_num_kv_heads(reader)


def _read_kv_layers(reader: ConfigReader, windows: gemma.PerLayer) -> gemma.PerLayer:
    """Return whose keys and values the last layers read: those of the last one like them before."""
    shared = reader.integer("num_kv_shared_layers", 0, at_least=0)
    own = windows[: max(len(windows) - shared, 0)]
    last = {window: index for index, window in enumerate(own)}
    if not set(windows) <= last.keys():
        raise reader.unusable("num_kv_shared_layers", shared, "fewer, to leave one of each kind")
    return (*[None] * len(own), *(last[window] for window in windows[len(own) :]))
