"""What lies between the products of a layer, each in one pass: norms behind additions, and gates.

A row's bits do not depend on the others.
"""

from __future__ import annotations

import triton
import triton.language as tl

from exo_engine.kernels.triton.overlap_kernels import wait

LOG2_E = tl.constexpr(1.4426950408889634)
SQRT_2_BY_PI = tl.constexpr(0.7978845608028654)


@triton.jit
def normalise_rows(
    states,  # (T, E), contiguous; changed, where there are updates
    updates,  # (T, E), contiguous
    weight,  # (E,), where there is one
    outputs,  # (T, E)
    eps,
    HAS_UPDATES: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    E: tl.constexpr,
    TILE: tl.constexpr,  # the power of two that holds E
    OVERLAPS: tl.constexpr,
):
    """Add an update to one row, and divide it by its root mean square, in float32."""
    wait(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, TILE)
    is_place = places < E
    numbers = tl.load(states + row * E + places, mask=is_place, other=0.0).to(tl.float32)
    if HAS_UPDATES:
        numbers += tl.load(updates + row * E + places, mask=is_place, other=0.0).to(tl.float32)
        rounded = numbers.to(states.dtype.element_ty)
        tl.store(states + row * E + places, rounded, mask=is_place)
        numbers = rounded.to(tl.float32)
    factor = tl.rsqrt(tl.sum(numbers * numbers, axis=0) / E + eps)
    normalised = numbers * factor
    if HAS_WEIGHT:
        normalised *= tl.load(weight + places, mask=is_place, other=0.0).to(tl.float32)
    tl.store(outputs + row * E + places, normalised.to(outputs.dtype.element_ty), mask=is_place)


@triton.jit
def gate_rows(
    merged,  # (T, 2 I), contiguous
    outputs,  # (T, I)
    INNER: tl.constexpr,
    TILE: tl.constexpr,
    IS_SILU: tl.constexpr,  # else the Gaussian error unit by tanh
    OVERLAPS: tl.constexpr,
):
    """Activate the first half of one row, and multiply it by the second, in float32."""
    wait(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * TILE + tl.arange(0, TILE)
    is_place = places < INNER
    own = merged + row * (2 * INNER)
    gates = tl.load(own + places, mask=is_place, other=0.0).to(tl.float32)
    values = tl.load(own + INNER + places, mask=is_place, other=0.0).to(tl.float32)
    gated = activate(gates, IS_SILU) * values
    tl.store(outputs + row * INNER + places, gated.to(outputs.dtype.element_ty), mask=is_place)


@triton.jit
def activate(gates, IS_SILU: tl.constexpr):
    """Return SiLU of numbers, or GELU by tanh."""
    if IS_SILU:
        steps = gates
    else:  # (1 + tanh(x)) / 2 = 1 / (1 + exp(-2 x))
        steps = 2 * SQRT_2_BY_PI * (gates + 0.044715 * gates * gates * gates)
    return gates / (1 + tl.exp2(tl.minimum(0.0 - steps * LOG2_E, 126.0)))  # no infinity
