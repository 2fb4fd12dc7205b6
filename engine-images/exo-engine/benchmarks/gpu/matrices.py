"""Products with matrices in the GPU's formats: what is compiled, checked and timed of them.

Legend: T rows of inputs, K inputs, N outputs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from exo_engine.kernels.quantized import QuantizedMatrix
from exo_engine.kernels.triton import codes
from exo_engine.kernels.triton.launch import Launch, Target
from product_cases import CodesCase, random_codes_case, random_grouped_codes_case

from gpu.launches import META, Work
from gpu.products import CHOSEN, EXPERT, EXPERTS, experts_chosen

ROWS = (1, 32, 128)
SHAPES = ((28672, 4096), (4096, 14336))
"""(N, K) of the MLP of Llama 3.1 8B."""


def matrix_works(target: Target, num_shapes: int = len(SHAPES)) -> Iterator[Work]:
    """Yield what is launched for 4-bit codes: groups of 32, as made at load, and of 128 with zeros, as in AWQ."""
    for group, has_zeros in ((32, False), (128, True)):
        for shape in SHAPES[-num_shapes:]:
            for rows in ROWS:
                yield from _products(shape, group, rows, target, has_zeros=has_zeros)
            yield _numbers(shape, group, has_zeros=has_zeros)
        for tokens in (1, 32, 256):
            yield _grouped(group, tokens, target, has_zeros=has_zeros)
        yield _grouped(group, 32, target, has_zeros=has_zeros, is_fixed=True)
        for rows in (1, 256):
            yield from _products(SHAPES[1], group, rows, target, has_zeros=has_zeros, is_fixed=True)


def _products(
    shape: tuple[int, int],
    group: int,
    rows: int,
    target: Target,
    *,
    has_zeros: bool,
    is_fixed: bool = False,
) -> Iterator[Work]:
    matrix = _matrix(shape, group, has_zeros=has_zeros)
    inputs, outputs = (_empty(rows, size) for size in (shape[1], shape[0]))
    launches = codes.plan_codes(matrix, inputs, None, outputs, target, is_fixed=is_fixed)
    name = f"{shape[0]} x {shape[1]}, group {group}, {rows} rows" + (", fixed" if is_fixed else "")
    parts = launches[0].grid[2]
    partial = 4.0 * parts * rows * shape[0] if parts > 1 else 0.0
    own = 2.0 * rows * sum(shape)
    arguments: Any = launches[0].arguments
    own_parts = arguments["num_parts"] if arguments["ADDS_PARTS"] else 1
    yield Work(
        f"codes {name}", launches[0], matrix.storage.nbytes + own + partial,
        2.0 * rows * shape[0] * shape[1], 0, "codes",
        launches[0].grid[1] * arguments["ROWS"] / rows, arguments["groups_of_part"] * own_parts,
        arguments["OUTPUTS"] * matrix.storage.shape[2] / 64,
    )  # fmt: skip
    for launch in launches[1:]:
        yield Work(f"add {name}", launch, partial + own / 2, 0, 0, "add")


def _grouped(
    group: int, tokens: int, target: Target, *, has_zeros: bool, is_fixed: bool = False
) -> Work:
    matrix, (num_outputs, num_inputs) = _matrix(EXPERT, group, has_zeros=has_zeros), EXPERT
    tables = (
        torch.empty(EXPERTS, dtype=dtype, device=META) for dtype in (torch.int64, torch.float)
    )
    matrices = codes.CodedMatrices(matrix, *tables)
    starts = torch.empty(EXPERTS + 1, dtype=torch.int32, device=META)
    inputs, outputs = (_empty(tokens * CHOSEN, size) for size in (num_inputs, num_outputs))
    launch = codes.plan_grouped_codes(matrices, inputs, starts, outputs, target, is_fixed=is_fixed)
    arguments: Any = launch.arguments
    chosen = experts_chosen(tokens)
    tiles = max(chosen, len(inputs) / arguments["ROWS"])
    name = f"grouped codes, group {group}, {EXPERTS} experts of {num_outputs} x {num_inputs}, {tokens} tokens"
    return Work(
        name + (", fixed" if is_fixed else ""), launch,
        chosen * matrix.storage.nbytes + inputs.nbytes + outputs.nbytes,
        2.0 * len(inputs) * num_outputs * num_inputs, 0, "grouped",
        tiles * arguments["ROWS"] / len(inputs), matrix.num_groups * tiles / launch.grid[1],
        arguments["OUTPUTS"] * matrix.storage.shape[2] / 64,
    )  # fmt: skip


def _numbers(shape: tuple[int, int], group: int, *, has_zeros: bool) -> Work:
    matrix = _matrix(shape, group, has_zeros=has_zeros)
    launch: Launch = codes.plan_numbers(matrix, slice(0, shape[0]), _empty(*shape))
    moved = matrix.storage.nbytes + 2.0 * shape[0] * shape[1]
    return Work(
        f"numbers {shape[0]} x {shape[1]}, group {group}", launch, moved, 0, 0, "numbers"
    )  # fmt: skip


def check_matrices(device: torch.device, count: int) -> Iterator[dict[str, Any]]:
    """Hold random products equal to float64; fresh ones each time."""
    first = random.SystemRandom().randrange(2**31)
    for seed in range(first, first + count):
        row: dict[str, Any] = {"check": "codes", "seed": seed, "ok": True}
        try:
            most = 200 if device.type == "cpu" else 3000
            random_codes_case(seed, device, most=most).check(seed)
            random_grouped_codes_case(seed, device, most=most).check(seed)
        except Exception as exc:  # the next case is to be tried, too
            row |= {"ok": False, "error": f"{type(exc).__name__}: {exc}"[:500]}
        yield row


def time_matrices(
    device: torch.device, seconds: Callable[[Callable[[], object]], float], *, is_small: bool
) -> Iterator[dict[str, Any]]:
    """Time products with codes, and plain ones of 16 bits beside them."""
    for num_outputs, num_inputs in ((64, 64),) if is_small else SHAPES:
        weight = torch.randn(num_outputs, num_inputs, device=device).bfloat16()
        for rows in (1, 130) if is_small else (*ROWS, 256):
            case = CodesCase(rows, num_inputs, num_outputs, dtype=torch.bfloat16, device=device)
            matrix, (inputs, _) = case.matrix(0), case.operands(0)
            inputs = inputs.contiguous()
            taken = seconds(lambda m=matrix, i=inputs: codes.multiply(m, i))  # type: ignore[misc]
            plain = seconds(lambda i=inputs, w=weight: F.linear(i, w))  # type: ignore[misc]
            yield {
                "product": "4-bit codes, group 32", "rows": rows, "outputs": num_outputs,
                "inputs": num_inputs, "seconds": taken, "plain_seconds": plain,
                "weight_bytes_per_second": matrix.storage.nbytes / taken,
            }  # fmt: skip


def _matrix(shape: tuple[int, int], group: int, *, has_zeros: bool) -> QuantizedMatrix:
    return QuantizedMatrix(
        *shape, bits=4, group=group, has_zeros=has_zeros, order="halves", device=META
    )


def _empty(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device=META)
