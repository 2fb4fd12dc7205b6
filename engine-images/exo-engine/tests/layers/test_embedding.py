"""An embedding looks up rows of its matrix and projects on them, in INT8 where it is the head of a quantized model."""

from __future__ import annotations

import pytest
import torch
from exo_engine.kernels import VARIABLE
from exo_engine.layers import Context, Embedding
from exo_engine.layers.embedding import Int8Embedding, make_head
from exo_engine.weight_formats import FORMATS, load_format

from ..cpu_kernels import needs_kernels

VOCAB, HIDDEN = 300, 96
CPU, META = torch.device("cpu"), torch.device("meta")


def context(name, dtype=torch.bfloat16, device=CPU):
    return Context(load_format(name), dtype, device)


def filled(layer):
    table = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(0)).bfloat16()
    layer.slots["head.weight"].load(table)
    layer.finish()
    return layer, table


@needs_kernels
@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_head_is_of_int8_where_the_format_says_so_and_there_are_kernels(name, dtype):
    head = make_head(context(name, dtype), "head", VOCAB, HIDDEN)
    is_int8 = name.startswith("int") and dtype == torch.bfloat16
    assert isinstance(head, Int8Embedding if is_int8 else Embedding)


@needs_kernels
def test_a_hidden_size_whose_sums_an_int32_may_not_hold_stays_plain():
    assert isinstance(make_head(context("int8"), "head", 2, 2**16), Int8Embedding)
    assert isinstance(make_head(context("int8"), "head", 2, 2**16 + 8), Embedding)


def test_without_kernels_the_head_stays_plain(monkeypatch):
    monkeypatch.setenv(VARIABLE, "off")
    assert isinstance(make_head(context("int8"), "head", VOCAB, HIDDEN), Embedding)


@needs_kernels
@pytest.mark.parametrize("name", ["int8", "int4"])
def test_a_head_in_int8_is_near_the_plain_one(name):
    int8, table = filled(make_head(context(name), "head", VOCAB, HIDDEN))
    plain, _ = filled(Embedding(context(name), "head", VOCAB, HIDDEN))
    ids = torch.tensor([0, 7, VOCAB - 1, 7])
    steps = table.float().abs().amax(dim=1, keepdim=True) / 127
    found = int8.look_up(ids)
    assert found.dtype == torch.bfloat16
    # Half a step, and what bf16 rounds of a scale and of a number.
    bound = 0.51 * steps[ids] + table[ids].float().abs() / 128
    assert ((found.float() - table[ids].float()).abs() <= bound).all()
    hidden = torch.randn(9, HIDDEN, generator=torch.Generator().manual_seed(1)).bfloat16()
    hidden[0, 5] = 30.0
    logits, expected = int8.project(hidden), plain.project(hidden)
    assert logits.dtype == torch.float32
    assert logits.shape == (9, VOCAB)
    # Errors of weights are even within a step, and independent: a twelfth of its square each.
    spread = hidden.float().norm(dim=1, keepdim=True) * steps.T / 12**0.5
    assert ((logits - expected).abs() <= 6 * spread).all()


@needs_kernels
def test_its_bytes_are_known_before_anything_is_loaded():
    sizes = {
        make_head(context("int8", device=device), "head", VOCAB, HIDDEN).num_bytes
        for device in (CPU, META)
    }
    assert sizes == {5 * 64 * (HIDDEN + 2)}
