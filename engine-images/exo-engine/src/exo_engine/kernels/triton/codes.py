"""Products with a matrix of 4-bit codes on a GPU: split sums for few rows, numbers and a plain product for many.

Legend: T rows of inputs, K inputs, N outputs, X matrices, P parts of a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from exo_engine.kernels.quantized import QuantizedMatrix
from exo_engine.kernels.triton.code_kernels import add_parts, multiply_codes, write_numbers
from exo_engine.kernels.triton.launch import IS_INTERPRETED, Launch, Target, tile_of

MOST_ROWS = 128
"""Rows up to which codes are multiplied as they are. Writing numbers moves nine times the bytes of the codes;
with more rows what that costs is less than what the plain product saves."""
_MOST_TILE_ROWS = 64
# Of a program, by group: enough for each thread to load 16 bytes.
_OUTPUTS = {32: 128, 64: 64, 128: 64}
# Programs that a processor is to have, so that enough bytes are on their way.
_PROGRAMS = 4
_LEAST_PART, _MOST_PARTS = 512, 8
FIXED_PROGRAMS = 1
"""The same where a sum is cut in places that no rows change: their tiles are the largest there are."""
# Numbers of a program's inputs per group, up to which four groups are on their way at a time.
_MOST_STAGED = 4096
_TILE = 1024
# Weights that are turned into numbers at a time.
_SLAB_WEIGHTS = 2**26


@dataclass(frozen=True, slots=True)
class CodedMatrices:
    """Matrices of one shape and form, wherever each lies."""

    first: QuantizedMatrix
    offsets: Tensor
    """(X,) int64: how many bytes behind the first one's each one's are."""
    factors: Tensor
    """(X,) float32, of all scales of each."""
    held: tuple[Tensor, ...] = ()
    """What the offsets point to."""
    is_fixed: bool = False
    """See `matmul.plan_product`."""

    @classmethod
    def of(cls, matrices: Sequence[QuantizedMatrix], *, is_fixed: bool = False) -> CodedMatrices:
        """Return matrices to be multiplied in one launch; their memory is not moved."""
        first, held = matrices[0], tuple(each.storage for each in matrices)
        offsets = torch.tensor([each.data_ptr() - held[0].data_ptr() for each in held])
        assert not offsets.remainder(16).any(), "memory of matrices begins at multiples of 16 bytes"
        factors = torch.tensor([each.scale for each in matrices], dtype=torch.float32)
        device = held[0].device
        return cls(first, offsets.to(device), factors.to(device), held, is_fixed)

    def multiply(self, inputs: Tensor, starts: Tensor) -> Tensor:
        """Return (T, N): each row of inputs (T, K) times its matrix transposed; see `matmul.Matrices`."""
        outputs = inputs.new_empty(len(inputs), self.first.num_outputs)
        target = Target.of(inputs.device)
        plan_grouped_codes(self, inputs, starts, outputs, target, is_fixed=self.is_fixed).run()
        return outputs


def multiply(
    matrix: QuantizedMatrix, inputs: Tensor, bias: Tensor | None = None, *, is_fixed: bool = False
) -> Tensor:
    """Return inputs (T, K) times the transposed matrix, plus bias (N,): (T, N) of the type of inputs.

    `is_fixed`: as in `matmul.plan_product`.
    """
    if len(inputs) > MOST_ROWS and not is_fixed:
        return _multiply_numbers(matrix, inputs, bias)
    outputs = inputs.new_empty(len(inputs), matrix.num_outputs)
    target = Target.of(inputs.device)
    for launch in plan_codes(matrix, inputs, bias, outputs, target, is_fixed=is_fixed):
        launch.run()
    return outputs


def plan_codes(
    matrix: QuantizedMatrix,
    inputs: Tensor,
    bias: Tensor | None,
    outputs: Tensor,
    target: Target,
    *,
    is_fixed: bool = False,
) -> list[Launch]:
    """Return what multiplies codes as they are: a product, and what adds its parts up if there are several."""
    num_rows, num_outputs = len(inputs), matrix.num_outputs
    rows = _rows_of_tile(num_rows, is_fixed=is_fixed)
    tiles = -(-num_outputs // _OUTPUTS[matrix.group]), -(-num_rows // rows)
    groups = fixed_groups_of_part(matrix, target)
    if not is_fixed:
        groups = groups_of_part(matrix, tiles[0] * tiles[1], target)
    num_parts = -(-matrix.num_groups // groups)
    num_programs = 1 if is_fixed and is_full(tiles, target) else num_parts
    sums = room_for_parts(num_programs, outputs)
    arguments = _arguments(matrix, inputs, sums, rows) | {
        "bias": inputs if bias is None else bias,
        "groups_of_part": groups,
        "num_parts": num_parts,
        "HAS_BIAS": bias is not None and num_programs == 1,
        "ADDS_PARTS": num_programs < num_parts,
    }
    product = _launch((*tiles, num_programs), arguments, target, is_fixed=is_fixed)
    return [product] if num_programs == 1 else [product, plan_adding(sums, bias, outputs, target)]


def plan_grouped_codes(
    matrices: CodedMatrices,
    inputs: Tensor,
    starts: Tensor,
    outputs: Tensor,
    target: Target,
    *,
    is_fixed: bool = False,
) -> Launch:
    """Return the one launch that multiplies each row of inputs (T, K) by its own matrix: outputs (T, N)."""
    num_matrices, first = len(starts) - 1, matrices.first
    rows = _rows_of_tile(-(-len(inputs) // num_matrices), is_fixed=is_fixed)
    tiles_of_outputs = -(-first.num_outputs // _OUTPUTS[first.group])
    # Where sums are fixed they have the bits of one matrix alone.
    groups = fixed_groups_of_part(first, target) if is_fixed else first.num_groups
    arguments = _arguments(first, inputs, outputs, rows) | {
        "offsets": matrices.offsets,
        "factors": matrices.factors,
        "starts": starts,
        "num_matrices": num_matrices,
        "groups_of_part": groups,
        "num_parts": -(-first.num_groups // groups),
        "IS_GROUPED": True,
        "ADDS_PARTS": groups < first.num_groups,
    }
    # See `find_tile`: every matrix may have a tile that is not full.
    tiles = len(inputs) // rows + num_matrices if len(inputs) else 0
    grid = (tiles_of_outputs, tiles, 1)
    return _launch(grid, arguments, target, is_fixed=is_fixed)


def groups_of_part(
    matrix: QuantizedMatrix, num_tiles: int, target: Target, programs: int = _PROGRAMS
) -> int:
    """Return how many groups of inputs are one part of a sum, where a processor is to have so many programs."""
    parts = min(max(1, programs * target.num_processors // num_tiles), _MOST_PARTS)
    least = max(1, _LEAST_PART // matrix.group)
    return max(least, -(-matrix.num_groups // parts))


def fixed_groups_of_part(matrix: QuantizedMatrix, target: Target) -> int:
    """Return the same whatever rows there are."""
    tiles = -(-matrix.num_outputs // _OUTPUTS[matrix.group])
    return groups_of_part(matrix, tiles, target, FIXED_PROGRAMS)


def is_full(tiles: tuple[int, int], target: Target) -> bool:
    """Return whether tiles of rows and outputs give every processor a program, so that it adds up all parts of its sums."""
    return tiles[0] * tiles[1] >= FIXED_PROGRAMS * target.num_processors


def room_for_parts(num_parts: int, outputs: Tensor) -> Tensor:
    """Return what programs write to: outputs (T, N), or (P, T, N) float32 where each has a part of their sums."""
    if num_parts == 1:
        return outputs
    return torch.empty(num_parts, *outputs.shape, device=outputs.device)


def plan_numbers(matrix: QuantizedMatrix, rows: slice, outputs: Tensor) -> Launch:
    """Return what writes the weights of some outputs (n, K), of whole blocks from a block's start on."""
    first = rows.start // 64
    arguments = {**_matrix_arguments(matrix, first), "outputs": outputs, "N": len(outputs)}
    grid = (-(-len(outputs) // 64), matrix.num_groups)
    return Launch(write_numbers, grid, arguments, num_warps=min(4, matrix.group // 16))


def _multiply_numbers(matrix: QuantizedMatrix, inputs: Tensor, bias: Tensor | None) -> Tensor:
    step = max(1, _SLAB_WEIGHTS // matrix.num_inputs // 64) * 64
    slabs = []
    for first in range(0, matrix.num_outputs, step):
        rows = slice(first, min(first + step, matrix.num_outputs))
        numbers = inputs.new_empty(rows.stop - first, matrix.num_inputs)
        plan_numbers(matrix, rows, numbers).run()
        slabs.append(F.linear(inputs, numbers, None if bias is None else bias[rows]))
    return slabs[0] if len(slabs) == 1 else torch.cat(slabs, dim=1)


def plan_adding(sums: Tensor, bias: Tensor | None, outputs: Tensor, target: Target) -> Launch:
    """Return what adds parts (P, T, N) float32 up, and bias (N,): outputs (T, N)."""
    arguments = {
        "sums": sums,
        "bias": outputs if bias is None else bias,
        "outputs": outputs,
        "count": outputs.numel(),
        "parts": len(sums),
        "N": outputs.shape[1],
        "HAS_BIAS": bias is not None,
        "TILE": _TILE,
        "OVERLAPS": target.overlaps,
    }
    return Launch(add_parts, (-(-outputs.numel() // _TILE),), arguments)


def _rows_of_tile(num_rows: int, *, is_fixed: bool) -> int:
    return _MOST_TILE_ROWS if is_fixed else min(tile_of(num_rows, 16), _MOST_TILE_ROWS)


def _arguments(
    matrix: QuantizedMatrix, inputs: Tensor, outputs: Tensor, rows: int
) -> dict[str, object]:
    """Return what both kinds of products have in common."""
    inputs = inputs if inputs.stride(1) == 1 else inputs.contiguous()
    return {
        **_matrix_arguments(matrix),
        "inputs": inputs,
        "offsets": inputs,
        "factors": inputs,
        "starts": inputs,
        "bias": inputs,
        "outputs": outputs,
        "num_rows": len(inputs),
        "num_matrices": 1,
        "num_parts": 1,
        "input_stride": inputs.stride(0),
        "N": matrix.num_outputs,
        "HAS_BIAS": False,
        "IS_GROUPED": False,
        "ADDS_PARTS": False,
        "OUTPUTS": _OUTPUTS[matrix.group],
        "ROWS": rows,
        "IS_INTERPRETED": IS_INTERPRETED,
    }


def _launch(
    grid: tuple[int, ...], arguments: dict[str, object], target: Target, *, is_fixed: bool
) -> Launch:
    group, rows = arguments["GROUP"], arguments["ROWS"]
    assert isinstance(group, int)
    assert isinstance(rows, int)
    # Triton 3.6 compiles no more for AMD where a row of codes is 16 bytes.
    stages = 4 if target.is_nvidia and group * rows <= _MOST_STAGED else 2
    warps = 4 if target.is_nvidia else 2
    return Launch(multiply_codes, grid, arguments, warps, stages, fuses=not is_fixed)


def _matrix_arguments(matrix: QuantizedMatrix, first_block: int = 0) -> dict[str, object]:
    storage = matrix.storage[first_block:]
    return {
        "packed": storage,
        "scales": storage.view(torch.float16),
        "factor": matrix.scale,
        "K": matrix.num_inputs,
        "GROUP": matrix.group,
        "BYTES": storage.shape[2],
        "HAS_ZEROS": matrix.has_zeros,
    }
