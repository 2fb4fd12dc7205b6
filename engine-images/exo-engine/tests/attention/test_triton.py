"""The Triton backend, under the interpreter, equals attention written out in float64.

Every page that no sequence has is filled with numbers that are none, and so is what lies in a page behind a
sequence's end.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from exo_engine.attention import create_backend
from exo_engine.attention.cache_plan import plan_cache
from exo_engine.attention.kv_cache import KVCache
from exo_engine.attention.kv_format import KV_FORMATS
from exo_engine.attention.layer import AttentionLayer, Reach
from exo_engine.attention.layout import StepArrays, make_inputs, pad_tables
from exo_engine.attention.triton import TritonAttention
from exo_engine.errors import ConfigurationError
from exo_engine.kernels.triton import attention as launching
from exo_engine.kernels.triton.pages import Pages
from exo_engine.kernels.triton.store import plan_storing
from exo_engine.layers.rope import Rotation, rotate
from torch import Tensor

CPU = torch.device("cpu")
NUM_BLOCKS = 60
TOLERANCE = {torch.float32: (2e-5, 2e-5), torch.bfloat16: (2e-2, 2e-2), torch.float16: (4e-3, 4e-3)}
# (context, new tokens): single tokens first, then a chunk, a prompt, four tokens to verify, a late chunk
SPANS = [(1, 1), (9, 1), (130, 1), (3, 3), (20, 20), (70, 4), (100, 33)]


@dataclass
class Case:
    """One layer, and what is the case around it."""

    layer: AttentionLayer
    dtype: torch.dtype = torch.float32
    kv: str = "float32"
    block: int = 16
    spans: tuple[tuple[int, int], ...] = tuple(SPANS)
    is_fixed: bool = False

    def run(self, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Return what the backend gives for a step, and what is right: (T, H, D)."""
        torch.manual_seed(seed)
        cache, tables = self.make_cache(seed)
        backend = TritonAttention([self.layer], cache, is_fixed=self.is_fixed)
        heads, kv_heads, dim = self.layer.num_heads, self.layer.num_kv_heads, self.layer.head_dim
        histories = [
            torch.randn(2, context, kv_heads, dim).to(self.dtype) for context, _ in self.spans
        ]
        for history, (context, new), table in zip(histories, self.spans, tables, strict=True):
            positions = torch.arange(context - new)
            slots = torch.tensor(table)[positions // self.block] * self.block
            old = history[:, : context - new]
            write_plainly(backend._pages[0], slots + positions % self.block, old)
        inputs = make_inputs(*self.arrays(tables), block_size=self.block, device=CPU)
        backend.begin(inputs.layout)
        queries = torch.randn(len(inputs.positions), heads, dim).to(self.dtype)
        new = torch.cat([h[:, c - n :] for h, (c, n) in zip(histories, self.spans, strict=True)], 1)
        sinks = torch.randn(heads) if self.layer.has_sinks else None
        found = backend.attend(0, queries, *new, sinks=sinks)
        rows = torch.split(queries, [new for _, new in self.spans])
        expected = [
            attend_plainly(self.layer, each, *as_held(history, self.kv), sinks)
            for each, history in zip(rows, histories, strict=True)
        ]
        return found, torch.cat(expected)

    def make_cache(self, seed: int) -> tuple[KVCache, list[list[int]]]:
        """Return a cache full of what is no number, and a table of random pages for each sequence."""
        plan = plan_cache([self.layer], self.block, KV_FORMATS[self.kv])
        num_blocks = sum(-(-context // self.block) for context, _ in self.spans) + 3
        cache = KVCache(
            [self.layer], plan, KV_FORMATS[self.kv], num_blocks, dtype=self.dtype, device=CPU
        )
        cache.pool.fill_(255)
        free = list(range(num_blocks))
        random.Random(seed).shuffle(free)
        return cache, [
            [free.pop() for _ in range(-(-context // self.block))] for context, _ in self.spans
        ]

    def arrays(self, tables: list[list[int]]) -> tuple[np.ndarray, StepArrays]:
        """Describe the step."""
        starts = np.cumsum([0, *(new for _, new in self.spans)], dtype=np.int32)
        contexts = np.array([context for context, _ in self.spans], dtype=np.int32)
        step = StepArrays(starts, contexts, (pad_tables(tables),))
        return np.zeros(int(starts[-1]), dtype=np.int32), step

    def check(self, seed: int = 0) -> None:
        found, expected = self.run(seed)
        # The interpreter cuts bfloat16 off where a GPU rounds it.
        is_coarse = torch.bfloat16 in (self.dtype, getattr(torch, self.kv, None))
        rtol, atol = TOLERANCE[torch.bfloat16 if is_coarse else self.dtype]
        torch.testing.assert_close(found.double(), expected, rtol=rtol, atol=atol)


def attend_plainly(layer: AttentionLayer, queries, keys, values, sinks=None) -> Tensor:
    """The last tokens of one sequence over all of it, in float64."""
    first = len(keys) - len(queries)
    group = layer.num_heads // layer.num_kv_heads
    keys, values = (each.double().repeat_interleave(group, dim=1) for each in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", queries.double(), keys) * layer.scale
    if layer.soft_cap is not None:
        scores = torch.tanh(scores / layer.soft_cap) * layer.soft_cap
    positions = np.arange(first, len(keys))
    seen_from = torch.from_numpy(layer.reach.first_seen(positions))[:, None]
    places = torch.arange(len(keys))
    is_seen = (places <= torch.from_numpy(positions)[:, None]) & (places >= seen_from)
    scores = scores.masked_fill(~is_seen, -torch.inf)
    if sinks is not None:
        column = sinks.double()[:, None, None].expand(-1, len(queries), 1)
        scores = torch.cat((scores, column), dim=-1)
    weights = scores.softmax(dim=-1)[..., : len(keys)]
    return torch.einsum("hqk,khd->qhd", weights, values)


def as_held(states: Tensor, kv: str) -> Tensor:
    """What a cache of that type gives back, head by head: (2, L, Hkv, D) float64."""
    if kv not in ("fp8_e4m3", "int8"):
        return states.to(getattr(torch, kv)).double()
    numbers = states.float()
    scales = numbers.abs().amax(dim=-1, keepdim=True) / (127 if kv == "int8" else 448)
    numbers = numbers / scales
    held = numbers.round() if kv == "int8" else numbers.to(torch.float8_e4m3fn).float()
    return (held * scales).double()


def write_plainly(pages: Pages, slots: Tensor, states: Tensor) -> None:
    """Store keys and values (2, T, Hkv, D) where the kernels look for them, without a kernel."""
    shape = (-1, pages.num_kv_heads, pages.page_size, pages.head_dim)
    blocks, places = slots // pages.page_size, slots % pages.page_size
    size = pages.num_kv_heads * pages.page_size * pages.head_dim
    sides = ((pages.keys, pages.key_scales), (pages.values, pages.value_scales))
    for (numbers, scales), own in zip(sides, states, strict=True):
        if pages.stored != "plain":
            largest = 127 if pages.stored == "int8" else 448
            factors = own.float().abs().amax(dim=-1) / largest
            own = own.float() / factors.unsqueeze(-1)
            own = own.round() if pages.stored == "int8" else own.to(torch.float8_e4m3fn)
            own = own.to(torch.int8) if pages.stored == "int8" else own.view(torch.uint8)
            held = scales[:, size // 4 : (size + size // pages.head_dim * 4) // 4]
            held.view(shape[:-1])[blocks, :, places] = factors
        numbers[:, :size].view(shape)[blocks, :, places] = own.to(numbers.dtype)


def layer(heads: int = 6, kv_heads: int = 2, dim: int = 16, **overrides) -> AttentionLayer:
    return AttentionLayer(heads, kv_heads, dim, scale=dim**-0.5, **overrides)


LAYERS = {
    "full": layer(),
    "window": layer(reach=Reach(window=13)),
    "chunk": layer(reach=Reach(chunk=24)),
    "cap": layer(soft_cap=0.7, reach=Reach(window=40)),
    "sinks": layer(has_sinks=True),
    "odd sizes": layer(5, 1, 20),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_step_of_all_kinds_equals_attention_written_out(name, monkeypatch):
    monkeypatch.setattr(launching, "FIXED_SEGMENT", 64)
    Case(LAYERS[name], is_fixed=name in ("full", "cap", "sinks")).check()


@pytest.mark.parametrize("kv", KV_FORMATS)
def test_every_way_to_store_numbers(kv):
    Case(layer(2, 1), torch.float16, kv, spans=((1, 1), (70, 1), (20, 20))).check()


def test_a_long_context_is_split_and_put_together():
    case = Case(layer(4, 2), spans=((700, 1), (301, 1)))
    part = launching.Part(*[torch.empty(0, dtype=torch.int32)] * 3, 0, 2, 2, 700, uniform_tokens=1)
    target = launching.Target.of(CPU)
    tiles = launching.choose_tiles(
        case.layer, part, target, item_bytes=4, is_scaled=False, is_fixed=False
    )
    assert tiles.segments == 4
    case.check()


@pytest.mark.slow
@pytest.mark.parametrize("block", [1, 48])
@pytest.mark.parametrize("kv", ["bfloat16", "fp8_e4m3", "int8"])
@pytest.mark.parametrize("is_fixed", [False, True], ids=["split", "fixed"])
@pytest.mark.parametrize("each", LAYERS.values(), ids=LAYERS)
def test_all_of_it_together(each, is_fixed, kv, block, monkeypatch):
    monkeypatch.setattr(launching, "FIXED_SEGMENT", 64)
    Case(each, torch.bfloat16, kv, block, is_fixed=is_fixed).check(seed=block)


@pytest.mark.slow
def test_random_shapes(monkeypatch):
    monkeypatch.setattr(launching, "FIXED_SEGMENT", 64)
    numbers = random.Random(5)
    for seed in range(40):
        kv_heads = numbers.choice((1, 2, 3))
        reach = numbers.choice(
            (Reach(), Reach(window=numbers.randint(1, 90)), Reach(chunk=numbers.randint(1, 90)))
        )
        each = layer(
            kv_heads * numbers.choice((1, 3, 4, 7)),
            kv_heads,
            4 * numbers.randint(1, 40),
            reach=reach,
            soft_cap=numbers.choice((None, 1.5)),
            has_sinks=numbers.random() < 0.3,
        )
        news = sorted((numbers.choice((1, 1, numbers.randint(2, 60))) for _ in range(4)), key=bool)
        news.sort(key=lambda new: new > 1)
        spans = tuple((new + numbers.randint(0, 200), new) for new in news)
        Case(
            each,
            numbers.choice(list(TOLERANCE)),
            numbers.choice(list(KV_FORMATS)),
            numbers.choice((1, 4, 16, 20, 32)),
            spans,
            numbers.random() < 0.5,
        ).check(seed)


@pytest.mark.parametrize(
    "each",
    [
        LAYERS["full"],
        *(pytest.param(LAYERS[name], marks=pytest.mark.slow) for name in ("window", "sinks")),
    ],
)
def test_a_token_has_the_same_bits_in_a_prompt_a_chunk_and_alone(each, monkeypatch):
    """As one of many in a prompt, with three others, and alone: its keys are read in the same order."""
    monkeypatch.setattr(launching, "FIXED_SEGMENT", 64)
    contexts = (70, 130)
    lasts = []
    for new in (1, 4, 50):
        case = Case(each, spans=tuple((context, new) for context in contexts), is_fixed=True)
        lasts.append(last_rows(case))
    assert torch.equal(lasts[0], lasts[1])
    assert torch.equal(lasts[0], lasts[2])


def last_rows(case: Case) -> Tensor:
    """What the last token of each sequence gets, whose states depend on its position alone."""
    cache, tables = case.make_cache(1)
    backend = TritonAttention([case.layer], cache, is_fixed=True)
    inputs = make_inputs(*case.arrays(tables), block_size=case.block, device=CPU)
    backend.begin(inputs.layout)
    outputs = []
    kv_heads, dim = case.layer.num_kv_heads, case.layer.head_dim
    torch.manual_seed(4)
    histories = [torch.randn(3, context, kv_heads, dim) for context, _ in case.spans]
    for history, (context, new), table in zip(histories, case.spans, tables, strict=True):
        places = torch.arange(context - new)
        slots = torch.tensor(table)[places // case.block] * case.block + places % case.block
        write_plainly(backend._pages[0], slots, history[:2, : context - new])
    own = torch.cat([h[:, c - n :] for h, (c, n) in zip(histories, case.spans, strict=True)], 1)
    queries = own[2].repeat_interleave(case.layer.num_heads // kv_heads, dim=1)
    sinks = torch.ones(case.layer.num_heads) if case.layer.has_sinks else None
    outputs = backend.attend(0, queries, own[0], own[1], sinks=sinks)
    return outputs[inputs.layout.query_starts[1:].long() - 1]


@pytest.mark.parametrize(
    ("kv", "turned", "has_norms"),
    [("float32", 16, True), ("float32", 8, True), ("fp8_e4m3", 16, False)],
)
def test_heads_are_normalised_turned_and_stored_in_one(kv, turned, has_norms):
    case = Case(layer(), kv=kv, spans=((1, 1), (20, 20)))
    torch.manual_seed(2)
    caches = [case.make_cache(2) for _ in range(2)]
    inputs = make_inputs(*case.arrays(caches[0][1]), block_size=case.block, device=CPU)
    angles = torch.randn(30, turned // 2)
    rotation = Rotation(angles.cos(), angles.sin(), inputs.positions)
    merged = torch.randn(21, 10 * 16)
    norms = (torch.rand(16) + 0.5, torch.rand(16) + 0.5) if has_norms else None
    backends = [TritonAttention([case.layer], cache) for cache, _ in caches]
    for backend in backends:
        backend.begin(inputs.layout)
    found = backends[0].attend_merged(0, merged, rotation, norms=norms, eps=1e-5)
    queries, keys, values = torch.split(merged.view(21, 10, 16), (6, 2, 2), dim=1)
    if norms is not None:
        queries = torch.nn.functional.rms_norm(queries, (16,), norms[0], 1e-5)
        keys = torch.nn.functional.rms_norm(keys, (16,), norms[1], 1e-5)
    expected = backends[1].attend(0, rotate(queries, rotation), rotate(keys, rotation), values)
    assert found is not None
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=3e-3 if kv == "fp8_e4m3" else 1e-5)
    for own, plain in zip(backends[0]._pages.values(), backends[1]._pages.values(), strict=True):
        unequal = (own.values != plain.values) & ~own.values.isnan()
        assert not unequal.any()  # values are neither normalised nor turned


def test_a_token_without_a_slot_is_not_stored():
    case = Case(layer(), spans=((1, 1),))
    cache, _ = case.make_cache(0)
    backend = TritonAttention([case.layer], cache)
    before = cache.pool.clone()
    states = torch.randn(2, 3, 2, 16)
    plan_storing(*states, backend._pages[0], torch.tensor([-1, -1, -1])).run()
    assert torch.equal(cache.pool, before)


def test_what_fills_up_a_batch_reads_nothing():
    """A sequence without context, as a captured graph has them: zeros, not what lies about."""
    case = Case(layer(), spans=((0, 1), (0, 1)))
    cache, _ = Case(layer(), spans=((1, 1),)).make_cache(0)
    backend = TritonAttention([case.layer], cache)
    arrays = StepArrays(
        np.array([0, 1, 2], dtype=np.int32), np.zeros(2, np.int32), (np.zeros((2, 4), np.int32),)
    )
    inputs = make_inputs(np.zeros(2, np.int32), arrays, block_size=16, device=CPU)
    backend.begin(inputs.layout)
    backend._layout.slots[0].fill_(-1)
    states = torch.randn(2, 2, 2, 16)
    found = backend.attend(0, torch.randn(2, 6, 16), *states)
    assert torch.equal(found, torch.zeros_like(found))
    assert case.layer.num_heads == found.shape[1]


def test_what_it_cannot_serve_is_refused_by_name(monkeypatch):
    wide = [AttentionLayer(1, 1, 512, scale=1.0)]
    cache, _ = Case(wide[0], spans=((1, 1),)).make_cache(0)
    with pytest.raises(ConfigurationError, match=r"256 numbers at most, and this model's have 512"):
        create_backend("triton", wide, cache)
    cache, _ = Case(layer(), spans=((1, 1),)).make_cache(0)
    monkeypatch.setattr("exo_engine.attention.triton.IS_INTERPRETED", False)
    with pytest.raises(ConfigurationError, match="needs a GPU, and the model is on device 'cpu'"):
        create_backend("triton", [layer()], cache)
