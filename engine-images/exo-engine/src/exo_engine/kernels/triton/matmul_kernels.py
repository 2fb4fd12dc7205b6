"""Products with matrices of plain numbers, INT8 or FP8, one of them or many in one launch; and inputs made FP8.

Legend: T rows of inputs, K inputs, N outputs, X matrices, P parts that a sum over K is split into, B inputs
that share a scale.
"""

from __future__ import annotations

import triton
import triton.language as tl

from exo_engine.kernels.triton.numbers import (
    LARGEST_E4M3,
    LEAST_SCALE,
    decode_e4m3,
    encode_e4m3,
    multiply,
)
from exo_engine.kernels.triton.overlap_kernels import wait
from exo_engine.kernels.triton.tile_kernels import find_tile


@triton.jit
def _sum_part(
    part,  # which
    of_weights,  # (OUTPUTS, 1): where rows of weights begin
    of_inputs,  # (ROWS, 1): where rows of inputs begin
    factors,  # as in `multiply_rows`
    scales,  # the same, of this program's matrix
    outs,  # (OUTPUTS,)
    rows,  # (ROWS,)
    is_out,  # (OUTPUTS,)
    is_row,  # (ROWS,)
    steps_of_part,
    K: tl.constexpr,
    N: tl.constexpr,
    STORED: tl.constexpr,
    HAS_FACTORS: tl.constexpr,
    DEPTH: tl.constexpr,
    HAS_E4M3: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
):
    """Return (OUTPUTS, ROWS) float32: the products of one part of the inputs, added up tile after tile."""
    steps: tl.constexpr = (K + DEPTH - 1) // DEPTH
    dtype: tl.constexpr = of_inputs.dtype.element_ty
    places = tl.arange(0, DEPTH)
    zeros = tl.zeros((outs.shape[0], rows.shape[0]), tl.float32)
    sums = zeros
    first = part * steps_of_part
    for step in range(first, tl.minimum(first + steps_of_part, steps)):
        at = step * DEPTH + places
        is_place = (at < K)[None, :]
        numbers = tl.load(of_weights + at[None, :], mask=is_out[:, None] & is_place, other=0.0)
        own = tl.load(of_inputs + at[None, :], mask=is_row[:, None] & is_place, other=0.0)
        # Some tensor cores add FP8 up with few digits, so they add up one tile only.
        if HAS_FACTORS:
            sums += multiply(numbers, tl.trans(own), zeros, IS_INTERPRETED)
        elif STORED == "e4m3":
            whole = decode_e4m3(numbers, dtype, HAS_E4M3)
            found = multiply(whole, tl.trans(own), zeros, IS_INTERPRETED)
            scale = tl.load(scales + step * N + outs, mask=is_out, other=0.0)
            sums += found * scale[:, None]
        elif STORED == "int8":
            whole = numbers.to(tl.float32).to(dtype)
            sums = multiply(whole, tl.trans(own), sums, IS_INTERPRETED)
        else:
            sums = multiply(numbers, tl.trans(own), sums, IS_INTERPRETED)
    if HAS_FACTORS or STORED == "int8":
        sums = sums * tl.load(scales + outs, mask=is_out, other=0.0).to(tl.float32)[:, None]
    if HAS_FACTORS:
        sums = sums * tl.load(factors + rows, mask=is_row, other=0.0)[None, :]
    return sums


