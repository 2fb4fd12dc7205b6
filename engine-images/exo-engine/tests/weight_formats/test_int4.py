"""INT4 is near the plain matrix, the same on every path, and takes whole groups alone."""

from __future__ import annotations

import pytest
import torch
from exo_engine.kernels.library import VARIABLE
from exo_engine.llm import LLM
from exo_engine.sampling_params import SamplingParams
from exo_engine.weight_formats import int4, load_format
from exo_engine.weight_formats.base import Share, WeightFormat

from ..cpu_kernels import PATHS, needs_kernels

CPU = torch.device("cpu")
OPTIONS = {"device": "cpu", "block_size": 16, "max_model_len": 128}

FORMS = {"int4": 32, "int4_per_group_64": 64, "int4_per_group_128": 128}
"""Inputs that share a scale."""


def filled(weight: torch.Tensor, name: str = "int4") -> WeightFormat:
    matrix = load_format(name)(*weight.shape, dtype=torch.float32, device=CPU)
    whole = slice(0, len(weight))
    matrix.load("weight", weight, Share(whole, whole, slice(0, weight.shape[1])))
    matrix.finish()
    return matrix


def numbers(matrix: WeightFormat, weight: torch.Tensor) -> torch.Tensor:
    return matrix.multiply(torch.eye(weight.shape[1]), None).T


@torch.inference_mode()
@pytest.mark.parametrize("slab", [1, 100, 2**20])
@pytest.mark.parametrize("columns", [8, 64, 80, 300])
@pytest.mark.parametrize("name", FORMS)
def test_weights_are_near(
    name: str, columns: int, slab: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int4, "_SLAB_WEIGHTS", slab)
    monkeypatch.setattr(int4, "_LOADING_SLAB_WEIGHTS", slab)
    torch.manual_seed(0)
    weight = torch.randn(70, columns) * torch.logspace(-4, 1, 70).unsqueeze(1)
    weight[7] = 0.0
    found = numbers(filled(weight, name), weight)
    assert (found[7] == 0).all()
    rows = torch.arange(70) != 7
    error = (found - weight)[rows].norm(dim=1) / weight[rows].norm(dim=1)
    assert error.max() < 0.16, "16 steps across a group's range"
    # The largest of more numbers is larger, and so is a step.
    assert error.mean() < {32: 0.1, 64: 0.11, 128: 0.12}[FORMS[name]]


@torch.inference_mode()
@pytest.mark.parametrize("exponent", [-110, -60, 60, 100])
@pytest.mark.parametrize("name", FORMS)
def test_weights_of_any_size_have_the_same_codes(name: str, exponent: int) -> None:
    """Squares of numbers beyond 1e19 are no numbers of float32, and those of numbers below 1e-23 are 0."""
    torch.manual_seed(0)
    weight = torch.randn(5, 300) * torch.logspace(-1, 1, 5).unsqueeze(1)
    weight[3] = 0.0
    codes, scales = int4._quantize(weight, FORMS[name])
    others, shifted = int4._quantize(torch.ldexp(weight, torch.tensor(exponent)), FORMS[name])
    assert torch.equal(others, codes)
    assert torch.equal(shifted, torch.ldexp(scales, torch.tensor(exponent)))


@torch.inference_mode()
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", FORMS)
def test_one_weight_far_beyond_the_others_is_kept(name: str, sign: int) -> None:
    """A group's scale has the opposite sign of its largest number, so all scales count, not those above 0 alone."""
    torch.manual_seed(0)
    weight = torch.randn(70, 300) * 0.02
    weight[5, 7] = sign * 1e5
    found = numbers(filled(weight, name), weight)
    assert found[5, 7] == pytest.approx(sign * 1e5, rel=0.01)
    others = torch.arange(300) // FORMS[name] != 7 // FORMS[name]
    assert (found - weight)[:, others].norm() < 0.16 * weight[:, others].norm()


@torch.inference_mode()
@pytest.mark.parametrize("name", FORMS)
def test_weights_of_sixteen_steps_stay_as_they_are(name: str) -> None:
    steps = torch.arange(-8.0, 8.0).repeat(3, 16)
    assert torch.equal(numbers(filled(steps * 0.25, name), steps), steps * 0.25)


@torch.inference_mode()
@pytest.mark.parametrize("name", FORMS)
def test_as_many_inputs_share_a_scale_as_the_name_says(name: str) -> None:
    """Groups of whole steps, each twice as far apart as the one before, need their own scales and no more."""
    size = FORMS[name]
    steps = torch.arange(-8.0, 8.0).repeat(2, 256 // 16)
    doubled = steps * 2.0 ** (torch.arange(256) // size)
    assert torch.equal(numbers(filled(doubled, name), steps), doubled)
    halves = steps * 16.0 ** (torch.arange(256) // (size // 2))
    assert not torch.equal(numbers(filled(halves, name), steps), halves)
    assert filled(steps, name).num_bytes == 64 * (256 // 2 + 256 // size * 2)


@pytest.mark.parametrize("name", FORMS)
def test_a_share_that_begins_within_a_group_is_not_taken(name: str) -> None:
    size = FORMS[name]
    matrix = load_format(name)(4, size // 2, dtype=torch.float32, device=CPU)
    whole = slice(0, 4)
    with pytest.raises(AssertionError, match="ranks share no group"):
        matrix.load("weight", torch.ones(4, size), Share(whole, whole, slice(size // 2, size)))


@needs_kernels
@pytest.mark.parametrize("quantization", ["int8", *FORMS])
@pytest.mark.parametrize("family", ["qwen3", "qwen3-moe"])
def test_kernels_and_pytorch_agree(tiny_model, prompts, family, quantization, monkeypatch):
    """Inputs in 8 bits are all that differs."""
    path, found = tiny_model(family).path, []
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=3)
    for kernels in (PATHS[0], "off"):
        monkeypatch.setenv(VARIABLE, kernels)
        llm = LLM(path, dtype="bfloat16", quantization=quantization, **OPTIONS)
        found.append([dict(each.logprobs[0].top) for each in llm.generate(prompts, params)])
    for a, b in zip(*found, strict=True):
        shared = a.keys() & b.keys()
        assert shared
        assert [a[token] for token in shared] == pytest.approx([b[t] for t in shared], abs=0.5)
