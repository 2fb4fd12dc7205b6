"""Products of plain numbers, INT8 and FP8 in Triton: what is compiled, checked and timed of them.

Legend: T rows of inputs, H heads, K inputs, N outputs, X experts.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from exo_engine.kernels.triton import fixed, matmul, pointwise, states
from exo_engine.kernels.triton.launch import Launch, Target
from exo_engine.weight_formats.fp8 import why_not_scaled
from product_cases import (
    ProductCase,
    check_bits,
    check_fp8,
    fp8_kinds,
    random_product_case,
)
from row_cases import check_gate, check_heads, check_norm, check_row, check_states

from gpu.launches import META, Work

ROWS = (1, 32, 128)
FIXED_ROWS = (1, 32, 256, 2048)
SHAPES = ((28672, 4096), (4096, 14336))
"""(N, K) of the MLP of Llama 3.1 8B."""
EXPERTS, CHOSEN, EXPERT = 128, 8, (1536, 2048)
"""Of Qwen3 30B A3B."""


ROUTER = (256, 7168)
"""Of DeepSeek V3, in float32."""
LATENTS = {"DeepSeek-V2-Lite": 16, "DeepSeek-V3": 128}
"""Heads whose 128 numbers become a latent of 512, and the other way round."""


def product_works(target: Target, num_shapes: int = len(SHAPES)) -> Iterator[Work]:
    """Yield products with bytes, plain products in tiles of one size, and products by many experts and heads."""
    can_scale = not why_not_scaled(target)
    of_rows = ("int8", "e4m3 rows") if can_scale else ("int8",)
    for shape in SHAPES[-num_shapes:]:
        for rows in ROWS:
            yield from product("e4m3", shape, rows, target)
            yield from product("int8", shape, rows, target)
        for rows in FIXED_ROWS:
            yield from product("plain", shape, rows, target, is_fixed=True)
            for stored in of_rows:
                yield from product(stored, shape, rows, target, is_fixed=True)
    for tokens in (1, 32, 256):
        for stored in ("plain", "e4m3", *of_rows):
            yield _grouped(stored, tokens, target)
    for stored in ("plain", "e4m3", *of_rows):
        yield _grouped(stored, 32, target, is_fixed=True)
    for rows in (256, 2048):
        yield from product("e4m3", SHAPES[1], rows, target, is_fixed=True)
    for rows in (32, 8192):
        yield from product("router", ROUTER, rows, target, is_fixed=True)
    for name in list(LATENTS)[-num_shapes:]:
        for rows in (32, 2048):
            yield from _latents(name, rows, target)
    yield _encoding(256, 4096, target)
    yield norm(256, 4096, target)
    yield norm(256, 4096, target, has_weight=False)
    yield norm(256, 4096, target, has_updates=True)
    yield gating(256, 14336, target)
    for shape in SHAPES[-num_shapes:]:
        yield single(shape, target)
    yield single((2 * EXPERT[0], EXPERT[1]), target, is_gated=True)
    for tokens in (1, 64):
        yield _states(32, tokens)


KINDS = {"plain": "fixed", "e4m3": "fp8", "e4m3 rows": "scaled"}
"""Of products by one matrix; others are called as they are stored."""


def product(
    stored: str, shape: tuple[int, int], rows: int, target: Target, *, is_fixed: bool = False
) -> Iterator[Work]:
    """Yield a product by a matrix of that shape (N, K), and what adds up its parts."""
    dtype = torch.float32 if stored == "router" else torch.bfloat16
    weights, scales = _matrix(shape, stored)
    inputs, factors = _inputs(rows, shape[1], stored)
    outputs = torch.empty(rows, shape[0], dtype=dtype, device=META)
    launches = matmul.plan_product(
        weights, scales, inputs, None, outputs, target, factors=factors, is_fixed=is_fixed
    )
    first, kind = launches[0], KINDS.get(stored, stored)
    parts = first.grid[2]
    partial = 4.0 * parts * rows * shape[0] if parts > 1 else 0.0
    own = weights.nbytes + (0 if scales is None else scales.nbytes) + inputs.nbytes + outputs.nbytes
    arguments: Any = first.arguments
    own_parts = arguments["num_parts"] if arguments["ADDS_PARTS"] else 1
    is_told = is_fixed and stored in ("e4m3", "int8")
    yield Work(
        f"{kind} {shape[0]} x {shape[1]}, {rows} rows" + (", fixed" if is_told else ""), first, own + partial,
        2.0 * rows * shape[0] * shape[1], 0, kind,
        first.grid[0] * arguments["ROWS"] / rows, arguments["steps_of_part"] * own_parts, _tile_bytes(first),
    )  # fmt: skip
    for launch in launches[1:]:
        name = f"add {kind} {shape[0]} x {shape[1]}, {rows} rows"
        yield Work(name, launch, partial + 2.0 * rows * shape[0], 0, 0, "add")


def _grouped(stored: str, tokens: int, target: Target, *, is_fixed: bool = False) -> Work:
    weights, scales = _matrix(EXPERT, stored)
    num_outputs, num_inputs = EXPERT
    offsets = torch.empty(2, EXPERTS, dtype=torch.int64, device=META)
    matrices = matmul.Matrices(weights, scales, offsets, ())
    starts = torch.empty(EXPERTS + 1, dtype=torch.int32, device=META)
    inputs, factors = _inputs(tokens * CHOSEN, num_inputs, stored)
    outputs = _numbers(tokens * CHOSEN, num_outputs)
    launch = matmul.plan_grouped(
        matrices, inputs, starts, outputs, target, factors=factors, is_fixed=is_fixed
    )
    chosen = experts_chosen(tokens)
    arguments: Any = launch.arguments
    steps = -(-num_inputs // arguments["DEPTH"])
    held = weights.nbytes + (0 if scales is None else scales.nbytes)
    tiles = max(chosen, len(inputs) / arguments["ROWS"])
    name = f"grouped {stored}, {EXPERTS} experts of {num_outputs} x {num_inputs}, {tokens} tokens"
    return Work(
        name + (", fixed" if is_fixed else ""), launch, chosen * held + inputs.nbytes + outputs.nbytes,
        2.0 * len(inputs) * num_outputs * num_inputs, 0, "grouped",
        tiles * arguments["ROWS"] / len(inputs), steps * tiles / launch.grid[0], _tile_bytes(launch),
    )  # fmt: skip


def experts_chosen(tokens: int) -> float:
    """Return how many experts so many tokens choose, if all are as likely."""
    return EXPERTS * (1 - (1 - CHOSEN / EXPERTS) ** tokens)


def _latents(name: str, rows: int, target: Target) -> Iterator[Work]:
    """Yield both products around latent attention in tiles of one size; keys have 64 turned numbers."""
    heads, plain, latent = LATENTS[name], 128, 512
    weights = _numbers(heads, 2 * plain, latent)
    for way, inputs, own in (
        ("absorb", _numbers(rows, heads, plain + 64)[..., :plain], weights[:, :plain]),
        ("expand", _numbers(rows, heads, latent), weights[:, plain:].transpose(1, 2)),
    ):
        num_inputs, num_outputs = own.shape[1:]
        outputs = _numbers(rows, heads, num_outputs)
        launch = fixed.plan_heads(inputs, own, outputs, target)
        arguments: Any = launch.arguments
        depth = arguments["DEPTH"]
        moved = 2.0 * (own.numel() + inputs.numel() + outputs.numel())
        yield Work(
            f"heads {way} {name}, {rows} rows", launch, moved,
            2.0 * rows * own.numel(), 0, "heads",
            launch.grid[0] * arguments["ROWS"] / rows, -(-num_inputs // depth),
            2.0 * depth * (arguments["ROWS"] + arguments["OUTPUTS"]),
        )  # fmt: skip


def _encoding(rows: int, num_inputs: int, target: Target) -> Work:
    inputs = _numbers(rows, num_inputs)
    codes = torch.empty(rows, num_inputs, dtype=torch.uint8, device=META)
    factors = torch.empty(rows, 1, device=META)
    launch = matmul.plan_encoding(inputs, codes, factors, target)
    moved = inputs.nbytes + codes.nbytes + factors.nbytes
    return Work(f"encode {rows} x {num_inputs}", launch, moved, 0, 0, "encode")


def norm(
    rows: int, size: int, target: Target, *, has_weight: bool = True, has_updates: bool = False
) -> Work:
    """Return the norm of rows of so many numbers, perhaps with what is added to them before."""
    inputs, weight = _numbers(rows, size), _numbers(size) if has_weight else None
    updates = _numbers(rows, size) if has_updates else None
    launch = pointwise.plan_norm(inputs, updates, weight, 1e-6, inputs, target)
    name = f"norm {rows} x {size}" + ("" if has_weight else ", no weight")
    name += ", added to" if has_updates else ""
    return Work(name, launch, (4.0 if has_updates else 2.0) * inputs.nbytes, 0, 0, "norm")


def gating(rows: int, size: int, target: Target) -> Work:
    """Return what gates rows of so many numbers."""
    merged, outputs = _numbers(rows, 2 * size), _numbers(rows, size)
    launch = pointwise.plan_gate(merged, outputs, target, is_silu=True)
    return Work(f"gate {rows} x {size}", launch, merged.nbytes + outputs.nbytes, 0, 0, "gate")


def single(shape: tuple[int, int], target: Target, *, is_gated: bool = False) -> Work:
    """Return the product of one row by a matrix (N, K), perhaps of gates and of what they multiply."""
    weights, inputs = _numbers(*shape), _numbers(1, shape[1])
    outputs = _numbers(1, shape[0] // (2 if is_gated else 1))
    launch = matmul.plan_row(
        weights, inputs, None, outputs, target, gates="silu" if is_gated else None
    )
    moved = weights.nbytes + inputs.nbytes + outputs.nbytes
    name = f"row {shape[0]} x {shape[1]}" + (", gated" if is_gated else "")
    return Work(name, launch, moved, 0, 0, "row")


def _states(sequences: int, tokens: int) -> Work:
    """Return what moves states of Qwen3-Next on, by so many tokens of each sequence."""
    key_heads, heads, dim = 16, 32, 128
    total = sequences * tokens
    mixed = torch.empty(total, (2 * key_heads + heads) * dim, device=META)
    factors = torch.empty(total, heads, device=META)
    matrices = torch.empty(sequences, heads, dim, dim, device=META)
    results = torch.empty(total, heads, dim, device=META)
    starts = torch.empty(sequences + 1, dtype=torch.int32, device=META)
    launch = states.plan_move(mixed, factors, factors, matrices, matrices, results, starts)
    arguments: Any = launch.arguments
    moved = 2.0 * matrices.nbytes + mixed.nbytes + results.nbytes + 2.0 * factors.nbytes
    return Work(
        f"states {heads} heads of {dim}, {sequences} x {tokens}", launch, moved, 0, 0, "states",
        tiles_per_program=tokens, tile_bytes=4.0 * dim * arguments["COLUMNS"],
    )  # fmt: skip


def check_products(device: torch.device, count: int) -> Iterator[dict[str, Any]]:
    """Hold random products and norms equal to float64; fresh ones each time."""
    first = random.SystemRandom().randrange(2**31)
    most = 200 if device.type == "cpu" else 3000
    checks: dict[str, Callable[[int], None]] = {
        "products": lambda seed: random_product_case(seed, device, most=most).check(seed),
        "norm": partial(check_norm, device),
        "gate": partial(check_gate, device),
        "row": partial(check_row, device),
        "states": partial(check_states, device),
        "heads": partial(check_heads, device),
    }
    if device.type == "cuda":  # a processor's own products have an order for each shape
        checks["bits"] = partial(check_bits, device)
    for kind in fp8_kinds(Target.of(device)):
        checks[kind.__name__] = partial(check_fp8, kind, device)
    for seed, name in itertools.product(range(first, first + count), checks):
        row: dict[str, Any] = {"check": name, "seed": seed, "ok": True}
        try:
            checks[name](seed)
        except Exception as exc:  # the next case is to be tried, too
            row |= {"ok": False, "error": f"{type(exc).__name__}: {exc}"[:500]}
        yield row


def time_products(
    device: torch.device, seconds: Callable[[Callable[[], object]], float], *, is_small: bool
) -> Iterator[dict[str, Any]]:
    """Time FP8 in blocks and by rows, and tiles of one size, beside PyTorch's products of 16 bits."""
    for shape in ((64, 256),) if is_small else SHAPES:
        for rows in (1,) if is_small else (*ROWS, 2048):
            inputs = torch.randn(rows, shape[1], device=device).bfloat16()
            ways = _ways(inputs, torch.randn(shape, device=device).bfloat16())
            plain = seconds(ways.pop("plain"))
            for name, work in ways.items():
                yield {
                    "product": name, "rows": rows, "outputs": shape[0], "inputs": shape[1],
                    "seconds": seconds(work), "plain_seconds": plain,
                }  # fmt: skip
    yield _time_grouped(device, seconds, is_small=is_small)


