"""FP8 equals the numbers that its codes stand for; PyTorch's scaled product and Triton's kernels give the same."""

from __future__ import annotations

import pytest
import torch
from exo_engine.errors import ConfigurationError
from exo_engine.kernels.triton import launch
from exo_engine.kernels.triton.launch import Target
from exo_engine.weight_formats import fp8
from exo_engine.weight_formats.base import Share
from exo_engine.weight_formats.fp8 import Fp8, Fp8PerBlock, Fp8PerTensor
from torch._subclasses.fake_tensor import FakeTensorMode

CPU = torch.device("cpu")
KINDS = [Fp8, Fp8PerTensor, Fp8PerBlock]


def filled(kind: type[Fp8], parts: list[torch.Tensor], dtype: torch.dtype = torch.float32) -> Fp8:
    num_rows, num_columns = sum(map(len, parts)), parts[0].shape[1]
    matrix = kind(num_rows, num_columns, dtype=dtype, device=CPU)
    first = 0
    for part in parts:
        target = slice(first, first + len(part))
        matrix.load("weight", part, Share(target, slice(0, len(part)), slice(0, num_columns)))
        first = target.stop
    matrix.finish()
    return matrix


def rounded(kind: type[Fp8], part: torch.Tensor) -> torch.Tensor:
    """What FP8 makes of one matrix of a checkpoint, in float32, written out plainly."""
    blocks = [part] if kind is not Fp8PerBlock else list(part.split(128, dim=1))
    found = []
    for block in blocks:
        largest = block.abs().amax() if kind is Fp8PerTensor else block.abs().amax(1, keepdim=True)
        scale = torch.where(largest > 0, largest / 448, 1.0)
        found.append((block / scale).to(torch.float8_e4m3fn).float() * scale)
    return torch.cat(found, dim=1)


def two_parts(num_columns: int = 200) -> list[torch.Tensor]:
    torch.manual_seed(0)
    parts = [torch.randn(48, num_columns), 30 * torch.randn(32, num_columns)]
    parts[0][7] = 0.0
    return parts


@torch.inference_mode()
@pytest.mark.parametrize("slab", [100, 2**20])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_rounded_by_their_own_scale(
    kind: type[Fp8], slab: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fp8._SLAB_WEIGHTS, "cpu", slab)
    monkeypatch.setitem(fp8._LOADING_SLAB_WEIGHTS, "cpu", slab)
    parts = two_parts()
    matrix, bias = filled(kind, parts), torch.randn(80)
    expected = torch.cat([rounded(kind, part) for part in parts])
    inputs = torch.randn(5, 200)
    wanted = inputs @ expected.T + bias
    error = (matrix.multiply(inputs, bias) - wanted).abs().max()
    assert error < 1e-6 * wanted.abs().max(), "as far as float32 sums are exact"
    assert matrix.num_bytes < 80 * 200 * 1.1


