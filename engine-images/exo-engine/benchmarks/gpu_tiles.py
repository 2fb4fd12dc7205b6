"""Times tiles of a GPU's kernels beside those that are taken, of which each is to give the numbers.

    python gpu_tiles.py --device cuda [--works attention row fp8]
    TRITON_INTERPRET=1 python gpu_tiles.py --device cpu --small      tries the script itself

Heads are those of Llama 3.1 8B, matrices its and Qwen3 0.6B's. It prints one JSON object per line: the work, the tile,
the median time, and how far numbers are from those of the tile that is taken, as a share of the largest. A tile that does not
compile, or that has no room, is told with its error.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from exo_engine.attention.kv_format import KV_FORMATS
from exo_engine.attention.layer import AttentionLayer
from exo_engine.kernels.triton import attention, matmul
from exo_engine.kernels.triton.launch import Launch, Target
from exo_engine.kernels.triton.pages import Pages
from exo_engine.kernels.triton.store import plan_storing
from gpu.setting import Setting

Row = dict[str, Any]

_LAYER = AttentionLayer(num_heads=32, num_kv_heads=8, head_dim=128, scale=128**-0.5)
_PAGE = 16
_STEPS = ((256, 1024, 1), (32, 1024, 1), (1, 1024, 1), (1, 2048, 2048))
"""Sequences, tokens of each, and how many of these are new."""
_MATRICES = (
    *((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)),
    *((4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)),
)


def time_attention(setting: Setting) -> Iterator[Row]:
    """Time one layer over caches of bfloat16 and FP8, and with fixed sums."""
    steps = ((2, 64, 1), (1, 48, 48)) if setting.is_small else _STEPS
    ways = (("bfloat16", False), ("fp8_e4m3", False), ("bfloat16", True))
    for (kv, is_fixed), step in itertools.product(ways, steps):
        plan, taken, output = _attention(setting, kv, *step, is_fixed=is_fixed)
        shapes = [(32, 4, 2)] if setting.is_small else itertools.product((32, 64, 128), (2, 4, 8), (2, 3))  # fmt: skip
        others = [
            replace(taken, keys=keys, num_warps=warps, num_stages=stages)
            for keys, warps, stages in shapes
        ]
        name = f"attention, {kv}{', fixed' if is_fixed else ''}"
        work = _Work(setting, f"{name}, {step[0]} x {step[1]}, {step[2]} new", output)
        for tiles in (taken, *others):
            yield work.time(asdict(tiles), partial(plan, tiles))


def time_rows(setting: Setting) -> Iterator[Row]:
    """Time the product of one row, and PyTorch's."""
    target = Target.of(setting.device)
    for shape in ((48, 64),) if setting.is_small else _MATRICES:
        weights = torch.randn(shape, device=setting.device).bfloat16()
        inputs = torch.randn(1, shape[1], device=setting.device).bfloat16()
        output = inputs.new_empty(1, shape[0])
        launch = matmul.plan_row(weights, inputs, None, output, target)
        work = _Work(setting, f"one row, {shape[0]} x {shape[1]}", output)
        kinds = [(8, 16, 2)] if setting.is_small else [(2, 1024, 4), (4, 1024, 4), (8, 512, 4), (16, 256, 4), (2, 2048, 8)]  # fmt: skip
        taken = {name: launch.arguments[name] for name in ("OUTPUTS", "DEPTH")}
        yield work.time(taken, partial(list, [launch]))
        for outputs, depth, warps in kinds:
            other = replace(
                launch, arguments={**launch.arguments, "OUTPUTS": outputs, "DEPTH": depth},
                grid=(-(-shape[0] // outputs),), num_warps=warps,
            )  # fmt: skip
            tile = {"OUTPUTS": outputs, "DEPTH": depth, "num_warps": warps}
            yield work.time(tile, partial(list, [other]))
        found = setting.seconds(partial(F.linear, inputs, weights))
        yield {"work": work.name, "tile": "PyTorch's", "seconds": found}


def time_fp8(setting: Setting) -> Iterator[Row]:
    """Time products of few rows in FP8, and PyTorch's where it has them."""
    target = Target.of(setting.device)
    for rows, shape in itertools.product((1, 32), ((48, 64),) if setting.is_small else _MATRICES[:4]):  # fmt: skip
        numbers = torch.randn(shape, device=setting.device).to(torch.float8_e4m3fn)
        scales = torch.rand(1, shape[0], device=setting.device)
        inputs, factors = matmul.encode(torch.randn(rows, shape[1], device=setting.device))
        output = torch.empty(rows, shape[0], dtype=torch.bfloat16, device=setting.device)
        launches = matmul.plan_product(
            numbers, scales, inputs, None, output, target, factors=factors
        )
        work = _Work(setting, f"fp8, {rows} rows, {shape[0]} x {shape[1]}", output)
        tile = {name: launches[0].arguments[name] for name in ("OUTPUTS", "ROWS", "DEPTH", "num_parts")}  # fmt: skip
        yield work.time(tile, partial(list, launches))
        if setting.device.type == "cuda":
            scaled = partial(torch._scaled_mm, inputs, numbers.t(), factors, scales)
            found = setting.seconds(partial(scaled, out_dtype=torch.bfloat16))
            yield {"work": work.name, "tile": "PyTorch's", "seconds": found}


def _attention(
    setting: Setting, kv: str, sequences: int, context: int, new: int, *, is_fixed: bool
) -> tuple[Callable[[attention.Tiles], list[Launch]], attention.Tiles, torch.Tensor]:
    """Return what plans a step with given tiles, those that are taken, and where its numbers come."""
    device, target = setting.device, Target.of(setting.device)
    heads, kv_heads, dim = _LAYER.num_heads, _LAYER.num_kv_heads, _LAYER.head_dim
    row_bytes = _PAGE * KV_FORMATS[kv].row_bytes(kv_heads, dim)
    num_pages = sequences * context // _PAGE
    planes = [torch.zeros(num_pages, row_bytes, dtype=torch.uint8, device=device) for _ in range(2)]
    pages = Pages.view(
        (planes[0], planes[1]), KV_FORMATS[kv], num_kv_heads=kv_heads, head_dim=dim, page_size=_PAGE
    )
    keys, values = (
        torch.randn(num_pages * _PAGE, kv_heads, dim, device=device, dtype=torch.bfloat16)
        for _ in range(2)
    )
    slots = torch.arange(num_pages * _PAGE, device=device)
    plan_storing(keys, values, pages, slots, target).run()
    numbers: dict[str, Any] = {"dtype": torch.int32, "device": device}
    part = attention.Part(
        torch.randperm(num_pages, device=device).int().view(sequences, -1),
        torch.arange(0, sequences * new + 1, new, **numbers),
        torch.full((sequences,), context, **numbers),
        0,
        sequences,
        sequences * new,
        context,
        uniform_tokens=1 if new == 1 else 0,
    )
    queries = torch.randn(sequences * new, heads, dim, device=device, dtype=torch.bfloat16)
    output = torch.empty_like(queries)
    taken = attention.choose_tiles(
        _LAYER, part, target, item_bytes=2, stored=pages.stored, is_fixed=is_fixed
    )

    def plan(tiles: attention.Tiles) -> list[Launch]:
        with _chosen(tiles):
            return attention.plan_attention(
                _LAYER, queries, pages, part, output, target, is_fixed=is_fixed
            )

    return plan, taken, output


@contextmanager
def _chosen(tiles: attention.Tiles) -> Iterator[None]:
    """Have these tiles taken."""
    choose = attention.choose_tiles
    attention.choose_tiles = lambda *_, **__: tiles  # type: ignore[assignment]
    try:
        yield
    finally:
        attention.choose_tiles = choose


@dataclass
class _Work:
    """What is computed with several tiles; the one that is taken comes first."""

    setting: Setting
    name: str
    output: torch.Tensor
    expected: torch.Tensor | None = None

    def time(self, tile: dict[str, Any], plan: Callable[[], list[Launch]]) -> Row:
        """Return how long launches take that are planned so, and how far their numbers are from the first one's."""
        row: Row = {"work": self.name, "tile": tile, "taken": self.expected is None}
        self.output.fill_(torch.nan)
        try:
            launches = plan()
            for launch in launches:
                launch.run()
            self.setting.wait()
            if self.expected is None:
                self.expected = self.output.float()
            off = (self.output.float() - self.expected).abs().max() / self.expected.abs().max()
            seconds = self.setting.seconds(lambda: [launch.run() for launch in launches])
            return row | {"seconds": seconds, "off": float(off)}
        except Exception as exc:  # the next tile is to be tried, too
            return row | {"error": f"{type(exc).__name__}: {exc}"[:300]}


WORKS = {"attention": time_attention, "row": time_rows, "fp8": time_fp8}


def main() -> int:
    """Print what each work took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny shapes")
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS))
    arguments = parser.parse_args()
    setting = Setting(torch.device(arguments.device), arguments.small)
    for name in arguments.works:
        for row in WORKS[name](setting):
            print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
