"""Attention over pages: one kernel for one token or many, whole contexts or segments of them.

A program has a tile of rows, which are the query heads of one key/value head for some tokens of one sequence,
and goes over the keys that they see, tile by tile, with a running maximum and sum (Milakov and
Gimelshein 2018; Dao 2022). Where contexts are split, each program has one segment and `combine_segments`
puts them together. Tiles begin at multiples of their size, so what is in one depends on the
position alone. Scores are in base 2. Most tiles are seen by all rows as a whole, and nothing of them is left out by comparing.

Bytes beside queries of bfloat16 become float16, which takes half of the instructions that bfloat16 takes. Queries
are divided by a power of two for it, and weights by the largest scale of values so far, so that neither leaves its
range.

Legend: T tokens, S sequences, H heads, G query heads per key/value head, D head dim, P pages, B tokens
of a page, M rows of a tile, N keys of a tile, C segments. A page is (Hkv, B, D) numbers, and where these
are scaled (Hkv, B) float32 behind them.

In latent attention all query heads read one row per token, whose first D numbers are the values; the R behind them
(`TAIL`) belong to the keys alone. Scores are the sum of two products, as tiles have powers of two, and
each row is read once. A program has `GROUP` of the query heads there.
"""

from __future__ import annotations

import triton
import triton.language as tl

from exo_engine.kernels.triton.numbers import LEAST_SCALE, decode_e4m3, multiply, unpack_bytes
from exo_engine.kernels.triton.overlap_kernels import wait
from exo_engine.kernels.triton.tile_kernels import find_tile

LOG2_E = tl.constexpr(1.4426950408889634)


