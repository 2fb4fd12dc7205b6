"""Every backend equals attention written out over each sequence's own keys."""

from __future__ import annotations

import random

import pytest
import torch
from exo_engine.attention import BACKENDS, create_backend, reference
from exo_engine.attention.base import Span, StepLayout
from exo_engine.attention.kv_cache import KVCache
from exo_engine.core.block_manager import BlockCopy
from exo_engine.errors import ConfigurationError
from exo_engine.models.spec import DecoderSpec, RopeSpec

HEADS, KV_HEADS, DIM, BLOCK = 6, 2, 8, 4


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


def attend_plainly(queries, keys, values, first_position: int, window: int | None):
    """One query at a time, one head at a time."""
    output = torch.empty_like(queries)
    for row in range(len(queries)):
        position = first_position + row
        start = 0 if window is None else max(0, position - window + 1)
        for head in range(HEADS):
            kv_head = head // (HEADS // KV_HEADS)
            seen = keys[start : position + 1, kv_head]
            weights = (seen @ queries[row, head] * DIM**-0.5).softmax(0)
            output[row, head] = weights @ values[start : position + 1, kv_head]
    return output


@pytest.mark.parametrize("limits", ["default", "tiny"])
@pytest.mark.parametrize("windows", [(None,), (7,), (None, 5, 1)], ids=str)
@pytest.mark.parametrize("name", BACKENDS)
def test_any_mix_of_prompts_chunks_and_single_tokens(name, windows, limits, monkeypatch):
    if limits == "tiny":  # every group and every chunk is split
        monkeypatch.setitem(reference._MAX_GATHERED_TOKENS, "cpu", 40)
        monkeypatch.setitem(reference._MAX_PAIRS, "cpu", 30)
    numbers = random.Random(3)
    torch.manual_seed(3)
    spec = make_spec(*windows)
    cache = KVCache(spec, 100, BLOCK, dtype=torch.float32, device=torch.device("cpu"))
    backend = create_backend(name, spec, cache)
    free = list(range(100))
    numbers.shuffle(free)
    # (context, new tokens): decodes first
    shapes = [(1, 1), (9, 1), (30, 1), (31, 1), (50, 1), (3, 3), (20, 20), (26, 8), (40, 11)]
    spans, slots, histories = [], [], []
    for context, num_new in shapes:
        table = tuple(free.pop() for _ in range(-(-context // BLOCK)))
        history = torch.randn(len(windows), 2, context, KV_HEADS, DIM)
        histories.append(history)
        positions = torch.arange(context - num_new)
        held = torch.tensor(table)[positions // BLOCK] * BLOCK + positions % BLOCK
        for layer in range(len(windows)):
            cache.write(layer, held, *history[layer, :, : context - num_new])
        spans.append(Span(len(slots), num_new, context, table))
        slots += [table[p // BLOCK] * BLOCK + p % BLOCK for p in range(context - num_new, context)]
    backend.begin(StepLayout(tuple(spans[:5]), tuple(spans[5:]), torch.tensor(slots)))
    for layer, window in enumerate(windows):
        queries = torch.randn(len(slots), HEADS, DIM)
        new = torch.cat(
            [h[layer, :, c - n :] for h, (c, n) in zip(histories, shapes, strict=True)], dim=1
        )
        output = backend.attend(layer, queries, new[0], new[1])
        for span, history in zip(spans, histories, strict=True):
            rows = slice(span.first, span.first + span.num_tokens)
            expected = attend_plainly(
                queries[rows], *history[layer], span.context_len - span.num_tokens, window
            )
            torch.testing.assert_close(output[rows], expected, rtol=1e-4, atol=1e-5)


def test_blocks_are_copied_in_every_layer():
    spec = make_spec(None, None)
    cache = KVCache(spec, 4, BLOCK, dtype=torch.float32, device=torch.device("cpu"))
    for tensor in (*cache.keys, *cache.values):
        tensor.copy_(torch.randn_like(tensor))
    before = [tensor.clone() for tensor in (*cache.keys, *cache.values)]
    cache.copy_blocks([BlockCopy(0, 2), BlockCopy(1, 3)])
    for old, new in zip(before, (*cache.keys, *cache.values), strict=True):
        assert torch.equal(new[:2], old[:2])
        assert torch.equal(new[2:], old[:2])


@pytest.mark.parametrize("name", BACKENDS)
def test_scratch_is_bounded_and_known(name):
    spec = make_spec(None)
    cache = KVCache(spec, 4, BLOCK, dtype=torch.float32, device=torch.device("cpu"))
    assert 0 < create_backend(name, spec, cache).scratch_bytes() < 2**28


def test_an_unknown_backend_is_refused():
    spec = make_spec(None)
    cache = KVCache(spec, 4, BLOCK, dtype=torch.float32, device=torch.device("cpu"))
    with pytest.raises(ConfigurationError, match="no attention backend 'warp'"):
        create_backend("warp", spec, cache)
