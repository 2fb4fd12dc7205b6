"""Every backend equals attention written out over each sequence's own keys."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from exo_engine.attention import BACKENDS, create_backend, reference
from exo_engine.attention.kv_cache import KVCache
from exo_engine.attention.layer import AttentionLayer, Reach
from exo_engine.attention.layout import StepArrays, make_inputs, pad_tables
from exo_engine.core.block_manager import BlockCopy
from exo_engine.errors import ConfigurationError
from exo_engine.models.spec import DecoderSpec, RopeSpec

HEADS, KV_HEADS, DIM, BLOCK = 6, 2, 8, 4
CPU = torch.device("cpu")


def make_spec(*windows: int | None) -> DecoderSpec:
    return DecoderSpec(
        architecture="test",
        vocab_size=10,
        hidden_size=HEADS * DIM,
        intermediate_size=8,
        num_layers=len(windows),
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=DIM,
        rms_norm_eps=1e-6,
        max_position_embeddings=512,
        rope=RopeSpec(10000.0),
        windows=windows,
    )


def make_cache(num_blocks: int, *windows: int | None) -> KVCache:
    return KVCache(make_spec(*windows), num_blocks, BLOCK, dtype=torch.float32, device=CPU)


def attend_plainly(layer: AttentionLayer, queries, keys, values, first_position: int, sinks=None):
    """One query at a time, one head at a time."""
    output = torch.empty_like(queries)
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


def layer(**overrides) -> AttentionLayer:
    return AttentionLayer(HEADS, KV_HEADS, DIM, scale=DIM**-0.5, **overrides)


@pytest.mark.parametrize("limits", ["default", "tiny"])
@pytest.mark.parametrize(
    "layers",
    [
        pytest.param([layer()], id="full"),
        pytest.param([layer(reach=Reach(window=7))], id="window"),
        pytest.param([layer(), *(layer(reach=Reach(window=w)) for w in (5, 1))], id="mixed"),
        pytest.param([layer(reach=Reach(chunk=6))], id="chunk"),
        pytest.param([layer(soft_cap=0.7), layer(soft_cap=2.0, reach=Reach(window=7))], id="cap"),
        pytest.param([layer(has_sinks=True, reach=Reach(window=w)) for w in (None, 7)], id="sinks"),
        pytest.param([layer(), layer(kv_layer=0), layer()], id="shared"),
    ],
)
@pytest.mark.parametrize("name", BACKENDS)
def test_any_mix_of_prompts_chunks_and_single_tokens(name, layers, limits, monkeypatch):
    if limits == "tiny":  # every group and every chunk is split
        monkeypatch.setitem(reference._MAX_GATHERED_TOKENS, "cpu", 40)
        monkeypatch.setitem(reference._MAX_PAIRS, "cpu", 30)
    numbers = random.Random(3)
    torch.manual_seed(3)
    cache = make_cache(100, *(each.reach.window for each in layers))
    backend = create_backend(name, layers, cache)
    free = list(range(100))
    numbers.shuffle(free)
    # (context, new tokens): decodes first
    shapes = [(1, 1), (9, 1), (30, 1), (31, 1), (50, 1), (3, 3), (20, 20), (26, 8), (40, 11)]
    tables, histories = [], []
    for context, num_new in shapes:
        table = [free.pop() for _ in range(-(-context // BLOCK))]
        history = torch.randn(len(layers), 2, context, KV_HEADS, DIM)
        positions = torch.arange(context - num_new)
        held = torch.tensor(table)[positions // BLOCK] * BLOCK + positions % BLOCK
        for index, each in enumerate(layers):
            if each.kv_layer is not None:
                history[index] = history[each.kv_layer]
            else:
                cache.write(index, held, *history[index, :, : context - num_new])
        tables.append(table)
        histories.append(history)
    starts = np.cumsum([0, *(num_new for _, num_new in shapes)], dtype=np.int32)
    arrays = StepArrays(
        query_starts=starts,
        context_lens=np.array([context for context, _ in shapes], dtype=np.int32),
        block_tables=(pad_tables(tables),),
    )
    num_tokens = int(starts[-1])
    inputs = make_inputs(np.zeros(num_tokens, dtype=np.int32), arrays, block_size=BLOCK, device=CPU)
    backend.begin(inputs.layout)
    for index, each in enumerate(layers):
        queries = torch.randn(num_tokens, HEADS, DIM)
        sinks = torch.randn(HEADS) if each.has_sinks else None
        new = torch.cat(
            [h[index, :, c - n :] for h, (c, n) in zip(histories, shapes, strict=True)], dim=1
        )
        output = backend.attend(index, queries, new[0], new[1], sinks=sinks)
        for row, (history, (context, num_new)) in enumerate(zip(histories, shapes, strict=True)):
            rows = slice(starts[row], starts[row + 1])
            expected = attend_plainly(
                each, queries[rows], *history[index], context - num_new, sinks
            )
            torch.testing.assert_close(output[rows], expected, rtol=1e-4, atol=1e-5)


def test_blocks_are_copied_in_every_layer():
    cache = make_cache(4, None, None)
    for tensor in (*cache.keys, *cache.values):
        tensor.copy_(torch.randn_like(tensor))
    before = [tensor.clone() for tensor in (*cache.keys, *cache.values)]
    cache.copy_blocks([BlockCopy(0, 2), BlockCopy(1, 3)])
    for old, new in zip(before, (*cache.keys, *cache.values), strict=True):
        assert torch.equal(new[:2], old[:2])
        assert torch.equal(new[2:], old[:2])


@pytest.mark.parametrize("name", BACKENDS)
def test_scratch_is_bounded_and_known(name):
    cache = make_cache(4, None)
    assert 0 < create_backend(name, [layer()], cache).scratch_bytes() < 2**28


def test_an_unknown_backend_is_refused():
    cache = make_cache(4, None)
    with pytest.raises(ConfigurationError, match="no attention backend 'warp'"):
        create_backend("warp", [layer()], cache)
