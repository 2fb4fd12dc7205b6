"""Reads the rotary-embedding part of config.json, in its old and its new form.

Old form: `rope_theta` and an optional `rope_scaling` object. New form (transformers 5): one
`rope_parameters` object that holds both. The family files call it. What we cannot compute exactly is
refused, because a wrong rotary embedding gives fluent nonsense.
"""

from __future__ import annotations

import math

from exo_engine.models.config_file import ConfigReader
from exo_engine.models.spec import RopeSpec

_MOST_ROTATIONS = 1e6
_MOST_SCALE = 1e3
"""Far above any model's, and the square of what it gives stays a number."""
_SUPPORTED = ("default", "linear", "llama3", "yarn", "proportional")


def read_rope(
    reader: ConfigReader, *, default_theta: float = 10000.0, default_part: float | None = None
) -> RopeSpec:
    """Return the rotary embedding that a configuration describes.

    Args:
        reader: of the configuration.
        default_theta: where it says none.
        default_part: likewise, the share of each head that is turned; None: all of it must be.
    """
    scaling = reader.child("rope_parameters") or reader.child("rope_scaling")
    return read_rope_of(reader, scaling, default_theta, default_part)


def read_rope_of(
    reader: ConfigReader,
    scaling: ConfigReader | None,
    default_theta: float,
    default_part: float | None = None,
) -> RopeSpec:
    """Return the rotary embedding that one object describes; arguments beside as in `read_rope`."""
    part = reader.number("partial_rotary_factor", default_part or 1.0)
    may_be_partial = default_part is not None
    if scaling is None:
        theta = reader.number("rope_theta", default_theta)
        return RopeSpec(theta=theta, rotary_part=_part(reader, part, may_be_partial))
    theta = scaling.number("rope_theta", reader.number("rope_theta", default_theta))
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind not in _SUPPORTED:
        raise scaling.unusable(
            "rope_type",
            kind,
            f"one of {', '.join(_SUPPORTED)}",
            hint="This engine cannot compute that rotary embedding; another engine may.",
        )
    part = scaling.number("partial_rotary_factor", part)
    if kind == "proportional":
        factor = scaling.number("factor", 1.0)
        return RopeSpec(theta, kind="proportional", factor=factor, rotary_part=min(part, 1.0))
    if kind == "default":
        return RopeSpec(theta=theta, rotary_part=_part(scaling, part, may_be_partial))
    _part(scaling, part, False)
    original = scaling.integer(
        "original_max_position_embeddings", reader.integer("max_position_embeddings")
    )
    if kind == "linear":
        return RopeSpec(theta=theta, kind="linear", factor=scaling.number("factor"))
    if kind == "llama3":
        return RopeSpec(
            theta=theta,
            kind="llama3",
            factor=scaling.number("factor"),
            original_max_position_embeddings=original,
            low_freq_factor=scaling.number("low_freq_factor"),
            high_freq_factor=scaling.number("high_freq_factor"),
        )
    if theta <= 1.0:
        raise reader.unusable("rope_theta", theta, "a number above 1 for yarn")
    return _read_yarn(scaling, theta, original)


def _part(reader: ConfigReader, part: float, may_be_partial: bool) -> float:
    if part != 1.0 and not (may_be_partial and part < 1.0):
        raise reader.unusable("partial_rotary_factor", part, "1.0")
    return part


def _read_yarn(scaling: ConfigReader, theta: float, original: int) -> RopeSpec:
    factor = scaling.number("factor")
    return RopeSpec(
        theta=theta,
        kind="yarn",
        factor=factor,
        original_max_position_embeddings=original,
        beta_fast=_rotations(scaling, "beta_fast", 32.0),
        beta_slow=_rotations(scaling, "beta_slow", 1.0),
        truncate=scaling.boolean("truncate", True),
        attention_factor=_yarn_attention_factor(scaling, factor),
    )


def _rotations(scaling: ConfigReader, key: str, default: float) -> float:
    """Return how often a dimension turns over the original length."""
    value = scaling.number(key, default)
    if not 1 / _MOST_ROTATIONS <= value <= _MOST_ROTATIONS:
        raise scaling.unusable(key, value, f"from {1 / _MOST_ROTATIONS:g} to {_MOST_ROTATIONS:g}")
    return value


def read_scale(scaling: ConfigReader, key: str) -> float:
    """Return `mscale` or `mscale_all_dim`."""
    value = scaling.number(key)
    if value > _MOST_SCALE:
        raise scaling.unusable(key, value, f"at most {_MOST_SCALE:g}")
    return value


def _yarn_attention_factor(scaling: ConfigReader, factor: float) -> float:
    """Peng et al. 2023 (YaRN), §3.4; `mscale` and `mscale_all_dim` as DeepSeek uses them."""

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if scaling.has("attention_factor"):
        return scaling.number("attention_factor")
    if scaling.has("mscale") and scaling.has("mscale_all_dim"):
        return scale(read_scale(scaling, "mscale")) / scale(read_scale(scaling, "mscale_all_dim"))
    return scale(1.0)
