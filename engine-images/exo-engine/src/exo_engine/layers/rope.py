"""Rotary position embeddings: tables of cosine and sine, and how they turn queries and keys.

Legend: T tokens in step, P positions, H heads, D head dim.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from exo_engine.models.spec import RopeSpec


class RotaryEmbedding:
    """Cosine and sine for every position a model may see, computed once in float32."""

    def __init__(
        self, spec: RopeSpec, head_dim: int, num_positions: int, device: torch.device
    ) -> None:
        frequencies = inverse_frequencies(spec, head_dim)  # (D/2,)
        angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
        angles = torch.cat((angles, angles), dim=-1)  # (P, D)
        self._cos = (angles.cos() * spec.attention_factor).to(device)
        self._sin = (angles.sin() * spec.attention_factor).to(device)

    def at(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosine and sine, each (T, 1, D) of `dtype`, for `positions` (T,) integers."""
        cos = self._cos.index_select(0, positions).to(dtype).unsqueeze(1)
        sin = self._sin.index_select(0, positions).to(dtype).unsqueeze(1)
        return cos, sin


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn `states` (T, H, D) by the angles whose cosine and sine (T, 1, D or less) are given."""
    turned = cos.shape[-1]
    if turned < states.shape[-1]:
        rest = states[..., turned:]
        return torch.cat((rotate(states[..., :turned], cos, sin), rest), dim=-1)
    first, second = states.chunk(2, dim=-1)
    return states * cos + torch.cat((-second, first), dim=-1) * sin


def inverse_frequencies(spec: RopeSpec, head_dim: int) -> Tensor:
    """Return the angle per position of each pair of dimensions, (D/2,) float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    plain = 1.0 / (spec.theta**exponents)
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
