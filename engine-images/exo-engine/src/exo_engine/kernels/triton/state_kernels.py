"""The states of a Gated DeltaNet, moved on token by token: a sum has one order, in whatever chunks tokens come.

A program has some columns of one value head's matrix of one sequence, and goes over that sequence's tokens.

Legend: T tokens, S sequences, Hk key heads, H value heads, K key dim, V value dim.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize_on_alignment=["query_starts"])
def move_states(
    mixed,  # (T, 2 Hk K + H V) float32: queries, keys and values of all heads after one another
    log_decays,  # (T, H) float32
    rates,  # (T, H) float32
    matrices,  # (S, H, K, V) float32
    moved,  # (S, H, K, V)
    results,  # (T, H, V) float32
    query_starts,  # (S + 1,) int32
    KEY_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    KEYS: tl.constexpr,  # the power of two that holds K
    COLUMNS: tl.constexpr,  # of a program
):
    """Move one head of one sequence on by the step's tokens: S = a S + b k (v - a S k)."""
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    key_head = head // (HEADS // KEY_HEADS)
    places = tl.arange(0, KEYS)
    columns = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    is_key, is_column = places < K, columns < V
    own = ((sequence * HEADS + head) * K + places[:, None]) * V + columns[None, :]
    is_own = is_key[:, None] & is_column[None, :]
    state = tl.load(matrices + own, mask=is_own, other=0.0)
    start = tl.load(query_starts + sequence).to(tl.int64)
    stop = tl.load(query_starts + sequence + 1).to(tl.int64)
    for token in range(start, stop):
        row = mixed + token * (2 * KEY_HEADS * K + HEADS * V)
        query = tl.load(row + key_head * K + places, mask=is_key, other=0.0)
        key = tl.load(row + (KEY_HEADS + key_head) * K + places, mask=is_key, other=0.0)
        value = row + 2 * KEY_HEADS * K + head * V + columns
        value = tl.load(value, mask=is_column, other=0.0)
        query *= tl.rsqrt(tl.sum(query * query, axis=0) + 1e-6) * (K**-0.5)
        key *= tl.rsqrt(tl.sum(key * key, axis=0) + 1e-6)
        state *= tl.exp(tl.load(log_decays + token * HEADS + head))
        known = tl.sum(key[:, None] * state, axis=0)
        change = (value - known) * tl.load(rates + token * HEADS + head)
        state += key[:, None] * change[None, :]
        result = tl.sum(query[:, None] * state, axis=0)
        tl.store(results + (token * HEADS + head) * V + columns, result, mask=is_column)
    tl.store(moved + own, state, mask=is_own)
