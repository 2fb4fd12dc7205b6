"""Products and norms whose bits for a row do not depend on the rows beside it, nor on how many there are.

Legend: T rows, K inputs, N outputs, E numbers of a row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from exo_engine.kernels.triton.launch import Launch, Target, tile_of
from exo_engine.kernels.triton.matmul import plan_product
from exo_engine.kernels.triton.norm_kernels import normalise_rows

_WIDE = 4096


def multiply(
    inputs: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    *,
    scales: Tensor | None = None,
) -> Tensor:
    """Return inputs (T, K) times weights (N, K) transposed, plus bias (N,): (T, N); see `plan_product`."""
    outputs = inputs.new_empty(len(inputs), len(weights))
    inputs = inputs if inputs.stride(1) == 1 else inputs.contiguous()
    target = Target.of(inputs.device)
    for launch in plan_product(weights, scales, inputs, bias, outputs, target, is_fixed=True):
        launch.run()
    return outputs


def normalise(states: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return states (..., E), each row divided by its root mean square and multiplied by weight (E,)."""
    rows = states.reshape(-1, states.shape[-1]).contiguous()
    outputs = torch.empty_like(rows)
    plan_norm(rows, weight, eps, outputs).run()
    return outputs.view(states.shape)


def plan_norm(rows: Tensor, weight: Tensor, eps: float, outputs: Tensor) -> Launch:
    """Return what normalises rows (T, E)."""
    size = rows.shape[1]
    arguments = {
        "states": rows,
        "weight": weight,
        "outputs": outputs,
        "eps": eps,
        "E": size,
        "TILE": tile_of(size, 16),
    }
    return Launch(normalise_rows, (len(rows),), arguments, num_warps=8 if size > _WIDE else 4)
