"""The Triton backend, under the interpreter, equals attention written out in float64."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from exo_engine.attention import create_backend, triton
from exo_engine.attention.kv_format import KV_FORMATS
from exo_engine.attention.layer import AttentionLayer
from exo_engine.attention.layout import StepArrays, make_inputs
from exo_engine.attention.triton import TritonAttention
from exo_engine.errors import ConfigurationError
from exo_engine.kernels.triton import attention as launching
from exo_engine.kernels.triton.store import plan_storing
from exo_engine.layers.rope import Rotation, rotate
from torch import Tensor

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from attention_cases import CPU, LAYERS, Case, both, layer, random_case, write_plainly

from ..pairwise import few_with_every_combination

pytestmark = pytest.mark.gpu_kernels

SLOW, OTHERS = pytest.mark.slow, pytest.mark.equivalence
ON_BOTH = (pytest.mark.slow, pytest.mark.both_releases)
TOGETHER = list(
    itertools.product(LAYERS, ("split", "fixed"), ("bfloat16", "fp8_e4m3", "int8"), (1, 48))
)
PAIRWISE = few_with_every_combination(TOGETHER, 2)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("full", "window", "cap") else ON_BOTH)
        for name in LAYERS
    ],
)
def test_a_step_of_all_kinds_equals_attention_written_out(name, monkeypatch):
    monkeypatch.setattr(launching, "FIXED_SEGMENT", 64)
    Case(LAYERS[name], is_fixed=name in ("full", "cap", "sinks")).check()


@pytest.mark.parametrize("kv", KV_FORMATS)
def test_every_way_to_store_numbers(kv):
    Case(layer(2, 1), torch.float16, kv, spans=((1, 1), (70, 1), (20, 20))).check()


@pytest.mark.parametrize(
    ("name", "is_fixed", "kv", "num_launches"),
    [
        ("full", False, "float32", 2),
        ("window", True, "bfloat16", 2),
        pytest.param("cap", False, "fp8_e4m3", 1, marks=ON_BOTH),
        pytest.param("sinks", True, "int8", 2, marks=ON_BOTH),
        pytest.param("chunk", False, "bfloat16", 1, marks=ON_BOTH),
        pytest.param("latent", False, "bfloat16", 1, marks=ON_BOTH),
    ],
)
def test_several_tokens_of_each_sequence_are_verified(
    name, is_fixed, kv, num_launches, monkeypatch
):
    """As graphs tell it: all have four, however long their contexts are; split, and put together."""
    monkeypatch.setattr(launching, "FIXED_SEGMENT", 64)
    plan, plans = triton.plan_attention, []

    def noted(*arguments, **options):
        plans.append(plan(*arguments, **options))
        return plans[-1]

    monkeypatch.setattr(triton, "plan_attention", noted)
    spans = ((9, 4), (270, 4), (4, 4), (70, 4))
    Case(LAYERS[name], torch.float32, kv, 4, spans, is_fixed=is_fixed, is_uniform=True).check()
    (launches,) = plans
    assert len(launches) == num_launches
    assert launches[0].arguments["IS_UNIFORM"] == (name != "latent")


@pytest.mark.parametrize("context", [20, 260])  # whole, and split
def test_what_no_kernel_writes_is_no_number(context, monkeypatch):
    """Memory that was given back may hold what is right from the time before, so all that a step takes is poisoned."""
    plan = triton.plan_attention

    def without_last(*arguments, **options):
        launches = plan(*arguments, **options)
        num_launches.append(len(launches))
        return launches[:-1]

    case, num_launches = Case(layer(2, 1), spans=((context, 1),)), []
    monkeypatch.setattr(triton, "plan_attention", without_last)
    found, expected = case.run()
    assert num_launches == [1 if context == 20 else 2]
    assert found.isnan().all()
    assert not expected.isnan().any()


def test_a_long_context_is_split_and_put_together():
    case = Case(layer(4, 2), spans=((700, 1), (301, 1)))
    part = launching.Part(*[torch.empty(0, dtype=torch.int32)] * 3, 0, 2, 2, 700, uniform_tokens=1)
    target = launching.Target.of(CPU)
    tiles = launching.choose_tiles(
        case.layer, part, target, item_bytes=4, stored="plain", is_fixed=False
    )
    assert tiles.segments == 4
    case.check()


def test_tiles_end_with_a_fixed_segment_that_is_smaller(monkeypatch):
    """A tile has 64 keys elsewhere: those behind the segment belong to the next one alone."""
    monkeypatch.setattr(launching, "FIXED_SEGMENT", 16)
    Case(layer(2, 1), torch.bfloat16, spans=((40, 1), (20, 3)), is_fixed=True).check()


@pytest.mark.parametrize(
    ("name", "segments", "kv", "block"),
    [pytest.param(*case, marks=SLOW if case in PAIRWISE else OTHERS) for case in TOGETHER],
)
def test_all_of_it_together(name, segments, kv, block, monkeypatch):
    monkeypatch.setattr(launching, "FIXED_SEGMENT", 64)
    is_fixed = segments == "fixed"
    Case(LAYERS[name], torch.bfloat16, kv, block, is_fixed=is_fixed).check(seed=block)


@pytest.mark.slow
def test_random_shapes(monkeypatch):
    monkeypatch.setattr(launching, "FIXED_SEGMENT", 64)
    for seed in range(40):
        random_case(seed).check(seed)


@pytest.mark.usefixtures("dots_in_one_order")
@pytest.mark.parametrize(
    ("each", "dtype", "kv"),
    [
        (LAYERS["full"], torch.float32, "float32"),
        *(
            pytest.param(LAYERS[name], torch.float32, "float32", marks=ON_BOTH)
            for name in ("window", "sinks", "latent")
        ),
        *(
            (LAYERS[name], dtype, kv)
            for name in ("full", "window", "latent")
            for dtype, kv in (
                (torch.bfloat16, "fp8_e4m3"),
                (torch.float16, "fp8_e4m3"),
                (torch.float16, "int8"),
            )
        ),
    ],
)
def test_a_token_has_the_same_bits_in_a_prompt_a_chunk_and_alone(each, dtype, kv, monkeypatch):
    """As one of many in a prompt, with three others, and alone: its keys are read in the same order."""
    monkeypatch.setattr(launching, "FIXED_SEGMENT", 64)
    contexts = (70, 130)
    lasts = []
    for new in (1, 4, 20):
        spans = tuple((context, new) for context in contexts)
        case = Case(each, dtype, kv, spans=spans, is_fixed=True)
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
    histories = [torch.randn(3, context, kv_heads, dim).to(case.dtype) for context, _ in case.spans]
    sides = case.layer.num_planes
    for history, (context, new), table in zip(histories, case.spans, tables, strict=True):
        places = torch.arange(context - new)
        slots = torch.tensor(table)[places // case.block] * case.block + places % case.block
        write_plainly(backend._pages[0], slots, history[:sides, : context - new])
    own = torch.cat([h[:, c - n :] for h, (c, n) in zip(histories, case.spans, strict=True)], 1)
    queries = own[2].repeat_interleave(case.layer.num_heads // kv_heads, dim=1)
    sinks = torch.ones(case.layer.num_heads) if case.layer.has_sinks else None
    outputs = backend.attend(0, queries, *both(case.layer, own), sinks=sinks)
    return outputs[inputs.layout.query_starts[1:].long() - 1]


@pytest.mark.parametrize(
    ("dtype", "kv", "turned", "has_norms"),
    [
        (torch.bfloat16, "fp8_e4m3", 16, True),
        pytest.param(torch.float32, "int8", 12, True, marks=ON_BOTH),
        pytest.param(torch.float16, "bfloat16", 16, False, marks=ON_BOTH),
        pytest.param(torch.float32, "float32", 2, True, marks=ON_BOTH),
    ],
)
def test_heads_prepared_and_stored_in_one_are_those_of_float64(dtype, kv, turned, has_norms):
    spans = ((9, 1), (3, 3), (70, 4))
    Case(layer(), dtype, kv, 4, spans, turned=turned, has_norms=has_norms).check()


@pytest.mark.parametrize(
    ("kv", "turned", "has_norms"),
    [("float32", 16, True), ("float32", 8, True), ("fp8_e4m3", 16, False)],
)
def test_heads_are_normalised_turned_and_stored_in_one(kv, turned, has_norms):
    case = Case(layer(), kv=kv, block=4, spans=((1, 1), (6, 6)))
    torch.manual_seed(2)
    caches = [case.make_cache(2) for _ in range(2)]
    inputs = make_inputs(*case.arrays(caches[0][1]), block_size=case.block, device=CPU)
    angles = torch.randn(30, turned // 2)
    rotation = Rotation(angles.cos(), angles.sin(), inputs.positions)
    merged = torch.randn(7, 10 * 16)
    norms = (torch.rand(16) + 0.5, torch.rand(16) + 0.5) if has_norms else None
    backends = [TritonAttention([case.layer], cache) for cache, _ in caches]
    for backend in backends:
        backend.begin(inputs.layout)
    found = backends[0].attend_merged(0, merged, rotation, norms=norms, eps=1e-5)
    queries, keys, values = torch.split(merged.view(7, 10, 16), (6, 2, 2), dim=1)
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
    plan_storing(
        *states, backend._pages[0], torch.tensor([-1, -1, -1]), launching.Target.of(CPU)
    ).run()
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
