"""The launches that are compiled without a GPU and whose time is reckoned: kernels at the shapes of models."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from exo_engine.attention.kv_format import KV_FORMATS
from exo_engine.attention.layer import AttentionLayer, Reach
from exo_engine.kernels.triton.attention import Part, plan_attention
from exo_engine.kernels.triton.launch import Launch, Target
from exo_engine.kernels.triton.pages import Pages
from exo_engine.kernels.triton.store import Turn, plan_storing

META = torch.device("meta")
PAGE = 16
FULL = Reach()


@dataclass(frozen=True, slots=True)
class Work:
    """A launch, and what it has to do at the least."""

    name: str
    launch: Launch
    num_bytes: float
    """Read from and written to memory, each once."""
    operations: float
    """Of matrix products, a multiplication and an addition being two."""
    head_dim: int
    """0 where there are no heads."""
    kind: str
    """decode, verify, combine, prefill, store, codes, add, numbers, fp8, int8, scaled, fixed, grouped, router, heads,
    encode, norm or states."""
    padding: float = 1.0
    """By how much operations grow, as rows fill up tiles."""
    tiles_per_program: float = 1.0
    """How often a program goes through its loop."""
    tile_bytes: float = 8192.0
    """That a program reads each time."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Heads of a model."""

    name: str
    heads: int
    kv_heads: int
    dim: int
    reach: Reach = FULL
    soft_cap: float | None = None
    has_sinks: bool = False
    steps: tuple[tuple[int, int], ...] = ((32, 1024),)
    """Sequences and context of the steps of single tokens."""
    num_latent: int | None = None
    """Of latent attention: numbers of a key that are the value, too."""
    dtype: torch.dtype = torch.bfloat16
    """Of queries and results."""

    @property
    def value_dim(self) -> int:
        """Numbers of a value."""
        return self.num_latent or self.dim

    def row_bytes(self, kv: str, num_heads: int) -> int:
        """Return what keys and values of one token take in so many heads."""
        planes = 1 if self.num_latent else 2
        return planes * KV_FORMATS[kv].row_bytes(num_heads, self.dim)

    @property
    def layer(self) -> AttentionLayer:
        """As the engine describes it."""
        return AttentionLayer(
            self.heads, self.kv_heads, self.dim, self.dim**-0.5, self.reach, self.soft_cap, self.has_sinks,
            num_latent=self.num_latent,
        )  # fmt: skip


SHAPES = (
    Shape("Llama-3.1-8B", 32, 8, 128, steps=((1, 1024), (32, 1024), (256, 1024), (8, 32768))),
    Shape("Qwen3-0.6B", 16, 8, 128, steps=((1, 1024), (256, 1024))),
    Shape("gpt-oss, window", 64, 8, 64, Reach(window=128), has_sinks=True),
    Shape("Gemma 2, window and cap", 8, 4, 256, Reach(window=4096), 50.0),
    Shape("DeepSeek-V2-Lite, latent", 16, 1, 576, num_latent=512),
    Shape("DeepSeek-V3, latent", 128, 1, 576, num_latent=512),
)


def all_works(target: Target, shapes: tuple[Shape, ...] = SHAPES) -> Iterator[Work]:
    """Yield attention in single steps and in prompts, and what stores keys and values."""
    for shape in shapes:
        for kv in ("bfloat16", "fp8_e4m3"):
            for batch, context in shape.steps:
                yield from decode(shape, kv, batch, context, target)
            if not shape.num_latent:  # several tokens of latent attention are a prompt
                yield from decode(shape, kv, 32, 1024, target, tokens=4)
            yield _prefill(shape, kv, 2048, target)
            if shape.dim != 256 or shapes is SHAPES:  # nothing that heads of 128 do not have
                yield storing(shape, kv, 256, target)
        if shape.dim == 128:
            yield _prefill(shape, "bfloat16", 2048, target, is_fixed=True)
            yield from decode(shape, "bfloat16", 32, 1024, target, is_fixed=True)
            if shapes is not SHAPES:  # what differs in the kernel, and in no time that is reckoned
                yield from decode(shape, "int8", 32, 1024, target)
                yield _prefill(shape, "int8", 2048, target)
                yield storing(shape, "int8", 256, target)
        if shapes is not SHAPES and not shape.num_latent:
            name = f"{shape.name} in float32"
            yield from _of_float32(replace(shape, name=name, dtype=torch.float32), target)


def _of_float32(shape: Shape, target: Target) -> Iterator[Work]:
    """Yield what is compiled of models of float32, whose times nobody reckons."""
    for kv, is_fixed in itertools.product(("float32", "fp8_e4m3", "int8"), (False, True)):
        yield from decode(shape, kv, 32, 1024, target, is_fixed=is_fixed)
        yield _prefill(shape, kv, 2048, target, is_fixed=is_fixed)


