"""Prompts by PyTorch's varlen_attn over pages: its real signature and checks, on a double of what it calls on a GPU."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from exo_engine.attention import paged_flash
from exo_engine.attention.layer import Reach
from exo_engine.attention.paged_flash import PagedFlash, find_varlen_attn
from exo_engine.kernels.triton.pages import Pages
from torch._subclasses.fake_tensor import FakeTensorMode

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from attention_cases import LAYERS, Case, layer

from ..flash_attention_double import flash_attention_on_the_cpu

SPANS = ((9, 1), (700, 4), (300, 290), (20, 20))
PAGED = Case(layer(4, 2), torch.bfloat16, "bfloat16", 256, SPANS, way=PagedFlash())

pytestmark = pytest.mark.gpu_kernels


@pytest.fixture(autouse=True)
def has_varlen_attn() -> None:
    """To look for it takes a second, and every process collects this module."""
    if find_varlen_attn() is None:
        pytest.skip("PyTorch 2.13 has it first")


@pytest.fixture
def calls(monkeypatch) -> list[dict]:
    """What FlashAttention was called with."""
    found, really = [], find_varlen_attn()

    def varlen_attn(*args, **kwargs):
        found.append(kwargs)
        return really(*args, **kwargs)

    monkeypatch.setattr(paged_flash, "find_varlen_attn", lambda: varlen_attn)
    with flash_attention_on_the_cpu():
        yield found


@pytest.mark.parametrize("reach", [Reach(), Reach(window=13), Reach(window=300)], ids=str)
@pytest.mark.parametrize("heads", [(4, 2), (2, 2), (3, 1)], ids=str)
def test_prompts_in_permuted_pages_are_those_of_float64(reach, heads, calls):
    """Pages that a sequence lost, and what lies behind its end, hold what is no number."""
    replace(PAGED, layer=layer(*heads, reach=reach)).check()
    assert [call["num_splits"] for call in calls] == [1]


def test_blocks_may_be_any_multiple_of_256(calls):
    replace(PAGED, block=512, spans=((600, 3), (512, 512))).check()
    assert len(calls) == 1


def test_with_contexts_split_the_result_would_be_no_number(calls, monkeypatch):
    """What `num_splits` is given for: the double is wrong as PyTorch is."""
    really = paged_flash.find_varlen_attn()
    monkeypatch.setattr(
        paged_flash,
        "find_varlen_attn",
        lambda: lambda *args, **kwargs: really(*args, **kwargs | {"num_splits": 2}),
    )
    with pytest.raises(AssertionError, match="nan"):
        PAGED.check()


def test_pytorch_takes_what_it_is_given_on_a_gpu():
    """On a double of a GPU's tensors, which have shapes and no numbers: PyTorch checks names, types and sizes."""
    numbers = {"num_kv_heads": 2, "head_dim": 128, "page_size": 256, "stored": "plain"}
    with FakeTensorMode():
        queries = torch.empty(24, 8, 128, dtype=torch.bfloat16, device="cuda")
        held = torch.empty(5, 2 * 256 * 128, dtype=torch.bfloat16, device="cuda")
        ints = torch.empty(3, dtype=torch.int32, device="cuda")
        tables = torch.empty(2, 2, dtype=torch.int32, device="cuda")
        planned = paged_flash.PagedPrompts(slice(0, 24), tables, ints[:2], ints, ints, 20, 94)
        pages = Pages(held, held, held, held, **numbers)
        found = PagedFlash().attend(layer(8, 2, 128), queries, pages, planned)
    assert (found.shape, found.dtype, found.device.type) == (queries.shape, queries.dtype, "cuda")


@pytest.mark.parametrize(
    ("case", "problem"),
    [
        (replace(PAGED, block=16), "blocks of a multiple of 256 tokens, and these have 16 "),
        (replace(PAGED, block=384), "blocks of a multiple of 256 tokens, and these have 384 "),
        (replace(PAGED, layer=LAYERS["cap"]), "no caps, sinks, chunks and latent attention"),
        (replace(PAGED, layer=LAYERS["sinks"]), "no caps, sinks, chunks and latent attention"),
        (replace(PAGED, layer=LAYERS["chunk"]), "no caps, sinks, chunks and latent attention"),
        (replace(PAGED, layer=LAYERS["latent"]), "no caps, sinks, chunks and latent attention"),
        (replace(PAGED, kv="fp8_e4m3"), "16-bit numbers, and the cache has float8_e4m3fn"),
        (replace(PAGED, kv="float16"), "16-bit numbers, and the cache has float16"),
        (replace(PAGED, dtype=torch.float32, kv="float32"), "16-bit numbers"),
        (replace(PAGED, layer=layer(4, 2, 20)), "a multiple of 8 numbers up to 256, .* have 20"),
        (replace(PAGED, layer=layer(4, 2, 512)), "a multiple of 8 numbers up to 256, .* have 512"),
    ],
)
def test_what_it_does_not_take_is_left_out_and_named(case, problem):
    cache, _ = replace(case, spans=((1, 1),)).make_cache(0)
    assert (
        PagedFlash().why_not(PAGED.layer, replace(PAGED, spans=((1, 1),)).make_cache(0)[0]) is None
    )
    found = PagedFlash().why_not(case.layer, cache)
    assert found is not None
    assert re.search(problem, found)


def test_a_pytorch_without_pages_is_named(monkeypatch):
    def of_211(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False): ...

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", of_211)
    cache, _ = replace(PAGED, spans=((1, 1),)).make_cache(0)
    assert "2.13's does" in PagedFlash().why_not(PAGED.layer, cache)
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", None)
    assert "2.13's does" in PagedFlash().why_not(PAGED.layer, cache)
