"""What lies between the products of a layer, each in one launch.

Legend: T rows, E numbers of a row, I inner size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from exo_engine.kernels.triton.launch import Launch, Target, tile_of
from exo_engine.kernels.triton.pointwise_kernels import gate_rows, normalise_rows

_OF_A_WARP = 512
"""Numbers of a row: reads of 16 bytes, two of each thread of NVIDIA's, one of AMD's."""
_GATED = 1024
"""Numbers of a program's gates."""


def normalise(states: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Return states (..., E), each row divided by its root mean square, times weight (E,) if there is one."""
    rows = states.reshape(-1, states.shape[-1]).contiguous()
    outputs = torch.empty_like(rows)
    plan_norm(rows, None, weight, eps, outputs, Target.of(rows.device)).run()
    return outputs.view(states.shape)


def add_and_normalise(
    states: Tensor, updates: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return states + updates, both (T, E), and that normalised; memory of `states` may be overwritten."""
    states = states.contiguous()
    outputs = torch.empty_like(states)
    target = Target.of(states.device)
    plan_norm(states, updates.contiguous(), weight, eps, outputs, target).run()
    return states, outputs


def gate(merged: Tensor, *, is_silu: bool) -> Tensor:
    """Return the first half of `merged` (T, 2 I), activated by SiLU or GELU (tanh), times the second: (T, I)."""
    merged = merged.contiguous()
    outputs = merged.new_empty(len(merged), merged.shape[1] // 2)
    plan_gate(merged, outputs, Target.of(merged.device), is_silu=is_silu).run()
    return outputs


def plan_norm(
    rows: Tensor,
    updates: Tensor | None,
    weight: Tensor | None,
    eps: float,
    outputs: Tensor,
    target: Target,
) -> Launch:
    """Return what adds updates to rows (T, E), in place, and normalises them."""
    size = rows.shape[1]
    arguments = {
        "states": rows,
        "updates": rows if updates is None else updates,
        "weight": rows if weight is None else weight,
        "outputs": outputs,
        "eps": eps,
        "HAS_UPDATES": updates is not None,
        "HAS_WEIGHT": weight is not None,
        "E": size,
        "TILE": tile_of(size, 16),
        "OVERLAPS": target.overlaps,
    }
    warps = min(8, max(1, tile_of(size) // _OF_A_WARP))
    return Launch(normalise_rows, (len(rows),), arguments, num_warps=warps)


def plan_gate(merged: Tensor, outputs: Tensor, target: Target, *, is_silu: bool) -> Launch:
    """Return what gates rows; see `gate`."""
    inner = outputs.shape[1]
    tile = min(tile_of(inner, 16), _GATED)
    arguments = {
        "merged": merged,
        "outputs": outputs,
        "INNER": inner,
        "TILE": tile,
        "IS_SILU": is_silu,
        "OVERLAPS": target.overlaps,
    }
    return Launch(gate_rows, (len(merged), -(-inner // tile)), arguments, num_warps=2)
