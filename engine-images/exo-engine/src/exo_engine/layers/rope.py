"""Rotary position embeddings: tables of cosine and sine, and how they turn queries and keys.

Legend: T tokens in step, P positions, H heads, D head dim.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from exo_engine.attention.base import Rotation
from exo_engine.models.spec import RopeSpec


class RotaryEmbedding:
    """Cosine and sine for every position a model may see, computed once in float32."""

    def __init__(
        self, spec: RopeSpec, head_dim: int, num_positions: int, device: torch.device
    ) -> None:
        frequencies = inverse_frequencies(spec, head_dim)  # (D/2,)
        angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
        self._cosines = (angles.cos() * spec.attention_factor).to(device)  # (P, D/2)
        self._sines = (angles.sin() * spec.attention_factor).to(device)

    def at(self, positions: Tensor) -> Rotation:
        """Return what turns a step's queries and keys, at `positions` (T,) int32."""
        return Rotation(self._cosines, self._sines, positions)


def rotate(states: Tensor, rotation: Rotation) -> Tensor:
    """Turn `states` (T, H, D) by the angles of their positions; those may be of the first numbers only."""
    cos, sin = (
        table.index_select(0, rotation.positions).to(states.dtype).unsqueeze(1)
        for table in (rotation.cosines, rotation.sines)
    )
    turned = 2 * cos.shape[-1]
    first, second = states[..., :turned].chunk(2, dim=-1)
    parts = (first * cos - second * sin, second * cos + first * sin, states[..., turned:])
    return torch.cat(parts, dim=-1)


def inverse_frequencies(spec: RopeSpec, head_dim: int) -> Tensor:
    """Return the angle per position of each pair of dimensions, (D/2,) float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    plain = 1.0 / (spec.theta**exponents)
    if spec.kind == "proportional":  # as partial, but of frequencies: the rest does not turn
        is_turned = torch.arange(len(plain)) < int(spec.rotary_part * head_dim // 2)
        return torch.where(is_turned, plain / spec.factor, 0.0)
    if spec.kind == "linear":
        return plain / spec.factor
    if spec.kind == "llama3":
        return _llama3(spec, plain)
    if spec.kind == "yarn":
        return _yarn(spec, plain, head_dim)
    return plain


def _llama3(spec: RopeSpec, plain: Tensor) -> Tensor:
    """Llama 3.1's frequency-dependent stretch (meta-llama/llama-models, `apply_scaling`)."""
    wavelengths = 2 * math.pi / plain
    original = spec.original_max_position_embeddings
    stretched = plain / spec.factor
    smooth = (original / wavelengths - spec.low_freq_factor) / (
        spec.high_freq_factor - spec.low_freq_factor
    )
    between = (1 - smooth) * stretched + smooth * plain
    is_long = wavelengths > original / spec.low_freq_factor
    is_short = wavelengths < original / spec.high_freq_factor
    return torch.where(is_long, stretched, torch.where(is_short, plain, between))


def _yarn(spec: RopeSpec, plain: Tensor, head_dim: int) -> Tensor:
    """Peng et al. 2023 (YaRN), §3.2: keep fast dimensions, stretch slow ones, ramp between."""
    original = spec.original_max_position_embeddings

    def dimension_turning(num_rotations: float) -> float:
        return (head_dim * math.log(original / (num_rotations * 2 * math.pi))) / (
            2 * math.log(spec.theta)
        )

    low, high = dimension_turning(spec.beta_fast), dimension_turning(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = max(high - low, 0.001)  # the two may coincide
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return plain / spec.factor * ramp + plain * (1 - ramp)
