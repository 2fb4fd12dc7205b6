"""Products in Triton: by one matrix or by many in one launch, of plain numbers, INT8 or FP8.

Legend: T rows of inputs, K inputs, N outputs, X matrices, P parts of a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from exo_engine.kernels.triton import row_kernels
from exo_engine.kernels.triton.codes import (
    FIXED_PROGRAMS,
    is_full,
    plan_adding,
    room_for_parts,
)
from exo_engine.kernels.triton.launch import IS_INTERPRETED, Launch, Target, tile_of
from exo_engine.kernels.triton.matmul_kernels import encode_rows, multiply_rows

BLOCK = 128
"""Inputs that share a scale where numbers are FP8."""
FIXED_ROWS = 128
"""Most rows of a tile of 16-bit numbers where results must not depend on how many there are; of bytes 64."""
_FIXED_ROWS_OF_FLOAT32 = 32
_MOST_TILE_ROWS = 64
_OUTPUTS = 128
_PROGRAMS, _LEAST_PART, _MOST_PARTS = 4, 512, 8
_SHORT_ROWS = 32
"""Rows of FP8 by FP8 up to which tiles are made for them, as timed on an H200."""
_SHORT_OUTPUTS, _SHORT_PROGRAMS = 64, 2
_ENCODED = 4096
_ROW_OUTPUTS, _ROW_DEPTH = 4, 1024
"""Of a program that multiplies one row: numbers of weights that are on their way at once."""


@dataclass(frozen=True, slots=True)
class Matrices:
    """Matrices (N, K) of one shape, wherever each lies."""

    first: Tensor
    """(N, K); see `plan_product`."""
    scales: Tensor | None
    offsets: Tensor
    """(2, X) int64: where numbers and scales of each are, counted from the first's."""
    held: tuple[Tensor, ...]
    """What the offsets point to."""
    is_fixed: bool = False
    """See `plan_product`."""

    @classmethod
    def of(
        cls, numbers: Sequence[Tensor], scales: Sequence[Tensor] = (), *, is_fixed: bool = False
    ) -> Matrices:
        """Return matrices to be multiplied in one launch; their memory is not moved."""
        kinds = [list(numbers), list(scales) or list(numbers)]
        offsets = [[_distance(each, kind[0]) for each in kind] for kind in kinds]
        device = numbers[0].device
        table = torch.tensor(offsets, dtype=torch.int64).to(device)
        first = scales[0] if scales else None
        return cls(numbers[0], first, table, (*numbers, *scales), is_fixed)

    def multiply(self, inputs: Tensor, starts: Tensor) -> Tensor:
        """Return (T, N): each row of inputs (T, K) times its matrix transposed.

        Args:
            inputs: rows of the first matrix, then of the second one.
            starts: (X + 1,) int32: where each one's rows begin.
        """
        outputs = inputs.new_empty(len(inputs), self.first.shape[0])
        inputs, factors = _prepare(inputs, self.first)
        target = Target.of(inputs.device)
        plan_grouped(
            self, inputs, starts, outputs, target, factors=factors, is_fixed=self.is_fixed
        ).run()
        return outputs


def multiply(
    weights: Tensor,
    scales: Tensor | None,
    inputs: Tensor,
    bias: Tensor | None = None,
    *,
    is_fixed: bool = False,
) -> Tensor:
    """Return inputs (T, K) times weights (N, K) transposed, plus bias (N,): (T, N); see `plan_product`."""
    outputs = inputs.new_empty(len(inputs), len(weights))
    inputs, factors = _prepare(inputs, weights)
    target = Target.of(inputs.device)
    for launch in plan_product(
        weights, scales, inputs, bias, outputs, target, factors=factors, is_fixed=is_fixed
    ):
        launch.run()
    return outputs