def decode(
    shape: Shape,
    kv: str,
    batch: int,
    context: int,
    target: Target,
    *,
    is_fixed: bool = False,
    tokens: int = 1,
) -> Iterator[Work]:
    """Yield steps of one token of each sequence, or of several to be verified."""
    num_tokens = batch * tokens
    part = Part(*_step(batch, context), 0, batch, num_tokens, context, uniform_tokens=tokens)
    launches = _plan(shape, kv, num_tokens, part, target, is_fixed=is_fixed)
    seen = min(context, (shape.reach.window or context) + tokens - 1)
    read = batch * seen * shape.row_bytes(kv, shape.kv_heads)
    own = shape.dtype.itemsize * num_tokens * shape.heads * (shape.dim + shape.value_dim)
    name = f"{shape.name}, {kv}, {batch} x {context}" + (", fixed" if is_fixed else "")
    kind, name = ("decode", name) if tokens == 1 else ("verify", f"{name}, {tokens} tokens each")
    operations = 2.0 * num_tokens * seen * shape.heads * (shape.dim + shape.value_dim)
    partial = sum(launch.arguments["SEGMENTS"] for launch in launches[1:]) * own * 2
    tile = _tile(shape, kv, launches[0])
    yield Work(
        f"{kind} {name}", launches[0], read + own + partial, operations, shape.dim, kind,
        tile.padding, seen / launches[0].arguments["SEGMENTS"] / tile.keys, tile.num_bytes,
    )  # fmt: skip
    for launch in launches[1:]:
        yield Work(f"combine {name}", launch, partial + own / 2, 0, shape.dim, "combine")


def _prefill(shape: Shape, kv: str, length: int, target: Target, *, is_fixed: bool = False) -> Work:
    part = Part(*_step(1, length), 0, 1, length, length)
    (launch,) = _plan(shape, kv, length, part, target, is_fixed=is_fixed)
    window = min(length, shape.reach.window or length)
    pairs = window * (window + 1) / 2 + (length - window) * window
    read = length * shape.row_bytes(kv, shape.kv_heads)
    own = shape.dtype.itemsize * length * shape.heads * (shape.dim + shape.value_dim)
    name = f"prefill {shape.name}, {kv}, {length}" + (", fixed" if is_fixed else "")
    tile = _tile(shape, kv, launch)
    programs = launch.grid[0] * launch.grid[1]
    tiles = pairs / tile.keys * shape.heads / tile.rows / programs
    operations = 2.0 * pairs * shape.heads * (shape.dim + shape.value_dim)
    return Work(
        name, launch, read + own, operations, shape.dim, "prefill", tile.padding, tiles, tile.num_bytes
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Tile:
    rows: int
    keys: int
    padding: float
    num_bytes: float


def _tile(shape: Shape, kv: str, launch: Launch) -> _Tile:
    rows, keys = launch.arguments["M"], launch.arguments["N"]
    used = launch.arguments["TOKENS"] * launch.arguments["GROUP"]
    return _Tile(rows, keys, rows / used, keys * shape.row_bytes(kv, 1))


def storing(shape: Shape, kv: str, num_tokens: int, target: Target) -> Work:
    """Return what normalises, turns and stores heads."""
    keys = _heads(num_tokens, shape.kv_heads, shape.dim)
    if shape.num_latent:  # queries and keys come turned
        slots = torch.empty(num_tokens, dtype=torch.int64, device=META)
        launch = plan_storing(keys, None, _pages(shape, kv), slots, target)
        moved = num_tokens * (2 * shape.dim + shape.row_bytes(kv, 1))
        return Work(f"store {shape.name}, {kv}, {num_tokens}", launch, moved, 0, shape.dim, "store")
    queries = _heads(num_tokens, shape.heads, shape.dim)
    angles = torch.empty(4096, shape.dim // 2, device=META)
    weight = torch.empty(shape.dim, dtype=torch.bfloat16, device=META)
    positions = torch.empty(num_tokens, dtype=torch.int32, device=META)
    launch = plan_storing(
        keys,
        keys,
        _pages(shape, kv),
        torch.empty(num_tokens, dtype=torch.int64, device=META),
        target,
        queries=queries,
        turned=queries,
        turn=Turn(angles, angles, positions, (weight, weight), 1e-6),
    )
    rows = shape.row_bytes(kv, shape.kv_heads)
    moved = num_tokens * (2 * (2 * shape.heads + 2 * shape.kv_heads) * shape.dim + rows)
    return Work(f"store {shape.name}, {kv}, {num_tokens}", launch, moved, 0, shape.dim, "store")


def _plan(
    shape: Shape, kv: str, num_tokens: int, part: Part, target: Target, *, is_fixed: bool
) -> list[Launch]:
    queries = _heads(num_tokens, shape.heads, shape.dim).to(shape.dtype)
    output = _heads(num_tokens, shape.heads, shape.value_dim).to(shape.dtype)
    sinks = torch.empty(shape.heads, device=META) if shape.has_sinks else None
    return plan_attention(
        shape.layer, queries, _pages(shape, kv), part, output, target, sinks=sinks, is_fixed=is_fixed
    )  # fmt: skip


def _step(num_sequences: int, context: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    shapes = ((num_sequences, -(-context // PAGE)), (num_sequences + 1,), (num_sequences,))
    tables, starts, lens = (torch.empty(s, dtype=torch.int32, device=META) for s in shapes)
    return tables, starts, lens


def _heads(num_tokens: int, heads: int, dim: int) -> torch.Tensor:
    return torch.empty(num_tokens, heads, dim, dtype=torch.bfloat16, device=META)


def _pages(shape: Shape, kv: str) -> Pages:
    row = KV_FORMATS[kv].row_bytes(shape.kv_heads, shape.dim)
    plane = torch.empty(1024, PAGE * row, dtype=torch.uint8, device=META)
    return Pages.view(
        (plane, plane),
        KV_FORMATS[kv],
        num_kv_heads=shape.kv_heads,
        head_dim=shape.dim,
        page_size=PAGE,
    )
