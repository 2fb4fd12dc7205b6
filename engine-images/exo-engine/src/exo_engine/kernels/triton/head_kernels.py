"""Products of rows whose heads have a matrix each, as latent attention puts around itself, in tiles of one size.

Legend: T rows, H heads, K inputs, N outputs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from exo_engine.kernels.triton.numbers import multiply


@triton.jit(do_not_specialize=["num_rows"])
def multiply_rows_of_heads(
    inputs,  # (T, H, K), rows of `input_stride`, heads of INPUT_HEAD
    weights,  # (H, K, N)
    outputs,  # (T, H, N)
    num_rows,  # T
    input_stride,
    INPUT_HEAD: tl.constexpr,
    WEIGHT_HEAD: tl.constexpr,
    WEIGHT_INPUT: tl.constexpr,
    WEIGHT_OUTPUT: tl.constexpr,
    HEADS: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    DEPTH: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
):
    """Multiply some rows of one head by some outputs, all inputs one tile after the other."""
    head = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    outs = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_out, is_row = (outs < N)[None, :], (rows < num_rows)[:, None]
    places = tl.arange(0, DEPTH)
    places_of_rows = rows.to(tl.int64)[:, None]
    of_inputs = inputs + places_of_rows * input_stride + head * INPUT_HEAD
    of_weights = weights + head * WEIGHT_HEAD + outs[None, :] * WEIGHT_OUTPUT
    sums = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for start in range(0, K, DEPTH):
        at = start + places
        own = tl.load(of_inputs + at[None, :], mask=is_row & (at < K)[None, :], other=0.0)
        numbers = tl.load(
            of_weights + at[:, None] * WEIGHT_INPUT, mask=(at < K)[:, None] & is_out, other=0.0
        )
        sums = multiply(own, numbers, sums, IS_INTERPRETED)
    place = (places_of_rows * HEADS + head) * N + outs[None, :]
    tl.store(outputs + place, sums.to(outputs.dtype.element_ty), mask=is_row & is_out)
