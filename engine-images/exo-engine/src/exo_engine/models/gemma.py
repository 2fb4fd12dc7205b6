"""What versions of Gemma share, as their files of configuration say it."""

from __future__ import annotations

from dataclasses import replace

from exo_engine.models import llama
from exo_engine.models.config_file import ConfigReader
from exo_engine.models.rope_config import read_rope_of
from exo_engine.models.spec import DecoderSpec, HeadsSpec, RopeSpec

PerLayer = tuple[int | None, ...]
"""A number of each layer, as its window; None: it has none."""

_KINDS = ("sliding_attention", "full_attention")
_WINDOW_THETA = 10_000.0


def read_common(reader: ConfigReader, *, rope: RopeSpec | None = None) -> DecoderSpec:
    """Return what later versions have as well; `rope` may have been read."""
    activation = reader.text("hidden_activation", "gelu_pytorch_tanh")
    if activation != "gelu_pytorch_tanh":
        raise reader.unusable("hidden_activation", activation, "gelu_pytorch_tanh")
    bidirectional = reader.values.get("use_bidirectional_attention") or False
    if bidirectional not in (False, "vision"):
        raise reader.unusable("use_bidirectional_attention", bidirectional, "false")
    spec = llama.spec_from_config(reader, rope=rope)
    return replace(
        spec,
        head_dim=llama.read_head_dim(reader, 256),
        ties_embeddings=reader.boolean("tie_word_embeddings", True),
        has_mlp_bias=False,
        norm_offset=1.0,
        has_post_norms=True,
        activation="gelu_tanh",
        embedding_scale=spec.hidden_size**0.5,
        attention_scale=reader.number("query_pre_attn_scalar", 256.0) ** -0.5,
    )


def read_later(reader: ConfigReader, rope: RopeSpec) -> DecoderSpec:
    """Return what Gemma 3 and 4 have: norms of heads, and another rotary embedding in layers with a window.

    Args:
        reader: of the configuration.
        rope: of the other layers, where it says none.
    """
    rope, window_rope = _read_ropes(reader, rope)
    spec = read_common(reader, rope=rope)
    heads = HeadsSpec(spec.num_kv_heads, spec.head_dim, window_rope)
    return replace(spec, has_qk_norm=True, window_heads=heads)


def read_cap(reader: ConfigReader, key: str, default: float | None) -> float | None:
    """Return a soft cap; None: null, or absent where there is no default."""
    is_off = not reader.has(key) and (key in reader.values or default is None)
    return None if is_off else reader.number(key, default or 0.0)


def read_windows(
    reader: ConfigReader, num_layers: int, *, full_every: int, default: int = 4096
) -> PerLayer:
    """Return each layer's window; where no list says it, one in `full_every` layers has none."""
    window = reader.integer("sliding_window", default)
    kinds = reader.kinds("layer_types", num_layers, _KINDS)
    if kinds is None:
        kinds = [_KINDS[(index + 1) % full_every == 0] for index in range(num_layers)]
    return tuple(window if kind == _KINDS[0] else None for kind in kinds)


def _read_ropes(reader: ConfigReader, full: RopeSpec) -> tuple[RopeSpec, RopeSpec]:
    """Return the rotary embedding of full layers, by default `full`, and of those with a window."""
    both = reader.child("rope_parameters")
    if both is not None:
        own = both.child("full_attention")
        windowed = read_rope_of(reader, both.child("sliding_attention"), _WINDOW_THETA)
        return full if own is None else read_rope_of(reader, own, full.theta), windowed
    scaling, windowed = (
        reader.child("rope_scaling"),
        RopeSpec(reader.number("rope_local_base_freq", _WINDOW_THETA)),
    )
    has_own = scaling is not None or reader.has("rope_theta")
    return read_rope_of(reader, scaling, full.theta) if has_own else full, windowed
