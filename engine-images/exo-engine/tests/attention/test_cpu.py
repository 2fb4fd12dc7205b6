"""The CPU kernels as a backend equal the reference on the same steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from exo_engine.attention import create_backend
from exo_engine.attention.cache_plan import plan_cache
from exo_engine.attention.cpu import CpuAttention
from exo_engine.attention.kv_cache import KVCache
from exo_engine.attention.kv_format import KV_FORMATS
from exo_engine.attention.layer import AttentionLayer, Reach
from exo_engine.attention.layout import StepArrays, make_inputs, pad_tables
from exo_engine.attention.reference import ReferenceAttention
from exo_engine.errors import ConfigurationError
from exo_engine.kernels import VARIABLE
from exo_engine.layers.rope import Rotation, rotate

from ..cpu_kernels import needs_kernels

HEADS, KV_HEADS, DIM, BLOCK = 6, 2, 16, 16
CPU = torch.device("cpu")
# Per step, of four sequences: tokens up to its end, and new ones; single ones come first.
STEPS = [[(1, 1), (40, 40), (70, 70), (16, 16)], [(2, 1), (41, 1), (90, 20), (19, 3)]]


def layer(**overrides) -> AttentionLayer:
    return AttentionLayer(HEADS, KV_HEADS, DIM, scale=DIM**-0.5, **overrides)


LAYERS = {
    "full": [layer()],
    "mixed": [layer(), layer(reach=Reach(window=20)), layer(reach=Reach(chunk=24))],
    "cap": [layer(soft_cap=2.0)],
    "sinks": [layer(has_sinks=True)],
    "shared": [layer(), layer(kv_layer=0)],
    "sizes": [layer(), AttentionLayer(4, 1, 32, scale=0.2)],
}


def make_cache(layers, *, block_size: int = BLOCK, name: str = "bfloat16") -> KVCache:
    plan = plan_cache(layers, block_size, KV_FORMATS[name])
    return KVCache(layers, plan, KV_FORMATS[name], 60, dtype=torch.bfloat16, device=CPU)


@needs_kernels
@pytest.mark.parametrize("merged", [False, True], ids=["in steps", "merged"])
@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("stored", ["bfloat16", "int8"])
def test_steps_equal_the_reference(layers, merged, stored):
    caches = [make_cache(layers, name=stored), make_cache(layers, name=stored)]
    backends = [ReferenceAttention(layers, caches[0]), create_backend("auto", layers, caches[1])]
    assert isinstance(backends[1], CpuAttention)
    assert not backends[1].needs_cleared_blocks
    caches[1].pool.fill_(255)  # NaN, where nobody has written
    torch.manual_seed(1)
    angles = torch.randn(100, DIM // 2)
    tables = [torch.randperm(60).view(4, 15)[:, :6].tolist() for _ in range(caches[0].num_groups)]
    for spans in STEPS:
        arrays = StepArrays(
            query_starts=np.cumsum([0, *(new for _, new in spans)], dtype=np.int32),
            context_lens=np.array([context for context, _ in spans], dtype=np.int32),
            block_tables=tuple(pad_tables(group) for group in tables),
        )
        num_tokens = int(arrays.query_starts[-1])
        inputs = make_inputs(
            np.zeros(num_tokens, dtype=np.int32), arrays, block_size=BLOCK, device=CPU
        )
        for backend in backends:
            backend.begin(inputs.layout)
        rotation = Rotation(angles.cos(), angles.sin(), inputs.positions)
        shared = {}
        for index, each in enumerate(layers):
            sizes = (each.num_heads, each.num_kv_heads, each.num_kv_heads)
            heads = torch.randn(num_tokens, sum(sizes), each.head_dim).bfloat16()
            queries, keys, values = torch.split(heads, sizes, dim=1)
            if each.kv_layer is not None:
                keys, values = shared[each.kv_layer]
            output = None
            if merged and each.head_dim == DIM:
                output = backends[1].attend_merged(index, heads.flatten(1), rotation)
                assert (output is None) == (each.kv_layer is not None or each.has_sinks)
            if output is not None:
                queries, keys = rotate(queries, rotation), rotate(keys, rotation)
            shared[index] = keys, values
            sinks = torch.randn(each.num_heads).bfloat16() if each.has_sinks else None
            expected = backends[0].attend(index, queries, keys, values, sinks=sinks)
            if output is None:
                output = backends[1].attend(index, queries, keys, values, sinks=sinks)
            torch.testing.assert_close(output, expected, rtol=0.02, atol=0.04)


def test_what_the_kernels_cannot_read_goes_to_the_reference(monkeypatch):
    odd = [AttentionLayer(2, 1, 24, scale=1.0)]
    for layers, cache in (
        (odd, make_cache(odd)),
        ([layer()], make_cache([layer()], block_size=8)),
        ([layer()], make_cache([layer()], name="fp8_e4m3")),
    ):
        assert isinstance(create_backend("auto", layers, cache), ReferenceAttention)
        with pytest.raises(ConfigurationError, match="attention backend 'cpu' needs"):
            create_backend("cpu", layers, cache)
    monkeypatch.setenv(VARIABLE, "off")
    cache = make_cache([layer()])
    assert isinstance(create_backend("auto", [layer()], cache), ReferenceAttention)