def _ways(inputs: torch.Tensor, weight: torch.Tensor) -> dict[str, Callable[[], object]]:
    device, target = inputs.device, Target.of(inputs.device)
    codes, scales = weight.to(torch.float8_e4m3fn), torch.rand(1, len(weight), device=device)
    blocks = torch.rand(-(-weight.shape[1] // matmul.BLOCK), len(weight), device=device)
    ways: dict[str, Callable[[], object]] = {
        "plain": lambda: F.linear(inputs, weight),
        "fp8 in blocks": lambda: _run(codes.view(torch.uint8), blocks, inputs, target),
        "fixed tiles": lambda: _run(weight, None, inputs, target, is_fixed=True),
    }
    if device.type == "cuda" and not why_not_scaled(target):
        ways["fp8 by rows"] = lambda: _scaled(codes, scales, inputs)
    return ways


def _time_grouped(
    device: torch.device, seconds: Callable[[Callable[[], object]], float], *, is_small: bool
) -> dict[str, Any]:
    """Time many experts in one launch, beside a loop over them whose sizes are known."""
    count, shape = (4, (64, 64)) if is_small else (EXPERTS, EXPERT)
    case = ProductCase((2,) * count, shape[1], shape[0], dtype=torch.bfloat16, device=device)
    numbers, scales, _ = case.matrices(0)
    inputs = case.inputs(0)
    matrices = matmul.Matrices.of(numbers, scales)
    starts = torch.arange(0, 2 * count + 1, 2, dtype=torch.int32, device=device)
    pairs = list(zip(inputs.split(2), numbers, strict=True))
    return {
        "product": "grouped", "experts": count, "rows": len(inputs), "outputs": shape[0], "inputs": shape[1],
        "seconds": seconds(lambda: matrices.multiply(inputs, starts)),
        "plain_seconds": seconds(lambda: [F.linear(rows, own) for rows, own in pairs]),
    }  # fmt: skip


def _run(
    weights: torch.Tensor,
    scales: torch.Tensor | None,
    inputs: torch.Tensor,
    target: Target,
    *,
    is_fixed: bool = False,
) -> None:
    outputs = inputs.new_empty(len(inputs), len(weights))
    for launch in matmul.plan_product(
        weights, scales, inputs, None, outputs, target, is_fixed=is_fixed
    ):
        launch.run()


def _scaled(codes: torch.Tensor, scales: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    encoded, factors = matmul.encode(inputs)
    return torch._scaled_mm(encoded, codes.t(), factors, scales, out_dtype=torch.bfloat16)


def _matrix(shape: tuple[int, int], stored: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    types = {
        "plain": torch.bfloat16, "router": torch.float32, "int8": torch.int8, "e4m3": torch.uint8,
        "e4m3 rows": torch.float8_e4m3fn,
    }  # fmt: skip
    weights = torch.empty(shape, dtype=types[stored], device=META)
    if weights.element_size() > 1:
        return weights, None
    groups = -(-shape[1] // matmul.BLOCK) if stored == "e4m3" else 1
    scale_type = torch.bfloat16 if stored == "int8" else torch.float32
    return weights, torch.empty(groups, shape[0], dtype=scale_type, device=META)


def _inputs(rows: int, size: int, stored: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return inputs as they are multiplied with such numbers, and the scales of their rows."""
    dtype = {"router": torch.float32, "e4m3 rows": torch.float8_e4m3fn}.get(stored, torch.bfloat16)
    inputs = torch.empty(rows, size, dtype=dtype, device=META)
    return inputs, torch.empty(rows, 1, device=META) if stored == "e4m3 rows" else None


def _numbers(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device=META)


def _tile_bytes(launch: Launch) -> float:
    arguments: Any = launch.arguments
    widths = [arguments[name].element_size() for name in ("weights", "inputs")]
    return float(
        arguments["DEPTH"] * (arguments["OUTPUTS"] * widths[0] + arguments["ROWS"] * widths[1])
    )
