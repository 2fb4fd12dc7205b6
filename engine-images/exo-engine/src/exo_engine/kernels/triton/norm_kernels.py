"""Root-mean-square normalisation of rows, each by one program: a row's bits do not depend on the others."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def normalise_rows(
    states,  # (T, E), contiguous
    weight,  # (E,), where there is one
    outputs,  # (T, E)
    eps,
    HAS_WEIGHT: tl.constexpr,
    E: tl.constexpr,
    TILE: tl.constexpr,  # the power of two that holds E
):
    """Normalise one row, in float32."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, TILE)
    is_place = places < E
    numbers = tl.load(states + row * E + places, mask=is_place, other=0.0).to(tl.float32)
    factor = tl.rsqrt(tl.sum(numbers * numbers, axis=0) / E + eps)
    normalised = numbers * factor
    if HAS_WEIGHT:
        normalised *= tl.load(weight + places, mask=is_place, other=0.0).to(tl.float32)
    tl.store(outputs + row * E + places, normalised.to(outputs.dtype.element_ty), mask=is_place)