def plan_product(
    weights: Tensor,
    scales: Tensor | None,
    inputs: Tensor,
    bias: Tensor | None,
    outputs: Tensor,
    target: Target,
    *,
    factors: Tensor | None = None,
    is_fixed: bool = False,
) -> list[Launch]:
    """Return what multiplies rows by one matrix.

    Args:
        weights: (N, K), contiguous: plain numbers; int8; uint8, which are e4m3 in blocks; or float8_e4m3fn, by
            which inputs of e4m3 are multiplied.
        scales: (K / 128, N) float32 of blocks, (N,) or (1, N) of other numbers of a byte.
        inputs: (T, K).
        bias: (N,) or None.
        outputs: (T, N), contiguous.
        target: the GPU.
        factors: (T, 1) float32: the scale of each row of inputs, where these are e4m3.
        is_fixed: a row's result has the same bits whatever other rows there are: tiles of one size, and sums cut
            in places that depend on the matrix and the GPU. Where there are rows for every processor, a program
            adds all parts up, in the order in which it is done for few rows afterwards.
    """
    num_rows, num_outputs = len(inputs), len(weights)
    rows = _rows_of_tile(num_rows, weights, target, is_fixed=is_fixed)
    arguments, steps = _arguments(weights, scales, inputs, factors, rows)
    if is_short := _is_short(num_rows, weights, is_fixed=is_fixed):
        arguments["OUTPUTS"] = _SHORT_OUTPUTS
    tiles = -(-num_rows // rows), -(-num_outputs // (_SHORT_OUTPUTS if is_short else _OUTPUTS))
    of_part = _steps_of_part(arguments, steps, tiles, target, is_fixed=is_fixed)
    num_parts = -(-steps // of_part)
    num_programs = 1 if is_fixed and is_full(tiles, target) else num_parts
    sums = room_for_parts(num_programs, outputs)
    arguments |= {
        "bias": inputs if bias is None else bias,
        "outputs": sums,
        "steps_of_part": of_part,
        "num_parts": num_parts,
        "HAS_BIAS": bias is not None and num_programs == 1,
        "ADDS_PARTS": num_programs < num_parts,
        "HAS_E4M3": target.has_e4m3,
        "OVERLAPS": target.overlaps,
    }
    product = _launch((*tiles, num_programs), arguments, target, fuses=not is_fixed)
    return [product] if num_programs == 1 else [product, plan_adding(sums, bias, outputs, target)]


def multiply_row(
    weights: Tensor, inputs: Tensor, bias: Tensor | None = None, gates: str | None = None
) -> Tensor:
    """Return one row (1, K) times weights (N, K) transposed: (1, N), or (1, N / 2); see `plan_row`."""
    inputs = inputs.contiguous()
    outputs = inputs.new_empty(1, len(weights) // (1 if gates is None else 2))
    plan_row(weights, inputs, bias, outputs, Target.of(inputs.device), gates=gates).run()
    return outputs


def plan_row(
    weights: Tensor,
    inputs: Tensor,
    bias: Tensor | None,
    outputs: Tensor,
    target: Target,
    *,
    gates: str | None = None,
) -> Launch:
    """Return what multiplies one row by one matrix.

    Args:
        weights: (N, K), contiguous, of any plain numbers.
        inputs: (1, K), contiguous.
        bias: (N,) or None.
        outputs: (1, N); with gates (1, N / 2).
        target: the GPU.
        gates: `silu` or `gelu_tanh`: the first half of what comes out is activated so and multiplied by the second,
            and there is no bias; None: it is no gate.
    """
    num_outputs, num_inputs = outputs.shape[1], inputs.shape[1]
    tile = _ROW_OUTPUTS
    if gates is not None or num_outputs < _ROW_OUTPUTS * _PROGRAMS * target.num_processors:
        tile //= 2
    arguments = {
        "inputs": inputs,
        "weights": weights,
        "bias": inputs if bias is None else bias,
        "outputs": outputs,
        "K": num_inputs,
        "N": num_outputs,
        "HAS_BIAS": bias is not None,
        "IS_GATED": gates is not None,
        "IS_SILU": gates == "silu",
        "OUTPUTS": tile,
        "DEPTH": min(tile_of(num_inputs, 16), _ROW_DEPTH),
        "OVERLAPS": target.overlaps,
    }
    return Launch(row_kernels.multiply_row, (-(-num_outputs // tile),), arguments)


def plan_grouped(
    matrices: Matrices,
    inputs: Tensor,
    starts: Tensor,
    outputs: Tensor,
    target: Target,
    *,
    factors: Tensor | None = None,
    is_fixed: bool = False,
) -> Launch:
    """Return the one launch that multiplies each row of inputs (T, K) by its own matrix: outputs (T, N)."""
    num_matrices = len(starts) - 1
    each = -(-len(inputs) // num_matrices)
    rows = _rows_of_tile(each, matrices.first, target, is_fixed=is_fixed)
    tiles_of_outputs = -(-outputs.shape[1] // _OUTPUTS)
    arguments, steps = _arguments(matrices.first, matrices.scales, inputs, factors, rows)
    of_part = steps
    if is_fixed:  # the bits of one matrix alone
        of_part = _steps_of_part(arguments, steps, (1, tiles_of_outputs), target, is_fixed=True)
    arguments |= {
        "offsets": matrices.offsets,
        "starts": starts,
        "outputs": outputs,
        "num_matrices": num_matrices,
        "steps_of_part": of_part,
        "num_parts": -(-steps // of_part),
        "IS_GROUPED": True,
        "ADDS_PARTS": of_part < steps,
        "HAS_E4M3": target.has_e4m3,
        "OVERLAPS": target.overlaps,
    }
    # See `find_tile`: every matrix may have a tile that is not full.
    tiles = len(inputs) // rows + num_matrices if len(inputs) else 0
    grid = (tiles, tiles_of_outputs, 1)
    return _launch(grid, arguments, target, fuses=not is_fixed)


def encode(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return inputs (T, K) as e4m3 (T, K) and the scale of each row (T, 1) float32."""
    codes = torch.empty(inputs.shape, dtype=torch.uint8, device=inputs.device)
    factors = torch.empty(len(inputs), 1, dtype=torch.float32, device=inputs.device)
    plan_encoding(inputs, codes, factors, Target.of(inputs.device)).run()
    return codes.view(torch.float8_e4m3fn), factors


def plan_encoding(inputs: Tensor, codes: Tensor, factors: Tensor, target: Target) -> Launch:
    """Return what makes each row of inputs (T, K) e4m3: codes (T, K) uint8 and factors (T, 1) float32."""
    arguments = {
        "inputs": inputs,
        "codes": codes,
        "factors": factors,
        "input_stride": inputs.stride(0),
        "K": inputs.shape[1],
        "TILE": min(tile_of(inputs.shape[1], 128), _ENCODED),
        "OVERLAPS": target.overlaps,
    }
    return Launch(encode_rows, (len(inputs),), arguments, num_warps=8)


def _prepare(inputs: Tensor, weights: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return inputs (T, K) as weights are multiplied with, and the scales of their rows if they have any."""
    inputs = inputs if inputs.stride(1) == 1 else inputs.contiguous()
    return encode(inputs) if weights.dtype == torch.float8_e4m3fn else (inputs, None)


def _is_short(num_rows: int, weights: Tensor, *, is_fixed: bool) -> bool:
    """Whether inputs and weights are FP8, and rows few."""
    return weights.dtype == torch.float8_e4m3fn and num_rows <= _SHORT_ROWS and not is_fixed


def _rows_of_tile(num_rows: int, weights: Tensor, target: Target, *, is_fixed: bool) -> int:
    # Fixed sums have 256 threads for them.
    most = _MOST_TILE_ROWS // (2 if _lacks_registers(weights, target) and not is_fixed else 1)
    if is_fixed and weights.element_size() == 2 and target.is_nvidia:
        return min(
            tile_of(num_rows, 16), FIXED_ROWS
        )  # of one instruction, which adds up inputs alike
    if is_fixed:  # float32 has no tensor cores, and takes twice the registers
        return {2: FIXED_ROWS, 4: _FIXED_ROWS_OF_FLOAT32}.get(weights.element_size(), most)
    return min(tile_of(num_rows, 16), most)


def _lacks_registers(weights: Tensor, target: Target) -> bool:
    """Whether FP8 becomes numbers in registers, of which 10.0 gives a program half as many."""
    return weights.dtype == torch.uint8 and target.is_nvidia and 100 <= target.capability < 120


def _steps_of_part(
    arguments: dict[str, object],
    steps: int,
    tiles: tuple[int, int],
    target: Target,
    *,
    is_fixed: bool,
) -> int:
    """Return how many tiles of inputs, `steps` in all, are one part of a sum.

    Args:
        arguments: of the kernel.
        steps: tiles of inputs.
        tiles: of rows and of outputs.
        target: the GPU.
        is_fixed: whatever the rows are.
    """
    depth = arguments["DEPTH"]
    assert isinstance(depth, int)
    programs = FIXED_PROGRAMS if is_fixed else _PROGRAMS
    if arguments["OUTPUTS"] == _SHORT_OUTPUTS:
        programs = _SHORT_PROGRAMS
    wanted = programs * target.num_processors
    parts = wanted // (tiles[1] if is_fixed else tiles[0] * tiles[1])
    return max(-(-steps // min(max(1, parts), _MOST_PARTS)), min(steps, _LEAST_PART // depth))


def _arguments(
    weights: Tensor, scales: Tensor | None, inputs: Tensor, factors: Tensor | None, rows: int
) -> tuple[dict[str, object], int]:
    """Return what both kinds of products have in common, and how many tiles of inputs there are."""
    is_e4m3 = weights.dtype in (torch.uint8, torch.float8_e4m3fn)
    depth = BLOCK if is_e4m3 else 32 if inputs.element_size() > 2 else 64
    assert inputs.stride(1) == 1, "inputs of a row follow one another"
    arguments = {
        "inputs": inputs,
        "factors": inputs if factors is None else factors,
        "weights": weights,
        "scales": inputs if scales is None else scales,
        "offsets": inputs,
        "starts": inputs,
        "bias": inputs,
        "num_rows": len(inputs),
        "num_matrices": 1,
        "num_parts": 1,
        "input_stride": inputs.stride(0),
        "K": weights.shape[1],
        "N": weights.shape[0],
        "STORED": "e4m3" if is_e4m3 else "int8" if weights.dtype == torch.int8 else "plain",
        "HAS_FACTORS": factors is not None,
        "HAS_BIAS": False,
        "IS_GROUPED": False,
        "ADDS_PARTS": False,
        "OUTPUTS": _OUTPUTS,
        "ROWS": rows,
        "DEPTH": depth,
        "IS_INTERPRETED": IS_INTERPRETED,
    }
    return arguments, -(-weights.shape[1] // depth)


def _launch(
    grid: tuple[int, ...], arguments: dict[str, object], target: Target, *, fuses: bool
) -> Launch:
    rows, weights = arguments["ROWS"], arguments["weights"]
    assert isinstance(rows, int)
    assert isinstance(weights, Tensor)
    # Bytes become numbers in registers.
    is_large = rows > _MOST_TILE_ROWS or (rows == 64 and weights.element_size() == 1)
    warps = 8 if is_large or weights.element_size() == 4 else 4
    is_tight = _lacks_registers(weights, target) and rows == _MOST_TILE_ROWS
    stages = 3 if target.is_nvidia and not is_tight else 2
    if arguments["OUTPUTS"] == _SHORT_OUTPUTS and target.is_nvidia and target.shared_bytes > 131072:
        stages = 4
    return Launch(multiply_rows, grid, arguments, num_warps=warps, num_stages=stages, fuses=fuses)


def _distance(tensor: Tensor, first: Tensor) -> int:
    """Return how many numbers behind those of `first` the numbers of `tensor` begin."""
    found, rest = divmod(tensor.data_ptr() - first.data_ptr(), first.element_size())
    assert rest == 0, "memory of matrices begins at whole numbers"
    return found