# What differs from step to step is no reason to compile anew; a step's tables begin anywhere.
@triton.jit(
    do_not_specialize=["first_sequence", "num_sequences", "table_stride"],
    do_not_specialize_on_alignment=["tables", "query_starts", "context_lens"],
)
def attend_pages(
    queries,  # (T, H, D + R), rows of `query_stride`
    keys,  # (P, page_stride) numbers
    values,  # not read if R > 0
    key_scales,  # (P, scale_stride) float32: the same bytes
    value_scales,
    output,  # (T, H, D)
    partial_sums,  # (T, H, C, D) float32, if split
    partial_stats,  # (T, H, C, 2) float32: maximum and sum
    sinks,  # (H,) float32
    tables,  # (S, table_stride) int32
    query_starts,  # (S + 1,) int32
    context_lens,  # (S,) int32
    first_sequence,
    num_sequences,
    query_stride,
    page_stride,
    scale_stride,
    table_stride,
    scale,
    soft_cap,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of a program
    DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    TAIL: tl.constexpr,  # R; 0: values are stored beside the keys
    TAIL_TILE: tl.constexpr,
    PAGE: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    TOKENS: tl.constexpr,  # of a tile; all that a sequence has if IS_UNIFORM
    SEGMENT: tl.constexpr,  # tokens of a segment; 0: contexts are split into SEGMENTS equal parts
    SEGMENTS: tl.constexpr,  # 1: not split
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    STORED: tl.constexpr,  # "plain", "e4m3" or "int8"
    BYTES: tl.constexpr,  # how they become numbers: "integers", "cast", "packed" or "packed integers"
    IS_UNIFORM: tl.constexpr,
    OVERLAPS: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
):
    """Attend the tokens of sequences [first_sequence, num_sequences)."""
    wait(OVERLAPS)
    index = tl.program_id(0)
    head_tile = tl.program_id(1)
    if IS_UNIFORM:
        sequence = first_sequence + index
        first_token = 0
    else:
        sequence, first_token = find_tile(
            query_starts, index, first_sequence, num_sequences, TOKENS
        )
    query_start = tl.load(query_starts + sequence)
    num_queries = tl.load(query_starts + sequence + 1) - query_start
    context = tl.load(context_lens + sequence)
    if first_token < num_queries:
        rows = tl.arange(0, M)
        dims = tl.arange(0, DIM_TILE)
        tokens = first_token + rows // GROUP
        heads = head_tile * GROUP + rows % GROUP
        is_row = (rows < TOKENS * GROUP) & (tokens < num_queries)
        if HEADS % GROUP != 0:
            is_row = is_row & (heads < HEADS)
        positions = context - num_queries + tokens
        places = (query_start + tokens).to(tl.int64)
        is_number = is_row[:, None] & (dims < DIM)[None, :]
        own_rows = queries + places[:, None] * query_stride + (heads * (DIM + TAIL))[:, None]
        own = tl.load(own_rows + dims[None, :], mask=is_number, other=0.0)
        own_tail = own
        if TAIL > 0:
            tails = tl.arange(0, TAIL_TILE)
            is_own_tail = is_row[:, None] & (tails < TAIL)[None, :]
            own_tail = tl.load(own_rows + DIM + tails[None, :], mask=is_own_tail, other=0.0)
        seen_from = _first_seen(positions, WINDOW, CHUNK)
        begin = _first_seen(context - num_queries + first_token, WINDOW, CHUNK)
        end = tl.minimum(context, context - num_queries + first_token + TOKENS)
        origin, length = _segments(begin, end, N, SEGMENT, SEGMENTS)
        table = tables + sequence.to(tl.int64) * table_stride
        kv_head = head_tile if KV_HEADS > 1 else 0
        in_page = kv_head * (PAGE * DIM)
        scales_in_page = (KV_HEADS * PAGE * (DIM + TAIL)) // 4 + kv_head * PAGE
        number_type: tl.constexpr = _type_of_numbers(
            queries.dtype.element_ty, STORED, BYTES, SEGMENT
        )
        has_unit: tl.constexpr = STORED != "plain" and number_type == tl.float16 and SEGMENT == 0
        own, own_tail, row_scales = _as_operands(own, own_tail, scale, number_type, TAIL)
        last = tl.minimum(context, context - num_queries + first_token + TOKENS) - 1
        whole_from = tl.maximum(begin, _first_seen(last, WINDOW, CHUNK))
        whole_to = context - num_queries + first_token + 1

        maxima = tl.full((M,), float("-inf"), tl.float32)
        sums = tl.zeros((M,), tl.float32)
        totals = tl.zeros((M, DIM_TILE), tl.float32)
        segment = tl.program_id(2)
        if SEGMENTS > 1 or SEGMENT == 0:
            stop = origin + (segment + 1) * length
            maxima, sums, totals = _attend_segment(
                own, own_tail, maxima, sums, totals, origin + segment * length, tl.minimum(stop, end),
                begin, end, whole_from, whole_to, positions, seen_from, table, keys, values, key_scales, value_scales,
                in_page, scales_in_page, page_stride, scale_stride, row_scales, soft_cap,
                number_type, DIM, DIM_TILE, TAIL, TAIL_TILE, PAGE, M, N, WINDOW + CHUNK > 0, has_unit, HAS_CAP, STORED, BYTES,
                IS_INTERPRETED,
            )  # fmt: skip
        else:  # all segments, one after the other, as `combine_segments` puts them together
            for start in range(origin, end, SEGMENT):
                new_maxima, new_sums, new_totals = _attend_segment(
                    own, own_tail, tl.full((M,), float("-inf"), tl.float32), tl.zeros((M,), tl.float32),
                    tl.zeros((M, DIM_TILE), tl.float32), start, tl.minimum(start + SEGMENT, end),
                    begin, end, whole_from, whole_to, positions, seen_from, table, keys, values, key_scales, value_scales,
                    in_page, scales_in_page, page_stride, scale_stride, row_scales, soft_cap,
                    number_type, DIM, DIM_TILE, TAIL, TAIL_TILE, PAGE, M, N, WINDOW + CHUNK > 0, has_unit, HAS_CAP, STORED, BYTES,
                    IS_INTERPRETED,
                )  # fmt: skip
                maxima, before, after = _weigh(maxima, new_maxima)
                sums = sums * before + new_sums * after
                totals = totals * before[:, None] + new_totals * after[:, None]

        if SEGMENTS > 1:
            if origin + segment * length < end:
                part = (places * HEADS + heads) * SEGMENTS + segment
                tl.store(partial_stats + part * 2, maxima, mask=is_row)
                tl.store(partial_stats + part * 2 + 1, sums, mask=is_row)
                tl.store(partial_sums + part[:, None] * DIM + dims[None, :], totals, mask=is_number)
        else:
            if HAS_SINKS:
                sink = tl.load(sinks + heads, mask=is_row, other=0.0) * LOG2_E
                maxima, before, after = _weigh(maxima, sink)
                sums = sums * before + after
                totals = totals * before[:, None]
            sums = tl.where(sums == 0, 1.0, sums)  # what fills a batch up has no keys
            place = (places * HEADS + heads)[:, None] * DIM + dims[None, :]
            tl.store(
                output + place, (totals / sums[:, None]).to(output.dtype.element_ty), mask=is_number
            )


