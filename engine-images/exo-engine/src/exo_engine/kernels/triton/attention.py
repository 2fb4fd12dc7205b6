"""How attention over pages is launched: tiles, and into how many segments contexts are split.

Legend: T tokens in step, S sequences, H heads, D head dim, M rows of a tile, N keys of a tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from exo_engine.kernels.triton.attention_kernels import attend_pages, combine_segments
from exo_engine.kernels.triton.launch import IS_INTERPRETED, Launch, Target, tile_of
from exo_engine.kernels.triton.pages import Pages

if TYPE_CHECKING:
    from exo_engine.attention.layer import AttentionLayer

MAX_HEAD_DIM = 256
MAX_LATENT = 512
"""Numbers of a latent; the turned part of its key may have `MAX_TAIL` more."""
MAX_TAIL = 128
FIXED_SEGMENT = 512
"""Tokens of a segment where results must not depend on the batch: a power of two, so that tiles of keys fill it."""
_MAX_SEGMENTS = 64
_FIXED_ROWS = 64
# Programs per processor that hide each other's waits.
_PROGRAMS = 4


@dataclass(frozen=True, slots=True)
class Part:
    """Sequences of a step that are computed in one launch."""

    tables: Tensor
    """(S, M) int32, of the layer's cache group."""
    query_starts: Tensor
    """(S + 1,) int32."""
    context_lens: Tensor
    """(S,) int32."""
    first_sequence: int
    num_sequences: int
    num_tokens: int
    """Of these sequences."""
    max_context: int
    uniform_tokens: int = 0
    """Tokens that each of them has, if all have as many; 0: they differ."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """How the work of one part is cut."""

    rows: int
    keys: int
    group: int
    """Query heads of a program."""
    tokens: int
    segment: int
    segments: int
    num_warps: int
    num_stages: int


def choose_tiles(
    layer: AttentionLayer,
    part: Part,
    target: Target,
    *,
    item_bytes: int,
    stored: str,
    is_fixed: bool,
) -> Tiles:
    """Decide how to cut a part's work.

    Args:
        layer: whose attention it is.
        part: the sequences.
        target: the GPU.
        item_bytes: of a number of a query.
        stored: how keys are, as `Pages` has it.
        is_fixed: cut in the same places whatever the batch is.
    """
    is_scaled = stored != "plain"
    if layer.num_latent:
        return _choose_latent_tiles(
            layer, part, target, item_bytes=item_bytes, is_scaled=is_scaled, is_fixed=is_fixed
        )
    if item_bytes > 2:
        return _choose_float32_tiles(layer, part, target, is_fixed=is_fixed)
    group = layer.num_heads // layer.num_kv_heads
    width = tile_of(layer.head_dim, 16) * item_bytes
    is_short = bool(part.uniform_tokens) and part.uniform_tokens * group <= 64
    if is_fixed:
        rows = tile_of(group, _FIXED_ROWS)
    elif is_short:
        rows = tile_of(part.uniform_tokens * group, 16)
    else:
        rows = tile_of(group, 128 if width <= 256 and target.shared_bytes > 131072 else 64)
    keys = 64 if width <= 256 else 32
    is_wide = not is_short and not is_fixed and not is_scaled and width <= 256
    if is_wide and target.is_nvidia and target.shared_bytes > 200000:
        keys = 128
    if is_scaled and not is_short and not is_fixed:
        # Bytes become numbers in registers, of which Triton 3.6 gives heads of 128 too few on 8.0.
        lacks_registers = target.is_nvidia and target.capability == 80 and width > 128
        keys = min(keys, 16 if lacks_registers else 32)
    # 128 threads have too few registers for these, as both supported releases of Triton give them out.
    is_small = target.is_nvidia and target.shared_bytes < 131072
    needs_threads = width > 256 or is_small
    if is_fixed:  # keys of the next segment would be counted twice
        keys = min(keys, FIXED_SEGMENT, 32)
    # With two stages Triton gives these 128 registers for 10.0, and moves some of them to memory.
    is_tight = is_scaled and 128 < width <= 256 and target.is_nvidia
    is_tight = is_tight and target.capability // 10 == 10
    tokens = part.uniform_tokens if is_short else max(1, rows // group)
    programs = layer.num_kv_heads
    segments = (
        _num_segments(layer, part, target, keys, programs, is_fixed=is_fixed) if is_short else 1
    )
    if is_fixed and target.is_nvidia and target.capability < 90:
        needs_threads = True
    num_warps = 8 if rows >= 128 or (needs_threads and (is_fixed or not is_short)) else 4
    num_stages = 3 if (is_short or is_tight or keys > 64) and not is_fixed else 2
    if is_short and not is_fixed and target.is_nvidia:
        keys, num_warps, num_stages = _short_shape(
            target, stored, rows, width, keys, is_split=segments > 1
        )
    return Tiles(
        rows=rows,
        keys=keys,
        group=group,
        tokens=tokens,
        segment=FIXED_SEGMENT if is_fixed else 0,
        segments=segments,
        num_warps=num_warps,
        num_stages=num_stages,
    )


def _short_shape(
    target: Target, stored: str, rows: int, width: int, keys: int, *, is_split: bool
) -> tuple[int, int, int]:
    """Return keys, warps and stages of a tile for few tokens on one of NVIDIA's GPUs.

    Those of 9.0 are measured on an H200. On others more would have Triton 3.6 or 3.7 move registers to memory.
    """
    is_hopper = target.capability == 90 and width <= 256
    if is_hopper and stored == "e4m3":
        return keys, 2 if rows == 16 else 4, 2
    is_small = target.shared_bytes < 131072
    if stored == "plain" and ((width <= 128 and is_small) or (is_hopper and is_split)):
        return keys, 4, 2  # with fewer registers more programs run at once
    if target.capability == 80 and stored != "plain":
        return min(keys, 32), 4, 2
    return keys, 4, 3


def _choose_float32_tiles(
    layer: AttentionLayer, part: Part, target: Target, *, is_fixed: bool
) -> Tiles:
    """Decide how to cut attention of float32.

    No tensor core of NVIDIA's multiplies it exactly, so a thread holds whole heads in registers: tiles are small, and
    with one stage the compiler keeps there no second tile of what bytes became.
    """
    group = layer.num_heads // layer.num_kv_heads
    rows = tile_of(group, 32 if layer.head_dim <= 128 else 16)
    is_short = 0 < part.uniform_tokens * group <= rows
    keys = min(16, FIXED_SEGMENT)
    segments = 1
    if is_short:
        programs = layer.num_kv_heads
        segments = _num_segments(layer, part, target, keys, programs, is_fixed=is_fixed)
    return Tiles(
        rows=tile_of(part.uniform_tokens * group, 16) if is_short and not is_fixed else rows,
        keys=keys,
        group=group,
        tokens=part.uniform_tokens if is_short else max(1, rows // group),
        segment=FIXED_SEGMENT if is_fixed else 0,
        segments=segments,
        num_warps=8,
        num_stages=1,
    )


def _choose_latent_tiles(
    layer: AttentionLayer,
    part: Part,
    target: Target,
    *,
    item_bytes: int,
    is_scaled: bool,
    is_fixed: bool,
) -> Tiles:
    """Decide how to cut latent attention, where sums and keys of a row are hundreds of numbers each.

    All query heads read the same rows, so a program has as many heads as its registers hold sums for.
    """
    is_large = target.shared_bytes > 131072 and item_bytes <= 2
    is_single = part.uniform_tokens == 1
    most = 64 if is_large and (not is_single or layer.num_heads > 16) and not is_fixed else 16
    rows = tile_of(min(layer.num_heads, most), 16) if is_single or is_fixed else most
    group = min(layer.num_heads, rows)
    keys = 32 if is_large and target.is_nvidia and not is_scaled else 16
    programs = -(-layer.num_heads // group)
    segments = (
        _num_segments(layer, part, target, keys, programs, is_fixed=is_fixed) if is_single else 1
    )
    return Tiles(
        rows=rows,
        keys=keys,
        group=group,
        tokens=1 if is_single else rows // group,
        segment=FIXED_SEGMENT if is_fixed else 0,
        segments=segments,
        num_warps=8 if rows > 16 or item_bytes > 2 else 4,
        num_stages=2 if item_bytes <= 2 else 1,  # see `_choose_float32_tiles`
    )


def _num_segments(
    layer: AttentionLayer,
    part: Part,
    target: Target,
    keys: int,
    programs: int,
    *,
    is_fixed: bool,
) -> int:
    """Return into how many segments contexts are split: a power of two, as each number is a kernel.

    `programs` is how many a sequence has for each segment.
    """
    reach = layer.reach
    longest = min(part.max_context, reach.window or reach.chunk or part.max_context)
    if is_fixed:  # what a window begins with may lie in a segment before
        extra = longest < part.max_context
        return tile_of(-(-longest // FIXED_SEGMENT) + extra)
    wanted = _PROGRAMS * target.num_processors // (part.num_sequences * programs)
    most = max(1, min(wanted, _MAX_SEGMENTS, longest // (2 * keys)))
    return tile_of(most + 1) // 2


def scratch_bytes(
    layer: AttentionLayer, num_tokens: int, max_context: int, *, is_fixed: bool
) -> int:
    """Return the most bytes that the segments of a step with `num_tokens` sequences take."""
    segments = -(-max_context // FIXED_SEGMENT) + 1 if is_fixed else _MAX_SEGMENTS
    return num_tokens * layer.num_heads * segments * (layer.value_dim + 2) * 4


def _bytes_on(target: Target) -> str:
    """Return how bytes become numbers on a GPU; see `attend_pages`."""
    # On 10.0 Triton compiles no product of a whole tile of these.
    if target.is_nvidia and target.capability // 10 != 10 and not IS_INTERPRETED:
        return "packed" if target.has_e4m3 else "packed integers"
    return "cast" if target.has_e4m3 else "integers"


def plan_attention(
    layer: AttentionLayer,
    queries: Tensor,
    pages: Pages,
    part: Part,
    output: Tensor,
    target: Target,
    *,
    sinks: Tensor | None = None,
    is_fixed: bool = False,
) -> list[Launch]:
    """Return what attends the queries of a part over pages, in order.

    Args:
        layer: whose attention it is.
        queries: (T, H, D); those of the whole step; of latent attention D + R numbers each.
        pages: where keys and values are.
        part: which sequences.
        output: (T, H, D), contiguous, of the queries' dtype.
        target: the GPU.
        sinks: (H,) float32.
        is_fixed: a token's result has the same bits whatever else is in the step.
    """
    tiles = choose_tiles(
        layer,
        part,
        target,
        item_bytes=queries.element_size(),
        stored=pages.stored,
        is_fixed=is_fixed,
    )
    is_uniform = part.uniform_tokens == tiles.tokens and part.uniform_tokens > 0
    is_split = tiles.segments > 1
    sums = stats = output
    if is_split:
        shape = (part.num_tokens, layer.num_heads, tiles.segments)
        sums = torch.empty((*shape, layer.value_dim), dtype=torch.float32, device=queries.device)
        stats = torch.empty((*shape, 2), dtype=torch.float32, device=queries.device)
    common: dict[str, Any] = {
        "partial_sums": sums,
        "partial_stats": stats,
        "output": output,
        "sinks": output if sinks is None else sinks,
        "context_lens": part.context_lens,
        "HEADS": layer.num_heads,
        "DIM": layer.value_dim,
        "DIM_TILE": tile_of(layer.value_dim, 16),
        "N": tiles.keys,
        "TOKENS": tiles.tokens,
        "SEGMENT": tiles.segment,
        "SEGMENTS": tiles.segments,
        "WINDOW": layer.reach.window or 0,
        "CHUNK": layer.reach.chunk or 0,
        "HAS_SINKS": sinks is not None,
        "OVERLAPS": target.overlaps,
    }
    num_sequences = part.num_sequences
    num_tiles = num_sequences if is_uniform else part.num_tokens // tiles.tokens + num_sequences
    own = {
        "queries": queries,
        "keys": pages.keys,
        "values": pages.values,
        "key_scales": pages.key_scales,
        "value_scales": pages.value_scales,
        "tables": part.tables,
        "query_starts": part.query_starts,
        "first_sequence": part.first_sequence,
        "num_sequences": part.first_sequence + num_sequences,
        "query_stride": queries.stride(0),
        "page_stride": pages.keys.stride(0),
        "scale_stride": pages.key_scales.stride(0),
        "table_stride": part.tables.stride(0),
        "scale": layer.scale,
        "soft_cap": layer.soft_cap or 1.0,
        "KV_HEADS": layer.num_kv_heads,
        "GROUP": tiles.group,
        "TAIL": layer.head_dim - layer.value_dim,
        "TAIL_TILE": tile_of(layer.head_dim - layer.value_dim, 16),
        "PAGE": pages.page_size,
        "M": tiles.rows,
        "HAS_CAP": layer.soft_cap is not None,
        "STORED": pages.stored,
        "BYTES": _bytes_on(target),
        "IS_UNIFORM": is_uniform,
        "IS_INTERPRETED": IS_INTERPRETED,
    }
    head_tiles = layer.num_kv_heads if not layer.num_latent else -(-layer.num_heads // tiles.group)
    grid = (num_tiles, head_tiles, tiles.segments)
    options = (tiles.num_warps, tiles.num_stages, not is_fixed)
    launches = [Launch(attend_pages, grid, {**common, **own}, *options)]
    if is_split:
        rest = {**common, "SEGMENTS_TILE": tile_of(tiles.segments)}
        rows = (part.num_tokens, layer.num_heads)
        launches.append(Launch(combine_segments, rows, rest, 2, 1, not is_fixed))
    return launches
