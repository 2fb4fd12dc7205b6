"""Queries and keys normalised and turned, keys and values stored in their pages: one kernel.

Legend: T tokens, H query heads, Hkv key/value heads, D head dim, R of them turned, P pages, B tokens of a
page. A page is (Hkv, B, D) numbers, and where these are scaled (Hkv, B) float32 behind them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from exo_engine.kernels.triton.numbers import (
    LARGEST_E4M3,
    LARGEST_INT8,
    LEAST_SCALE,
    encode_e4m3,
    encode_int8,
)
from exo_engine.kernels.triton.overlap_kernels import wait


@triton.jit(do_not_specialize_on_alignment=["slots", "positions"])
def prepare_heads(
    queries,  # (T, H, D), rows of `query_stride`
    keys,  # (T, Hkv, D), rows of `key_stride`
    values,  # (T, Hkv, D), rows of `value_stride`
    turned,  # (T, H, D): the queries that come out
    key_pages,  # (P, page_stride) numbers
    value_pages,
    key_scales,  # (P, scale_stride) float32: the same bytes
    value_scales,
    slots,  # (T,) int64: page * B + place; below 0: the token is not stored
    positions,  # (T,) int32
    cosines,  # (positions, R / 2) float32
    sines,
    query_weight,  # (D,)
    key_weight,
    eps,
    query_stride,
    key_stride,
    value_stride,
    page_stride,
    scale_stride,
    HEADS: tl.constexpr,  # 0: there are no queries
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    TURNED: tl.constexpr,  # R; 0: nothing is turned
    PAGE: tl.constexpr,
    TILE: tl.constexpr,  # heads of a program
    HAS_NORM: tl.constexpr,
    STORED: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """Do one tile of heads of one token: first those of queries, then keys, then values."""
    wait(OVERLAPS)
    token = tl.program_id(0)
    tile = tl.program_id(1)
    query_tiles: tl.constexpr = (HEADS + TILE - 1) // TILE
    kv_tiles: tl.constexpr = (KV_HEADS + TILE - 1) // TILE
    row = token.to(tl.int64)
    dims = tl.arange(0, DIM_TILE)
    if tile < query_tiles:
        heads = tile * TILE + tl.arange(0, TILE)
        is_number = (heads < HEADS)[:, None] & (dims < DIM)[None, :]
        states = _turn(
            queries + row * query_stride, heads, is_number, positions + token, cosines, sines,
            query_weight, eps, DIM, DIM_TILE, TURNED, HAS_NORM,
        )  # fmt: skip
        place = row * (HEADS * DIM) + (heads * DIM)[:, None] + dims[None, :]
        tl.store(turned + place, states.to(turned.dtype.element_ty), mask=is_number)
    else:
        slot = tl.load(slots + token)
        is_value = tile >= query_tiles + kv_tiles
        heads = (tile - query_tiles) % kv_tiles * TILE + tl.arange(0, TILE)
        is_number = (heads < KV_HEADS)[:, None] & (dims < DIM)[None, :]
        if slot >= 0:
            page = slot // PAGE
            place = slot % PAGE
            if is_value:
                offsets = (heads * DIM)[:, None] + dims[None, :]
                given = tl.load(values + row * value_stride + offsets, mask=is_number, other=0.0)
                _store(
                    value_pages + page * page_stride, value_scales + page * scale_stride, place,
                    given.to(tl.float32), heads, is_number, KV_HEADS, DIM, DIM_TILE, PAGE, STORED,
                )  # fmt: skip
            else:
                turned_keys = _turn(
                    keys + row * key_stride, heads, is_number, positions + token, cosines, sines,
                    key_weight, eps, DIM, DIM_TILE, TURNED, HAS_NORM,
                )  # fmt: skip
                # As attention would see them without a cache.
                rounded = turned_keys.to(keys.dtype.element_ty).to(tl.float32)
                _store(
                    key_pages + page * page_stride, key_scales + page * scale_stride, place,
                    rounded, heads, is_number, KV_HEADS, DIM, DIM_TILE, PAGE, STORED,
                )  # fmt: skip


@triton.jit
def _turn(
    source, heads, is_number, position, cosines, sines, weight, eps,
    DIM: tl.constexpr, DIM_TILE: tl.constexpr, TURNED: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    """Load heads, normalise and turn them: (heads, D) float32. Pairs are d and d + R / 2."""
    dims = tl.arange(0, DIM_TILE)
    offsets = (heads * DIM)[:, None]
    states = tl.load(source + offsets + dims[None, :], mask=is_number, other=0.0).to(tl.float32)
    factors = tl.full((heads.shape[0], 1), 1.0, tl.float32)
    if HAS_NORM:
        squares = tl.sum(states * states, axis=1) / DIM
        factors = tl.rsqrt(squares + eps)[:, None]
        weights = tl.load(weight + dims, mask=dims < DIM, other=0.0).to(tl.float32)
        states = states * factors * weights[None, :]
    if TURNED > 0:
        half: tl.constexpr = TURNED // 2
        is_turned = dims < TURNED
        others = tl.where(dims < half, dims + half, dims - half)
        angle = tl.load(position).to(tl.int64) * half + dims % half
        cos = tl.load(cosines + angle, mask=is_turned, other=1.0)
        sin = tl.load(sines + angle, mask=is_turned, other=0.0)
        pairs = tl.load(
            source + offsets + others[None, :], mask=is_number & is_turned[None, :], other=0.0
        ).to(tl.float32)
        if HAS_NORM:
            other_weights = tl.load(weight + others, mask=is_turned, other=0.0).to(tl.float32)
            pairs = pairs * factors * other_weights[None, :]
        signed = tl.where(dims < half, -sin, sin)
        states = states * cos[None, :] + pairs * signed[None, :]
    return states


@triton.jit
def _store(
    page, scales, place, states, heads, is_number,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, DIM_TILE: tl.constexpr, PAGE: tl.constexpr,
    STORED: tl.constexpr,
):  # fmt: skip
    """Store heads (heads, D) float32 at a place of a page; with their scales, if they have any."""
    dims = tl.arange(0, DIM_TILE)
    offsets = (heads * (PAGE * DIM))[:, None] + place * DIM + dims[None, :]
    if STORED == "plain":
        tl.store(page + offsets, states.to(page.dtype.element_ty), mask=is_number)
    else:
        largest: tl.constexpr = LARGEST_E4M3 if STORED == "e4m3" else LARGEST_INT8
        most = tl.max(tl.abs(states), axis=1)
        factors = tl.div_rn(
            tl.maximum(most, LEAST_SCALE), tl.full((heads.shape[0],), largest, tl.float32)
        )
        numbers = tl.div_rn(states, factors[:, None] + tl.zeros((1, DIM_TILE), tl.float32))
        codes = encode_e4m3(numbers) if STORED == "e4m3" else encode_int8(numbers)
        tl.store(page + offsets, codes, mask=is_number)
        first = (KV_HEADS * PAGE * DIM) // 4
        tl.store(scales + first + heads * PAGE + place, factors, mask=heads < KV_HEADS)
