"""Latent attention by the Triton kernels, under the interpreter; `test_triton.py` has it beside all other kinds."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from exo_engine.attention import _best, create_backend
from exo_engine.attention.layer import Reach
from exo_engine.errors import ConfigurationError
from exo_engine.kernels.triton import attention as launching
from exo_engine.kernels.triton.launch import Target

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from attention_cases import Case, layer

pytestmark = pytest.mark.gpu_kernels

SMALL = ((9, 1), (70, 1), (20, 6))
DEEPSEEK = layer(4, 1, 576, num_latent=512)
MANY = layer(20, 1, 20, num_latent=16)  # more heads than a program of the fixed mode has


@pytest.mark.parametrize("is_fixed", [False, True])
def test_heads_beyond_one_program_read_the_same_rows(is_fixed, monkeypatch):
    monkeypatch.setattr(launching, "FIXED_SEGMENT", 32)
    Case(MANY, spans=SMALL, is_fixed=is_fixed).check()


@pytest.mark.parametrize("kv", ["bfloat16", "fp8_e4m3"])
def test_the_sizes_of_deepseek(kv):
    Case(DEEPSEEK, torch.bfloat16, kv, spans=((40, 1), (33, 5))).check()


def test_latents_without_a_tail_in_pages_of_one_token():
    Case(layer(3, 1, 20, num_latent=20), kv="int8", block=1, spans=SMALL).check()


def test_a_long_context_is_split_among_programs():
    case = Case(layer(3, 1, 20, num_latent=16), spans=((330, 1), (130, 1)))
    part = launching.Part(*[torch.empty(0, dtype=torch.int32)] * 3, 0, 2, 2, 330, uniform_tokens=1)
    tiles = launching.choose_tiles(
        case.layer,
        part,
        Target.of(case.device),
        item_bytes=4,
        stored="plain",
        is_fixed=False,
    )
    assert tiles.segments == 8
    case.check()


@pytest.mark.slow
def test_windows_caps_and_sinks_of_latents():
    each = layer(5, 1, 28, num_latent=24, reach=Reach(window=13), soft_cap=0.7, has_sinks=True)
    Case(each, torch.float16, "fp8_e4m3", 4).check()


def test_it_is_chosen_for_latents_on_a_gpu():
    gpu = SimpleNamespace(device=torch.device("cuda"), block_size=16)
    assert _best([DEEPSEEK, MANY], gpu) == "triton"


def test_latents_that_are_too_large_are_refused_by_name():
    large = [layer(1, 1, 704, num_latent=576)]
    cache, _ = Case(large[0], spans=((1, 1),)).make_cache(0)
    with pytest.raises(
        ConfigurationError, match=r"512 numbers and 128 turned .* this model's have 576"
    ):
        create_backend("triton", large, cache)
