"""By what prompts are computed: who is measured, who is taken, and who is left out."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
import torch
from exo_engine import attention
from exo_engine.attention import create_backend, prompt_choice
from exo_engine.attention.gathering import Gathering, attend_by_torch
from exo_engine.attention.paged_flash import PagedFlash, find_varlen_attn
from exo_engine.attention.triton import TritonAttention

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import attention_cases
from attention_cases import Case, layer

from ..flash_attention_double import flash_attention_on_the_cpu

pytestmark = pytest.mark.gpu_kernels


class Stopwatch:
    """A double: what each way of each length takes is said here, the longest length first, the kernels first.

    It works once for each of the longest length, and not for the others: each is a step of the interpreter.
    """

    def __init__(self, *taken: float, num_works: int = 2) -> None:
        self.taken = list(taken)
        self._num_works = num_works

    def __call__(self, work) -> float:
        if self._num_works:
            self._num_works -= 1
            work()
        return self.taken.pop(0)


@pytest.fixture
def backend(monkeypatch) -> TritonAttention:
    """Blocks of 16 tokens, which nobody but the gathering takes."""
    monkeypatch.setattr(prompt_choice, "LENGTHS", (2, 4, 8, 10**6))
    cache, _ = Case(layer(2, 1), spans=((40, 1),)).make_cache(0)
    return TritonAttention([layer(2, 1)], cache)


class Wrong(Gathering):
    """Other numbers for the last token of a step."""

    def attend(self, *arguments):
        found = Gathering.attend(self, *arguments)
        found[-1] *= 1.05
        return found


def gathers(backend: TritonAttention, num_tokens: int) -> bool:
    """Whether a prompt of so many tokens would be computed in another way than by the kernels."""
    case = Case(layer(2, 1), spans=((num_tokens, num_tokens),), block=backend.block_size)
    inputs = attention_cases.make_inputs(
        *case.arrays([list(range(3))]), block_size=case.block, device=attention_cases.CPU
    )
    backend.begin(inputs.layout)
    return bool(backend._prompts)


def test_prompts_are_gathered_from_the_length_on_from_which_that_is_faster(backend):
    # 8: in place 3, gathered 2; 4: 2, 1; 2: 1, 2
    watch = Stopwatch(3, 2, 2, 1, 1, 2)
    assert prompt_choice.choose_for_prompts(backend, watch) == ("by gathering", 4)
    assert [gathers(backend, length) for length in (2, 3, 4, 33)] == [False, False, True, True]


def test_nothing_is_gathered_where_long_prompts_are_slower_so(backend):
    assert prompt_choice.choose_for_prompts(backend, Stopwatch(2, 3)) is None
    assert not gathers(backend, 33)


def test_what_gives_other_numbers_is_dropped_by_name(backend, monkeypatch, caplog):
    monkeypatch.setattr(prompt_choice, "_WAYS", (Wrong(attend_by_torch),))
    assert prompt_choice.choose_for_prompts(backend, Stopwatch()) is None
    assert "prompts are not computed by gathering, which gives other numbers" in caplog.text
    assert not gathers(backend, 33)


def test_what_fails_is_dropped_by_name(backend, monkeypatch, caplog):
    def fail(*arguments):
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer")

    monkeypatch.setattr(prompt_choice, "_WAYS", (Gathering(fail),))
    assert prompt_choice.choose_for_prompts(backend, Stopwatch()) is None
    assert "not computed by gathering, which failed: FlashAttention only supports" in caplog.text
    assert not gathers(backend, 33)


def test_what_fails_at_a_shorter_length_only_is_dropped_as_well(backend, monkeypatch, caplog):
    def fail(each, queries, *rest):
        if len(queries) == 4:
            raise RuntimeError("no kernel for that")
        return attend_by_torch(each, queries, *rest)

    monkeypatch.setattr(prompt_choice, "_WAYS", (Gathering(fail),))
    assert prompt_choice.choose_for_prompts(backend, Stopwatch(3, 2, 2)) is None
    assert not gathers(backend, 33)


def test_no_page_keeps_what_the_check_wrote(backend):
    prompt_choice.choose_for_prompts(backend, Stopwatch(1, 2))
    assert not torch.isnan(backend._pages[0].keys[3:].float()).any()


@pytest.fixture
def paged(monkeypatch) -> TritonAttention:
    """Blocks of 256 tokens of bfloat16, and FlashAttention's double."""
    if find_varlen_attn() is None:
        pytest.skip("PyTorch 2.13 has it first")
    monkeypatch.setattr(prompt_choice, "LENGTHS", (4, 8))
    case = Case(layer(2, 1), torch.bfloat16, "bfloat16", 256, spans=((256, 1),))
    cache, _ = case.make_cache(0)
    with flash_attention_on_the_cpu():
        yield TritonAttention([layer(2, 1)], cache)


