"""Products whose bits for a row do not depend on the rows beside it, nor on how many there are.

Legend: T rows, H heads, K inputs, N outputs.
"""

from __future__ import annotations

from torch import Tensor

from exo_engine.kernels.triton import matmul
from exo_engine.kernels.triton.head_kernels import multiply_rows_of_heads
from exo_engine.kernels.triton.launch import IS_INTERPRETED, Launch, Target

HEAD_ROWS = 64
"""Rows of a head's tile."""
_HEAD_OUTPUTS = 128


def multiply(inputs: Tensor, weights: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return inputs (T, K) times weights (N, K) transposed, plus bias (N,): (T, N)."""
    return matmul.multiply(weights, None, inputs, bias, is_fixed=True)


def multiply_heads(inputs: Tensor, weights: Tensor) -> Tensor:
    """Return each head's inputs times its own matrix.

    Args:
        inputs: (T, H, K), any strides but of the last dimension.
        weights: (H, K, N), any strides.

    Returns:
        (T, H, N), contiguous.
    """
    outputs = inputs.new_empty(*inputs.shape[:2], weights.shape[2])
    plan_heads(inputs, weights, outputs, Target.of(inputs.device)).run()
    return outputs


def plan_heads(inputs: Tensor, weights: Tensor, outputs: Tensor, target: Target) -> Launch:
    """Return what multiplies heads; see `multiply_heads`."""
    assert inputs.stride(2) == 1, "inputs of a head follow one another"
    num_rows, num_heads, num_outputs = outputs.shape
    arguments = {
        "inputs": inputs,
        "weights": weights,
        "outputs": outputs,
        "num_rows": num_rows,
        "input_stride": inputs.stride(0),
        "INPUT_HEAD": inputs.stride(1),
        "WEIGHT_HEAD": weights.stride(0),
        "WEIGHT_INPUT": weights.stride(1),
        "WEIGHT_OUTPUT": weights.stride(2),
        "HEADS": num_heads,
        "K": inputs.shape[2],
        "N": num_outputs,
        "ROWS": HEAD_ROWS,
        "OUTPUTS": _HEAD_OUTPUTS,
        "DEPTH": 32 if inputs.element_size() > 2 else 64,
        "IS_INTERPRETED": IS_INTERPRETED,
    }
    grid = (-(-num_rows // HEAD_ROWS), -(-num_outputs // _HEAD_OUTPUTS), num_heads)
    stages = 3 if target.is_nvidia else 2
    # On 10.0 Triton 3.6 gives 128 threads too few registers, and moves some to memory.
    warps = 8 if target.is_nvidia and target.capability // 10 == 10 else 4
    return Launch(multiply_rows_of_heads, grid, arguments, warps, stages, fuses=False)
