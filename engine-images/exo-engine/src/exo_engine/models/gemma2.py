"""Gemma 2: every other layer windowed, scores and logits capped, a norm on either side of everything."""

from __future__ import annotations

from dataclasses import replace

from exo_engine.models import llama
from exo_engine.models.config_file import ConfigReader
from exo_engine.models.spec import DecoderSpec, RopeSpec

_KINDS = ("sliding_attention", "full_attention")


def spec_from_config(reader: ConfigReader) -> DecoderSpec:
    """Translate a `Gemma2ForCausalLM` configuration."""
    spec = read_common(reader)
    return replace(
        spec,
        soft_cap=_read_cap(reader, "attn_logit_softcapping", 50.0),
        logit_cap=_read_cap(reader, "final_logit_softcapping", 30.0),
        windows=read_windows(reader, spec.num_layers, full_every=2),
    )


def read_common(reader: ConfigReader, *, rope: RopeSpec | None = None) -> DecoderSpec:
    """Return what later versions have as well; `rope` may have been read."""
    activation = reader.text("hidden_activation", "gelu_pytorch_tanh")
    if activation != "gelu_pytorch_tanh":
        raise reader.unusable("hidden_activation", activation, "gelu_pytorch_tanh")
    if reader.boolean("use_bidirectional_attention", False):
        raise reader.unusable("use_bidirectional_attention", True, "false")
    spec = llama.spec_from_config(reader, rope=rope)
    return replace(
        spec,
        architecture="Gemma2ForCausalLM",
        head_dim=llama.read_head_dim(reader, 256),
        ties_embeddings=reader.boolean("tie_word_embeddings", True),
        has_mlp_bias=False,
        norm_offset=1.0,
        has_post_norms=True,
        activation="gelu_tanh",
        embedding_scale=spec.hidden_size**0.5,
        attention_scale=reader.number("query_pre_attn_scalar", 256.0) ** -0.5,
    )


def _read_cap(reader: ConfigReader, key: str, default: float) -> float | None:
    is_off = key in reader.values and not reader.has(key)
    return None if is_off else reader.number(key, default)


def read_windows(
    reader: ConfigReader, num_layers: int, *, full_every: int, default: int = 4096
) -> tuple[int | None, ...]:
    """Return each layer's window; where no list says it, one in `full_every` layers has none."""
    window = reader.integer("sliding_window", default)
    kinds = reader.values.get("layer_types")
    if kinds is None:
        kinds = [_KINDS[(index + 1) % full_every == 0] for index in range(num_layers)]
    if not isinstance(kinds, list) or len(kinds) != num_layers or not set(kinds) <= set(_KINDS):
        raise reader.unusable("layer_types", kinds, f"{num_layers} of {', '.join(_KINDS)}")
    return tuple(window if kind == _KINDS[0] else None for kind in kinds)