@torch.inference_mode()
@pytest.mark.parametrize(("num_rows", "fewer"), [(7, 1), (40, 33)], ids=["in Triton", "in PyTorch"])
@pytest.mark.parametrize("kind", [Fp8, Fp8PerTensor])
def test_the_scaled_product_is_that_of_inputs_in_fp8(
    kind: type[Fp8], num_rows: int, fewer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, few rows in Triton and more in PyTorch, which has this product on a CPU, too."""
    monkeypatch.setattr(fp8, "is_for_triton", lambda device: True)
    parts = two_parts(96)
    matrix = filled(kind, parts, torch.bfloat16)
    assert matrix.is_scaled
    torch.manual_seed(1)
    inputs, bias = torch.randn(num_rows, 96).bfloat16(), torch.randn(80).bfloat16()
    inputs[2] *= 100
    factors = inputs.float().abs().amax(dim=1, keepdim=True) / 448
    seen = (inputs.float() / factors).to(torch.float8_e4m3fn).float() * factors
    expected = seen @ torch.cat([rounded(kind, part) for part in parts]).T + bias.float()
    found = matrix.multiply(inputs, bias)
    assert found.dtype == torch.bfloat16
    error = (found.float() - expected).abs().amax(dim=1) / expected.abs().amax(dim=1)
    assert error.max() < 2**-7
    assert torch.equal(found[:fewer], matrix.multiply(inputs[:fewer], bias)), (
        "no row knows of another"
    )


@torch.inference_mode()
@pytest.mark.parametrize("kind", [Fp8, Fp8PerTensor])
def test_what_pytorch_does_not_scale_keeps_its_inputs_for_few_rows_as_for_many(
    kind: type[Fp8], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fp8, "is_for_triton", lambda device: True)
    parts = two_parts(52)
    matrix = filled(kind, parts, torch.bfloat16)
    assert not matrix.is_scaled
    inputs = torch.randn(40, 52).bfloat16()
    expected = inputs.float() @ torch.cat([rounded(kind, part) for part in parts]).T
    for rows in (slice(0, 3), slice(0, 40)):
        off = (matrix.multiply(inputs[rows], None).float() - expected[rows]).abs().max()
        assert off < 2**-7 * expected.abs().max()


@pytest.mark.parametrize("num_rows", [1, 7, 40])
@pytest.mark.parametrize("kind", [Fp8, Fp8PerTensor])
def test_a_gpus_scaled_product_takes_what_it_is_given(
    kind: type[Fp8], num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a double of a GPU's tensors: PyTorch checks types, strides and the shapes of scales."""
    hopper = Target(True, 90, 132)
    monkeypatch.setattr(Target, "of", classmethod(lambda cls, device: hopper))
    monkeypatch.setattr(launch.Launch, "run", lambda self: None)
    monkeypatch.setattr(fp8, "check_finite", lambda largest: None)  # the double has no numbers
    with FakeTensorMode():
        matrix = kind(80, 96, dtype=torch.bfloat16, device=torch.device("cuda"))
        first = 0
        for num in (48, 32):
            part, target = torch.empty(num, 96), slice(first, first + num)
            matrix.load("weight", part, Share(target, slice(0, num), slice(0, 96)))
            first += num
        matrix.finish()
        assert matrix.is_scaled
        inputs = torch.empty(num_rows, 96, dtype=torch.bfloat16, device="cuda")
        found = matrix.multiply(inputs, torch.empty(80, dtype=torch.bfloat16, device="cuda"))
    assert (found.shape, found.dtype) == ((num_rows, 80), torch.bfloat16)


@torch.inference_mode()
@pytest.mark.parametrize("num_rows", [3, 129])
def test_blocks_are_multiplied_in_triton_for_few_rows(
    num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fp8, "is_for_triton", lambda device: True)
    parts = two_parts()
    matrix, bias = filled(Fp8PerBlock, parts), torch.randn(80)
    launched = []
    run = launch.Launch.run
    monkeypatch.setattr(launch.Launch, "run", lambda self: (launched.append(self), run(self)))
    inputs = torch.randn(num_rows, 200)
    expected = inputs @ torch.cat([rounded(Fp8PerBlock, part) for part in parts]).T + bias
    found = matrix.multiply(inputs, bias)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
    assert bool(launched) == (num_rows <= 128)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (Target(True, 80, 108), "compute capability 8.0 cannot"),
        (Target(True, 86, 64), "compute capability 8.6 cannot"),
        (Target(False, 942, 304), "gfx942 has another 8-bit format"),
    ],
)
@pytest.mark.parametrize("kind", [Fp8, Fp8PerTensor])
def test_gpus_without_such_products_are_refused_by_name(
    kind: type[Fp8], target: Target, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fp8, "is_for_triton", lambda device: True)
    monkeypatch.setattr(Target, "of", classmethod(lambda cls, device: target))
    with pytest.raises(ConfigurationError, match=words) as caught:
        kind(16, 16, dtype=torch.bfloat16, device=CPU)
    assert "fp8_per_block" in (caught.value.hint or "")
    Fp8PerBlock(16, 16, dtype=torch.bfloat16, device=CPU)


@pytest.mark.parametrize("capability", [89, 90, 100, 120])
def test_others_multiply(capability: int) -> None:
    assert not fp8.why_not_scaled(Target(True, capability, 100))
    assert not fp8.why_not_scaled(Target(False, 950, 256))
