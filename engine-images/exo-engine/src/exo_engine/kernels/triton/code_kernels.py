"""Products with 4-bit codes of one matrix, or of many in one launch (`kernels/quantized.py`, order `halves`).

Legend: T rows of inputs, K inputs, N outputs, X matrices, G groups of inputs, P parts that a sum over K is split into.
A block is 64 outputs of one group: their scales (float16), their zeros where there are any (a byte each),
then for each output GROUP / 2 bytes, whose lower halves are the group's first inputs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from exo_engine.kernels.triton.numbers import multiply
from exo_engine.kernels.triton.overlap_kernels import wait
from exo_engine.kernels.triton.tile_kernels import find_tile

_BLOCK = tl.constexpr(64)
_MIDDLE = tl.constexpr(8)
# bfloat16 128 and float16 1024, whose last bits count ones.
_BFLOAT16_ONES = tl.constexpr(0x4300)
_FLOAT16_ONES = tl.constexpr(0x6400)


@triton.jit
def _numbers_of(codes, zeros, dtype: tl.constexpr, is_interpreted: tl.constexpr):
    """Turn codes of 4 bits less their zeros into numbers of `dtype`, which has all of them exactly."""
    if is_interpreted or dtype == tl.float32:
        numbers = (codes.to(tl.float32) - zeros.to(tl.float32)).to(dtype)
    else:
        ones: tl.constexpr = _BFLOAT16_ONES if dtype == tl.bfloat16 else _FLOAT16_ONES
        numbers = (codes.to(tl.uint16) | ones).to(dtype, bitcast=True)
        numbers -= (zeros.to(tl.uint16) | ones).to(dtype, bitcast=True)
    return numbers


@triton.jit
def _zeros_of(block, rows, HAS_ZEROS: tl.constexpr, is_row):
    """Load the zeros of rows: (rows, 1) uint8."""
    zeros = tl.full((rows.shape[0],), _MIDDLE, tl.uint8)
    if HAS_ZEROS:
        zeros = tl.load(block + rows % _BLOCK + 2 * _BLOCK, mask=is_row, other=0)
    return zeros[:, None]


@triton.jit
def _sum_groups(
    part,  # which
    packed,  # as in `multiply_codes`, of this program's matrix; so are scales and factor
    scales,
    factor,
    blocks,  # (OUTPUTS,): where the blocks of outputs begin
    of_inputs,  # (ROWS, 1): where rows of inputs begin
    outs,  # (OUTPUTS,)
    is_out,  # (OUTPUTS,)
    is_row,  # (ROWS,)
    groups_of_part,
    last,  # the group before which a sum ends
    K: tl.constexpr,
    GROUP: tl.constexpr,
    BYTES: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
):
    """Return (OUTPUTS, ROWS) float32: the products of one part of the groups, added up one after the other."""
    half: tl.constexpr = GROUP // 2
    head: tl.constexpr = BYTES - _BLOCK * half
    dtype: tl.constexpr = of_inputs.dtype.element_ty
    places = tl.arange(0, half)
    sums = tl.zeros((outs.shape[0], is_row.shape[0]), tl.float32)
    first = part * groups_of_part
    for group in range(first, tl.minimum(first + groups_of_part, last)):
        block = packed + blocks + group * BYTES
        codes = tl.load(
            block[:, None] + ((outs % _BLOCK) * half + head)[:, None] + places[None, :],
            mask=is_out[:, None],
            other=0,
        )
        zeros = _zeros_of(block, outs, HAS_ZEROS, is_out)
        at = group * GROUP + places
        lower = tl.load(
            of_inputs + at[None, :], mask=is_row[:, None] & (at < K)[None, :], other=0.0
        )
        upper = tl.load(
            of_inputs + (at + half)[None, :],
            mask=is_row[:, None] & (at + half < K)[None, :],
            other=0.0,
        )
        found = tl.zeros(sums.shape, tl.float32)
        found = multiply(
            _numbers_of(codes & 15, zeros, dtype, IS_INTERPRETED),
            tl.trans(lower),
            found,
            IS_INTERPRETED,
        )
        found = multiply(
            _numbers_of(codes >> 4, zeros, dtype, IS_INTERPRETED),
            tl.trans(upper),
            found,
            IS_INTERPRETED,
        )
        scale = tl.load(
            scales + (blocks + group * BYTES) // 2 + outs % _BLOCK, mask=is_out, other=0.0
        )
        sums += found * (scale.to(tl.float32) * factor)[:, None]
    return sums


@triton.jit(do_not_specialize=["num_rows", "num_matrices", "groups_of_part", "num_parts"])
def multiply_codes(
    inputs,  # (T, K), rows of `input_stride`
    packed,  # (N / 64, G, BYTES) uint8 of the first matrix
    scales,  # the same bytes as float16
    offsets,  # (X,) int64: how many bytes behind the first one's each matrix is
    factors,  # (X,) float32: of all scales of each
    starts,  # (X + 1,) int32: the rows of each
    bias,  # (N,), read where a program has whole sums
    outputs,  # (T, N), or (P, T, N) float32
    num_rows,  # T
    num_matrices,  # X
    groups_of_part,
    num_parts,  # P, read where a program adds all of them up
    factor,  # of all scales of the first matrix
    input_stride,
    K: tl.constexpr,
    N: tl.constexpr,
    GROUP: tl.constexpr,
    BYTES: tl.constexpr,  # of a block
    HAS_ZEROS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_GROUPED: tl.constexpr,  # False: all rows by the first matrix
    ADDS_PARTS: tl.constexpr,  # as `add_parts` does, the first one first; False: a program has one
    OUTPUTS: tl.constexpr,  # of a program
    ROWS: tl.constexpr,  # of a program
    IS_INTERPRETED: tl.constexpr,
):
    """Multiply some rows by some outputs, over one part of the groups or over all, one after the other."""
    groups: tl.constexpr = (K + GROUP - 1) // GROUP
    part = tl.program_id(2)
    if IS_GROUPED:
        index = tl.program_id(1)
        matrix, first_row = find_tile(starts, index, index * 0, num_matrices, ROWS)
        first_row += tl.load(starts + matrix)
        end_row = tl.load(starts + matrix + 1)
        offset = tl.multiple_of(tl.load(offsets + matrix), 16)
        packed += offset
        scales += offset // 2
        factor = tl.load(factors + matrix)
        # A program without a row has nothing to read.
        last = tl.where(first_row < end_row, groups, 0)
    else:
        first_row = tl.program_id(1) * ROWS
        end_row = num_rows
        last = groups
    outs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    rows = first_row + tl.arange(0, ROWS)
    is_out, is_row = outs < N, rows < end_row
    blocks = (outs // _BLOCK).to(tl.int64) * (groups * BYTES)
    of_inputs = inputs + rows.to(tl.int64)[:, None] * input_stride
    if ADDS_PARTS:
        sums = tl.zeros((OUTPUTS, ROWS), tl.float32)
        for each in range(num_parts):
            sums += _sum_groups(
                each, packed, scales, factor, blocks, of_inputs, outs, is_out, is_row,
                groups_of_part, last, K, GROUP, BYTES, HAS_ZEROS, IS_INTERPRETED,
            )  # fmt: skip
    else:
        sums = _sum_groups(
            part, packed, scales, factor, blocks, of_inputs, outs, is_out, is_row,
            groups_of_part, last, K, GROUP, BYTES, HAS_ZEROS, IS_INTERPRETED,
        )  # fmt: skip
    if HAS_BIAS:
        sums += tl.load(bias + outs, mask=is_out, other=0.0).to(tl.float32)[:, None]
    place = (part.to(tl.int64) * num_rows + rows)[:, None] * N + outs[None, :]
    is_place = is_row[:, None] & is_out[None, :]
    tl.store(outputs + place, tl.trans(sums).to(outputs.dtype.element_ty), mask=is_place)


@triton.jit(do_not_specialize=["count", "parts"])
def add_parts(
    sums,  # (P, count) float32
    bias,  # (N,)
    outputs,  # (count,)
    count,  # T N
    parts,  # P
    N: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    TILE: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """Add parts up, the first one first, then the bias."""
    wait(OVERLAPS)
    places = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    is_place = places < count
    total = tl.zeros((TILE,), tl.float32)
    for part in range(parts):
        total += tl.load(sums + places + part * count, mask=is_place, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias + places % N, mask=is_place, other=0.0).to(tl.float32)
    tl.store(outputs + places, total.to(outputs.dtype.element_ty), mask=is_place)


@triton.jit
def write_numbers(
    packed,  # as in `multiply_codes`
    scales,
    outputs,  # (n, K): those of the blocks from `packed` on
    factor,
    K: tl.constexpr,
    N: tl.constexpr,  # n
    GROUP: tl.constexpr,
    BYTES: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
):
    """Turn one block back into numbers."""
    groups: tl.constexpr = (K + GROUP - 1) // GROUP
    half: tl.constexpr = GROUP // 2
    head: tl.constexpr = BYTES - _BLOCK * half
    group, rows = tl.program_id(1), tl.arange(0, _BLOCK)
    start = (tl.program_id(0).to(tl.int64) * groups + group) * BYTES
    places = tl.arange(0, half)
    outs = tl.program_id(0) * _BLOCK + rows
    codes = tl.load(packed + start + head + (rows * half)[:, None] + places[None, :])
    zeros = _zeros_of(packed + start, rows, HAS_ZEROS, rows < _BLOCK).to(tl.float32)
    scale = tl.load(scales + start // 2 + rows).to(tl.float32)[:, None] * factor
    at = group * GROUP + places
    to = outputs + outs.to(tl.int64)[:, None] * K + at[None, :]
    is_out = (outs < N)[:, None]
    lower = ((codes & 15).to(tl.float32) - zeros) * scale
    upper = ((codes >> 4).to(tl.float32) - zeros) * scale
    tl.store(to, lower.to(outputs.dtype.element_ty), mask=is_out & (at < K)[None, :])
    tl.store(to + half, upper.to(outputs.dtype.element_ty), mask=is_out & (at + half < K)[None, :])
