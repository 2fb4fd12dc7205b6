"""Every backend equals attention written out over each sequence's own keys."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from exo_engine.attention import BACKENDS, create_backend, reference
from exo_engine.attention.cache_plan import plan_cache
from exo_engine.attention.kv_cache import KVCache
from exo_engine.attention.kv_format import KV_FORMATS
from exo_engine.attention.layer import AttentionLayer, Reach
from exo_engine.attention.layout import StepArrays, make_inputs, pad_tables
from exo_engine.core.block_manager import BlockCopy
from exo_engine.errors import ConfigurationError

HEADS, KV_HEADS, DIM, BLOCK = 6, 2, 8, 4
HELD_IN = {
    "cpu": "test_cpu.py",
    "flashinfer": "test_gathering.py",
    "reference": "test_backends.py",
    "torch": "test_gathering.py",
    "triton": "test_triton.py",
}
"""The file that holds a backend equal to attention written out; the tests here take those whose file is this one."""
CPU = torch.device("cpu")


def layer(**overrides) -> AttentionLayer:
    return AttentionLayer(HEADS, KV_HEADS, DIM, scale=DIM**-0.5, **overrides)


def make_cache(num_blocks: int, layers, name: str = "float32") -> KVCache:
    plan = plan_cache(layers, BLOCK, KV_FORMATS[name])
    return KVCache(layers, plan, KV_FORMATS[name], num_blocks, dtype=torch.float32, device=CPU)


def attend_plainly(layer: AttentionLayer, queries, keys, values, first_position: int, sinks=None):
    """One query at a time, one head at a time."""
    output = torch.empty(*queries.shape[:2], layer.value_dim)
    for row in range(len(queries)):
        position = first_position + row
        start = 0
        if layer.reach.window is not None:
            start = max(0, position - layer.reach.window + 1)
        if layer.reach.chunk is not None:
            start = position - position % layer.reach.chunk
        for head in range(HEADS):
            kv_head = head // (HEADS // KV_HEADS)
            scores = keys[start : position + 1, kv_head] @ queries[row, head] * layer.scale
            if layer.soft_cap is not None:
                scores = torch.tanh(scores / layer.soft_cap) * layer.soft_cap
            weights = scores.exp()
            total = weights.sum() + (0 if sinks is None else sinks[head].exp())
            output[row, head] = weights / total @ values[start : position + 1, kv_head]
    return output


LAYERS = {
    "full": [layer()],
    "window": [layer(reach=Reach(window=7))],
    "mixed": [layer(), *(layer(reach=Reach(window=w)) for w in (5, 1, 5))],
    "chunk": [layer(reach=Reach(chunk=6))],
    "cap": [layer(soft_cap=0.7), layer(soft_cap=2.0, reach=Reach(window=7))],
    "sinks": [layer(has_sinks=True, reach=Reach(window=w)) for w in (None, 7)],
    "latent": [layer(num_latent=6), layer(num_latent=5)],
    "shared": [layer(), layer(kv_layer=0), layer(reach=Reach(window=7))],
}
# (context, new tokens): decodes first
SHAPES = [(1, 1), (9, 1), (30, 1), (31, 1), (50, 1), (3, 3), (20, 20), (26, 8), (40, 11)]


@pytest.mark.parametrize("kv_dtype", KV_FORMATS)
@pytest.mark.parametrize("limits", [pytest.param("default", marks=pytest.mark.slow), "tiny"])
@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize(
    "name", [each for each, where in HELD_IN.items() if where == Path(__file__).name]
)
def test_any_mix_of_prompts_chunks_and_single_tokens(name, layers, limits, kv_dtype, monkeypatch):
    if limits == "tiny":  # every batch and every chunk is split
        monkeypatch.setitem(reference._MAX_GATHERED_TOKENS, "cpu", 40)
        monkeypatch.setitem(reference._MAX_PAIRS, "cpu", 30)
    numbers = random.Random(3)
    torch.manual_seed(3)
    cache = make_cache(400, layers, kv_dtype)
    cache.pool.fill_(255)  # not a number, in any type
    backend = create_backend(name, layers, cache)
    free = list(range(400))
    numbers.shuffle(free)
    num_groups = 1 + max(cache.group_of(index) for index in range(len(layers)))
    tables: list[list[list[int]]] = [[] for _ in range(num_groups)]
    histories = [torch.randn(len(layers), 2, context, KV_HEADS, DIM) for context, _ in SHAPES]
    for (context, num_new), history in zip(SHAPES, histories, strict=True):
        positions = torch.arange(context - num_new)
        for table in tables:
            table.append([free.pop() for _ in range(-(-context // BLOCK))])
            cache.clear(torch.tensor(table[-1][-1:]))
        for index, each in enumerate(layers):
            if each.kv_layer is not None:
                history[index] = history[each.kv_layer]
                continue
            table = torch.tensor(tables[cache.group_of(index)][-1])
            held = table[positions // BLOCK] * BLOCK + positions % BLOCK
            cache.write(index, held, *history[index, :, : context - num_new])
    starts = np.cumsum([0, *(num_new for _, num_new in SHAPES)], dtype=np.int32)
    arrays = StepArrays(
        query_starts=starts,
        context_lens=np.array([context for context, _ in SHAPES], dtype=np.int32),
        block_tables=tuple(pad_tables(group) for group in tables),
    )
    num_tokens = int(starts[-1])
    inputs = make_inputs(np.zeros(num_tokens, dtype=np.int32), arrays, block_size=BLOCK, device=CPU)
    backend.begin(inputs.layout)
    for index, each in enumerate(layers):
        queries = torch.randn(num_tokens, HEADS, DIM)
        sinks = torch.randn(HEADS) if each.has_sinks else None
        new = torch.cat(
            [h[index, :, c - n :] for h, (c, n) in zip(histories, SHAPES, strict=True)], dim=1
        )
        new = with_latents(each, new)
        output = backend.attend(index, queries, new[0], new[1], sinks=sinks)
        for row, (history, (context, num_new)) in enumerate(zip(histories, SHAPES, strict=True)):
            rows = slice(starts[row], starts[row + 1])
            held = with_latents(each, as_held(history[index], kv_dtype))
            expected = attend_plainly(each, queries[rows], *held, context - num_new, sinks)
            torch.testing.assert_close(output[rows], expected, rtol=1e-4, atol=1e-5)


def with_latents(layer: AttentionLayer, states):
    """Keys and values; those of latent attention are a part of the keys."""
    return states if not layer.num_latent else (states[0], states[0][..., : layer.num_latent])


def as_held(states, kv_dtype: str):
    """What a cache of that type gives back, head by head."""
    if kv_dtype not in ("fp8_e4m3", "int8"):
        return states.to(getattr(torch, kv_dtype)).float()
    largest = 127 if kv_dtype == "int8" else 448
    held = torch.empty_like(states)
    for index in np.ndindex(*states.shape[:-1]):
        scale = states[index].abs().max() / largest
        numbers = states[index] / scale
        held[index] = scale * (
            numbers.round() if kv_dtype == "int8" else numbers.to(torch.float8_e4m3fn).float()
        )
    return held


@pytest.mark.parametrize("kv_dtype", ["fp8_e4m3", "int8"])
def test_a_scaled_cache_takes_a_quarter_of_float32_and_the_scales(kv_dtype):
    plans = [plan_cache([layer()], BLOCK, KV_FORMATS[name]) for name in ("float32", kv_dtype)]
    per_token = 2 * KV_HEADS * DIM * 4
    assert plans[0].block_bytes == BLOCK * per_token
    assert plans[1].block_bytes == BLOCK * (per_token // 4 + 2 * KV_HEADS * 4)


def test_latents_have_one_plane_each():
    latent = AttentionLayer(HEADS, 1, 24, scale=1.0, num_latent=16)
    plan = plan_cache([latent] * 3, BLOCK, KV_FORMATS["bfloat16"])
    assert (plan.num_planes, plan.block_bytes) == (3, 3 * BLOCK * 24 * 2)


def test_layers_of_other_sizes_share_a_pool():
    """Pages are as large as the largest layer needs, and rows of both fit into them."""
    wide = AttentionLayer(6, 2, 12, scale=1.0, reach=Reach(window=4))
    layers = [layer(), wide]
    cache = make_cache(6, layers)
    torch.manual_seed(0)
    narrow, wider = torch.randn(2, 5, KV_HEADS, DIM), torch.randn(2, 5, 2, 12)
    slots = torch.arange(5)
    cache.write(0, slots + 2 * BLOCK, *narrow)
    cache.write(1, slots + 4 * BLOCK, *wider)
    for index, first, states in ((0, 2, narrow), (1, 4, wider)):
        found = cache.read(index, torch.tensor([first, first + 1]))
        for got, expected in zip(found, states, strict=True):
            assert torch.equal(got[:5], expected)


def test_blocks_are_copied_in_every_layer():
    cache = make_cache(4, [layer(), layer()])
    cache.pool.copy_(torch.randint(0, 256, cache.pool.shape))
    before = cache.pool.clone()
    cache.copy_blocks([BlockCopy(0, 2), BlockCopy(1, 3)])
    assert torch.equal(cache.pool[:, :2], before[:, :2])
    assert torch.equal(cache.pool[:, 2:], before[:, :2])
    assert len(cache.pool) == 4  # keys and values of two layers


@pytest.mark.parametrize(
    "name", [each for each, where in HELD_IN.items() if where == Path(__file__).name]
)
def test_scratch_is_bounded_and_known(name):
    cache = make_cache(4, [layer()])
    assert 0 < create_backend(name, [layer()], cache).scratch_bytes() < 2**28


def test_every_backend_is_held_equal_somewhere():
    assert set(HELD_IN) == set(BACKENDS)
    for name, where in HELD_IN.items():
        text = Path(__file__).with_name(where).read_text(encoding="utf-8")
        assert f'"{name}"' in text, f"{where} has no test of {name}"


def test_an_unknown_backend_is_refused():
    cache = make_cache(4, [layer()])
    with pytest.raises(ConfigurationError, match="no attention backend 'warp'"):
        create_backend("warp", [layer()], cache)