@pytest.mark.parametrize(
    ("taken", "chosen"),
    [
        ((3, 2, 1, 3, 2, 1), (PagedFlash.name, 4)),
        ((3, 1, 2, 3, 1, 2), ("by gathering", 4)),
        ((3, 2, 1, 3, 2, 4), (PagedFlash.name, 8)),  # the fastest at the longest length
        ((3, 4, 2, 3, 2), (PagedFlash.name, 4)),  # gathering is not measured again
        ((1, 2, 2), None),
    ],
    ids=str,
)
def test_the_fastest_of_two_ways_is_taken(taken, chosen, paged, monkeypatch):
    monkeypatch.setattr(prompt_choice, "_right_ways", lambda backend, index, ways: ways)  # below
    watch = Stopwatch(*taken, num_works=3)
    assert prompt_choice.choose_for_prompts(paged, watch) == chosen
    assert watch.taken == []
    assert gathers(paged, 8) == (chosen is not None)
    assert gathers(paged, 7) == (chosen is not None and chosen[1] == 4)


def test_pages_that_pytorch_splits_are_found_out_in_the_step_of_random_pages(
    paged, monkeypatch, caplog
):
    """One prompt alone would not show it: with contexts split, sequences after the first are not written."""
    from exo_engine.attention import paged_flash

    really = find_varlen_attn()
    monkeypatch.setattr(
        paged_flash,
        "find_varlen_attn",
        lambda: lambda *args, **kwargs: really(*args, **kwargs | {"num_splits": None}),
    )
    watch = Stopwatch(3, 2, 3, 2)
    assert prompt_choice.choose_for_prompts(paged, watch) == ("by gathering", 4)
    assert f"not computed {PagedFlash.name}, which gives other numbers" in caplog.text


def test_a_cache_that_pytorch_cannot_read_is_said(backend, caplog):
    caplog.set_level(logging.INFO)
    prompt_choice.choose_for_prompts(backend, Stopwatch(1, 2))
    assert f"not computed {PagedFlash.name}: it needs blocks of a multiple of 256" in caplog.text


def test_auto_measures_on_a_gpu_and_only_there(monkeypatch):
    """On a double of a GPU: the interpreter's kernels, and a stopwatch that finds gathering faster."""
    monkeypatch.setattr(prompt_choice, "LENGTHS", (8,))
    cache, _ = Case(layer(2, 1), spans=((40, 1),)).make_cache(0)
    assert not isinstance(create_backend("auto", [layer(2, 1)], cache), TritonAttention)
    monkeypatch.setattr(attention, "_best", lambda layers, cache: "triton")
    monkeypatch.setattr(prompt_choice, "gpu_seconds", Stopwatch(2, 1))
    found = create_backend("auto", [layer(2, 1)], cache)
    assert gathers(found, 8)
    assert not gathers(create_backend("triton", [layer(2, 1)], cache), 33)
    assert not gathers(create_backend("auto", [layer(2, 1)], cache, is_fixed=True), 33)