@triton.jit(do_not_specialize=["num_rows", "num_matrices", "steps_of_part", "num_parts"])
def multiply_rows(
    inputs,  # (T, K), rows of `input_stride`
    factors,  # (T,) float32: the scale of each row, where inputs are FP8
    weights,  # (N, K) of the first matrix
    scales,  # (K / B, N) of the first matrix, where it is FP8; (N,) where it is INT8, or inputs are FP8, too
    offsets,  # (2, X) int64: how many numbers and scales behind the first ones each matrix's are
    starts,  # (X + 1,) int32: the rows of each matrix
    bias,  # (N,)
    outputs,  # (T, N), or (P, T, N) float32
    num_rows,  # T
    num_matrices,  # X
    steps_of_part,
    num_parts,  # P, read where a program adds all of them up
    input_stride,
    K: tl.constexpr,
    N: tl.constexpr,
    STORED: tl.constexpr,  # "plain", "int8" or "e4m3", whose B is DEPTH unless inputs are e4m3
    HAS_FACTORS: tl.constexpr,  # whether inputs are e4m3
    HAS_BIAS: tl.constexpr,
    IS_GROUPED: tl.constexpr,  # False: all rows by the first matrix
    ADDS_PARTS: tl.constexpr,  # as `add_parts` does, the first one first; False: a program has one
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    HAS_E4M3: tl.constexpr,
    OVERLAPS: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
):
    """Multiply some rows by some outputs, over one part of the inputs or over all, one after the other."""
    wait(OVERLAPS)
    part = tl.program_id(2)
    if IS_GROUPED:
        index = tl.program_id(0)
        matrix, first_row = find_tile(starts, index, index * 0, num_matrices, ROWS)
        first_row += tl.load(starts + matrix)
        end_row = tl.load(starts + matrix + 1)
        weights += tl.multiple_of(tl.load(offsets + matrix), 16)
        scales += tl.load(offsets + num_matrices + matrix)
    else:
        first_row = tl.program_id(0) * ROWS
        end_row = num_rows
    if first_row < end_row:
        outs = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
        rows = first_row + tl.arange(0, ROWS)
        is_out, is_row = outs < N, rows < end_row
        of_weights = weights + outs.to(tl.int64)[:, None] * K
        of_inputs = inputs + rows.to(tl.int64)[:, None] * input_stride
        if ADDS_PARTS:
            sums = tl.zeros((OUTPUTS, ROWS), tl.float32)
            for each in range(num_parts):
                sums += _sum_part(
                    each, of_weights, of_inputs, factors, scales, outs, rows, is_out, is_row,
                    steps_of_part, K, N, STORED, HAS_FACTORS, DEPTH, HAS_E4M3, IS_INTERPRETED,
                )  # fmt: skip
        else:
            sums = _sum_part(
                part, of_weights, of_inputs, factors, scales, outs, rows, is_out, is_row,
                steps_of_part, K, N, STORED, HAS_FACTORS, DEPTH, HAS_E4M3, IS_INTERPRETED,
            )  # fmt: skip
        if HAS_BIAS:
            sums += tl.load(bias + outs, mask=is_out, other=0.0).to(tl.float32)[:, None]
        is_wanted = is_row[:, None] & is_out[None, :]
        if IS_GROUPED:
            place = rows.to(tl.int64)[:, None] * N + outs[None, :]
        else:  # 32 bits within a tile: on 10.0 registers do not last for 64 of each number of a part
            outputs += (part.to(tl.int64) * num_rows + first_row) * N
            place = tl.arange(0, ROWS)[:, None] * N + outs[None, :]
        tl.store(outputs + place, tl.trans(sums).to(outputs.dtype.element_ty), mask=is_wanted)


@triton.jit
def encode_rows(
    inputs,  # (T, K), rows of `input_stride`
    codes,  # (T, K) uint8
    factors,  # (T,) float32
    input_stride,
    K: tl.constexpr,
    TILE: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """Make one row e4m3, with the scale that its largest number wants."""
    wait(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, TILE)
    most = tl.zeros((TILE,), tl.float32)
    for start in range(0, K, TILE):
        at = start + places
        numbers = tl.load(inputs + row * input_stride + at, mask=at < K, other=0.0)
        most = tl.maximum(most, tl.abs(numbers.to(tl.float32)))
    largest = tl.maximum(tl.max(most, axis=0), LEAST_SCALE) + tl.zeros((1,), tl.float32)
    factor = tl.div_rn(largest, tl.full((1,), LARGEST_E4M3, tl.float32))
    for start in range(0, K, TILE):
        at = start + places
        numbers = tl.load(inputs + row * input_stride + at, mask=at < K, other=0.0).to(tl.float32)
        scaled = tl.div_rn(numbers, factor + tl.zeros((TILE,), tl.float32))
        tl.store(codes + row * K + at, encode_e4m3(scaled), mask=at < K)
    tl.store(factors + row + tl.arange(0, 1), factor)