@triton.jit(do_not_specialize_on_alignment=["context_lens"])
def combine_segments(
    partial_sums,  # (T, H, C, D) float32
    partial_stats,  # (T, H, C, 2) float32
    output,  # (T, H, D)
    sinks,  # (H,) float32
    context_lens,  # (S,) int32
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    N: tl.constexpr,
    TOKENS: tl.constexpr,  # of each sequence
    SEGMENT: tl.constexpr,
    SEGMENTS: tl.constexpr,
    SEGMENTS_TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """Put the segments of one token and head together.

    Segments of a fixed size go one after the other, as `attend_pages` goes over all of them in one program.
    """
    wait(OVERLAPS)
    head = tl.program_id(1)
    context = tl.load(context_lens + tl.program_id(0) // TOKENS)
    begin = _first_seen(context - TOKENS, WINDOW, CHUNK)
    origin, length = _segments(begin, context, N, SEGMENT, SEGMENTS)
    num_segments = tl.cdiv(context - origin, length)
    row = tl.program_id(0).to(tl.int64) * HEADS + head
    dims = tl.arange(0, DIM_TILE)
    is_dim = dims < DIM
    if SEGMENT > 0:
        # Vectors of one number: the arithmetic of `attend_pages`.
        maximum = tl.full((1,), float("-inf"), tl.float32)
        total = tl.zeros((1,), tl.float32)
        sums = tl.zeros((DIM_TILE,), tl.float32)
        for segment in range(num_segments):
            part = row * SEGMENTS + segment
            new_maximum = tl.load(partial_stats + part * 2 + tl.arange(0, 1))
            new_total = tl.load(partial_stats + part * 2 + 1 + tl.arange(0, 1))
            new_sums = tl.load(partial_sums + part * DIM + dims, mask=is_dim, other=0.0)
            maximum, before, after = _weigh(maximum, new_maximum)
            total = total * before + new_total * after
            sums = sums * before + new_sums * after
    else:
        segments = tl.arange(0, SEGMENTS_TILE)
        is_segment = segments < num_segments
        parts = row * SEGMENTS + segments
        maxima = tl.load(partial_stats + parts * 2, mask=is_segment, other=float("-inf"))
        totals = tl.load(partial_stats + parts * 2 + 1, mask=is_segment, other=0.0)
        found = tl.load(
            partial_sums + parts[:, None] * DIM + dims[None, :],
            mask=is_segment[:, None] & is_dim[None, :],
            other=0.0,
        )
        maximum = tl.max(maxima, axis=0)
        maximum = tl.where(num_segments > 0, maximum, 0.0)
        weights = tl.exp2(maxima - maximum)
        total = tl.sum(totals * weights, axis=0) + tl.zeros((1,), tl.float32)
        sums = tl.sum(found * weights[:, None], axis=0)
        maximum = maximum + tl.zeros((1,), tl.float32)
    if HAS_SINKS:
        sink = tl.load(sinks + head + tl.arange(0, 1)) * LOG2_E
        maximum, before, after = _weigh(maximum, sink)
        total = total * before + after
        sums = sums * before
    total = tl.where(total == 0, 1.0, total)
    tl.store(output + row * DIM + dims, (sums / total).to(output.dtype.element_ty), mask=is_dim)


@triton.jit
def _attend_segment(
    own, own_tail, maxima, sums, totals, start, stop, begin, end, whole_from, whole_to, positions, seen_from,
    table, keys, values, key_scales, value_scales, in_page, scales_in_page, page_stride, scale_stride,
    row_scales, soft_cap, number_type: tl.constexpr, DIM: tl.constexpr, DIM_TILE: tl.constexpr,
    TAIL: tl.constexpr, TAIL_TILE: tl.constexpr, PAGE: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    IS_BOUNDED: tl.constexpr, HAS_UNIT: tl.constexpr, HAS_CAP: tl.constexpr, STORED: tl.constexpr, BYTES: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Go over the keys [start, stop), of which those in [begin, end) may be read.

    All rows see all keys of [whole_from, whole_to).
    """
    unit = tl.zeros((), tl.float32) + LEAST_SCALE  # of totals, if HAS_UNIT: values' largest scale
    whole_start = start
    if IS_BOUNDED:
        whole_start = tl.minimum(tl.maximum(tl.cdiv(whole_from, N) * N, start), stop)
        maxima, sums, totals, unit = _attend_tiles(
            own, own_tail, maxima, sums, totals, unit, start, whole_start, begin, end, positions, seen_from,
            table, keys, values, key_scales, value_scales, in_page, scales_in_page, page_stride, scale_stride,
            row_scales, soft_cap, number_type, DIM, DIM_TILE, TAIL, TAIL_TILE, PAGE, M, N, False, HAS_UNIT, HAS_CAP, STORED, BYTES,
            IS_INTERPRETED,
        )  # fmt: skip
    whole_stop = tl.maximum(tl.minimum(whole_to, stop) // N * N, whole_start)
    maxima, sums, totals, unit = _attend_tiles(
        own, own_tail, maxima, sums, totals, unit, whole_start, whole_stop, begin, end, positions, seen_from,
        table, keys, values, key_scales, value_scales, in_page, scales_in_page, page_stride, scale_stride,
        row_scales, soft_cap, number_type, DIM, DIM_TILE, TAIL, TAIL_TILE, PAGE, M, N, True, HAS_UNIT, HAS_CAP, STORED, BYTES,
        IS_INTERPRETED,
    )  # fmt: skip
    maxima, sums, totals, unit = _attend_tiles(
        own, own_tail, maxima, sums, totals, unit, whole_stop, stop, begin, end, positions, seen_from,
        table, keys, values, key_scales, value_scales, in_page, scales_in_page, page_stride, scale_stride,
        row_scales, soft_cap, number_type, DIM, DIM_TILE, TAIL, TAIL_TILE, PAGE, M, N, False, HAS_UNIT, HAS_CAP, STORED, BYTES,
        IS_INTERPRETED,
    )  # fmt: skip
    if HAS_UNIT:
        totals = totals * unit
    return maxima, sums, totals


@triton.jit
def _attend_tiles(
    own, own_tail, maxima, sums, totals, unit, start, stop, begin, end, positions, seen_from,
    table, keys, values, key_scales, value_scales, in_page, scales_in_page, page_stride, scale_stride,
    row_scales, soft_cap, number_type: tl.constexpr, DIM: tl.constexpr, DIM_TILE: tl.constexpr,
    TAIL: tl.constexpr, TAIL_TILE: tl.constexpr, PAGE: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    IS_WHOLE: tl.constexpr, HAS_UNIT: tl.constexpr, HAS_CAP: tl.constexpr, STORED: tl.constexpr, BYTES: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Go over tiles of the keys [start, stop); `IS_WHOLE`: all of them may be read, and are seen by all rows."""
    dims = tl.arange(0, DIM_TILE)
    tails = tl.arange(0, TAIL_TILE)
    for first in range(start, stop, N):
        places = first + tl.arange(0, N)
        is_held = (places >= begin) & (places < end)
        if IS_WHOLE:
            pages = tl.load(table + places // PAGE).to(tl.int64)
        else:
            pages = tl.load(table + places // PAGE, mask=is_held, other=0).to(tl.int64)
        rows = pages * page_stride + in_page + (places % PAGE) * (DIM + TAIL)
        scale_rows = pages * scale_stride + scales_in_page + places % PAGE
        offsets = rows[:, None] + dims[None, :]
        stored = _load_rows(keys + offsets, is_held, dims, DIM, DIM_TILE, IS_WHOLE)
        numbers = _as_numbers(stored, number_type, STORED, BYTES)
        scores = tl.zeros((M, N), tl.float32)
        scores = multiply(own, tl.trans(numbers), scores, IS_INTERPRETED)
        if TAIL > 0:
            of_tails = keys + rows[:, None] + (DIM + tails)[None, :]
            stored = _load_rows(of_tails, is_held, tails, TAIL, TAIL_TILE, IS_WHOLE)
            key_tails = _as_numbers(stored, number_type, STORED, BYTES)
            scores = multiply(own_tail, tl.trans(key_tails), scores, IS_INTERPRETED)
        scores = scores * row_scales
        if STORED != "plain":
            scores = scores * _load_scales(key_scales + scale_rows, is_held, IS_WHOLE)[None, :]
        if HAS_CAP:  # tanh(x) = 1 - 2 / (1 + exp(2 x))
            turned = tl.exp2(scores * (2 / soft_cap))
            scores = (soft_cap * LOG2_E) * (1 - 2 / (1 + turned))
        if not IS_WHOLE:
            is_seen = (places[None, :] <= positions[:, None]) & (
                places[None, :] >= seen_from[:, None]
            )
            scores = tl.where(is_seen & is_held[None, :], scores, float("-inf"))
        maxima, before, _ = _weigh(maxima, tl.max(scores, axis=1))
        # A row that has seen nothing yet has no maximum.
        weights = tl.exp2(scores - tl.where(maxima == float("-inf"), 0.0, maxima)[:, None])
        sums = sums * before + tl.sum(weights, axis=1)
        if STORED != "plain":
            factors = _load_scales(value_scales + scale_rows, is_held, IS_WHOLE)
            if HAS_UNIT:
                larger = tl.maximum(unit, tl.max(factors, axis=0))
                before = before * (unit / larger)
                factors = factors / larger
                unit = larger
            weights = weights * factors[None, :]
        totals = totals * before[:, None]
        if TAIL == 0:
            stored = _load_rows(values + offsets, is_held, dims, DIM, DIM_TILE, IS_WHOLE)
            numbers = _as_numbers(stored, number_type, STORED, BYTES)
        totals = multiply(weights.to(number_type), numbers, totals, IS_INTERPRETED)
    return maxima, sums, totals, unit


@triton.jit
def _load_rows(
    pointers, is_held, dims, DIM: tl.constexpr, DIM_TILE: tl.constexpr, IS_WHOLE: tl.constexpr
):
    """Load rows (N, DIM_TILE); what lies behind DIM, and in rows that may not be read, is 0."""
    if IS_WHOLE:
        if DIM == DIM_TILE:
            found = tl.load(pointers)
        else:
            found = tl.load(pointers, mask=(dims < DIM)[None, :], other=0)
    else:
        found = tl.load(pointers, mask=is_held[:, None] & (dims < DIM)[None, :], other=0)
    return found


@triton.jit
def _load_scales(pointers, is_held, IS_WHOLE: tl.constexpr):
    if IS_WHOLE:
        found = tl.load(pointers)
    else:
        found = tl.load(pointers, mask=is_held, other=0.0)
    return found


@triton.jit
def _as_operands(own, own_tail, scale, number_type: tl.constexpr, TAIL: tl.constexpr):
    """Return queries as what keys are multiplied with, and what scores (M, N) are to be multiplied by, in base 2.

    Where they become float16 each row is divided by the power of two below its largest number.
    """
    if own.dtype == number_type:
        row_scales = scale * LOG2_E
    else:
        largest = tl.max(tl.abs(own.to(tl.float32)), axis=1)
        if TAIL > 0:
            largest = tl.maximum(largest, tl.max(tl.abs(own_tail.to(tl.float32)), axis=1))
        exponents = (largest.to(tl.uint32, bitcast=True) >> 23).to(tl.int32) & 0xFF
        exponents = tl.minimum(tl.maximum(exponents, 1), 253)
        power = (exponents << 23).to(tl.float32, bitcast=True)[:, None]
        inverse = ((254 - exponents) << 23).to(tl.float32, bitcast=True)[:, None]
        own = (own.to(tl.float32) * inverse).to(number_type)
        own_tail = (own_tail.to(tl.float32) * inverse).to(number_type)
        row_scales = power * (scale * LOG2_E)
    return own, own_tail, row_scales


@triton.jit
def _segments(begin, end, N: tl.constexpr, SEGMENT: tl.constexpr, SEGMENTS: tl.constexpr):
    """Return where the first segment begins, and the length of each."""
    if SEGMENT > 0:
        return begin // SEGMENT * SEGMENT, SEGMENT
    origin = begin // N * N
    return origin, tl.maximum(tl.cdiv(end - origin, SEGMENTS * N), 1) * N


@triton.constexpr_function
def _type_of_numbers(own, stored, how, segment):
    """Return the type in which queries of type `own` are multiplied by keys.

    With segments of a fixed size it is their own: by what weights are divided depends on keys that not every row sees.
    """
    is_half = own == tl.bfloat16 and stored != "plain" and how != "integers" and not segment
    return tl.float16 if is_half else own


@triton.jit
def _as_numbers(stored, number_type: tl.constexpr, STORED: tl.constexpr, BYTES: tl.constexpr):
    is_packed: tl.constexpr = number_type == tl.float16 and BYTES != "integers" and BYTES != "cast"
    if STORED == "plain":
        if stored.dtype == number_type:
            numbers = stored
        else:
            numbers = stored.to(tl.float32).to(number_type)
    elif is_packed:
        numbers = unpack_bytes(stored, STORED, BYTES)
    elif STORED == "e4m3":
        numbers = decode_e4m3(stored, number_type, BYTES == "cast" or BYTES == "packed")
    else:
        numbers = stored.to(tl.float32).to(number_type)
    return numbers


@triton.jit
def _weigh(maxima, new_maxima):
    """Return the larger maxima, and by what sums made with each of the two are to be multiplied."""
    larger = tl.maximum(maxima, new_maxima)
    base = tl.where(larger == float("-inf"), 0.0, larger)
    return larger, tl.exp2(maxima - base), tl.exp2(new_maxima - base)


@triton.jit
def _first_seen(positions, WINDOW: tl.constexpr, CHUNK: tl.constexpr):
    """Return the first position that a token sees; `attention.layer.Reach` says it for the host."""
    if WINDOW > 0:
        return tl.maximum(positions - (WINDOW - 1), 0)
    if CHUNK > 0:
        return positions // CHUNK * CHUNK
    return positions * 0
