"""The product of one row by a matrix, which takes as long as the matrix takes to be read.

Legend: K inputs, N outputs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from exo_engine.kernels.triton.overlap_kernels import wait
from exo_engine.kernels.triton.pointwise_kernels import activate


@triton.jit
def multiply_row(
    inputs,  # (K,)
    weights,  # (N, K), or (2 N, K), of which the first half are of gates
    bias,  # (N,)
    outputs,  # (N,)
    K: tl.constexpr,
    N: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_GATED: tl.constexpr,
    IS_SILU: tl.constexpr,  # of gates; else the Gaussian error unit by tanh
    OUTPUTS: tl.constexpr,
    DEPTH: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """Multiply the row by some outputs, in float32."""
    outs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_out = outs < N
    places = tl.arange(0, DEPTH)
    rows = weights + outs.to(tl.int64)[:, None] * K
    above = rows + N * K
    numbers = _load_tile(rows, places, is_out, K, N, OUTPUTS, DEPTH)
    values = numbers
    if IS_GATED:
        values = _load_tile(above, places, is_out, K, N, OUTPUTS, DEPTH)
    wait(OVERLAPS)
    sums = tl.zeros((OUTPUTS, DEPTH), tl.float32)
    sums_of_values = sums
    for start in range(0, K, DEPTH):
        at = start + places
        own = tl.load(inputs + at, mask=at < K, other=0.0).to(tl.float32)[None, :]
        sums += numbers.to(tl.float32) * own
        numbers = _load_tile(rows, at + DEPTH, is_out, K, N, OUTPUTS, DEPTH)
        if IS_GATED:
            sums_of_values += values.to(tl.float32) * own
            values = _load_tile(above, at + DEPTH, is_out, K, N, OUTPUTS, DEPTH)
    found = tl.sum(sums, axis=1)
    if HAS_BIAS:
        found += tl.load(bias + outs, mask=is_out, other=0.0).to(tl.float32)
    if IS_GATED:
        found = activate(found, IS_SILU) * tl.sum(sums_of_values, axis=1)
    tl.store(outputs + outs, found.to(outputs.dtype.element_ty), mask=is_out)


@triton.jit
def _load_tile(
    rows, at, is_out, K: tl.constexpr, N: tl.constexpr, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr
):
    """Load (OUTPUTS, DEPTH) numbers; what lies behind K or N is 0."""
    if N % OUTPUTS == 0:
        found = tl.load(rows + at[None, :], mask=(at < K)[None, :], other=0.0)
    else:
        found = tl.load(rows + at[None, :], mask=is_out[:, None] & (at < K)[None, :], other=0.0)
    return found
