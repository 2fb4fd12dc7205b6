"""Numbers of one byte, read and written by integer operations, are those of torch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from exo_engine.kernels.triton.numbers import decode_e4m3, encode_e4m3, encode_int8


@triton.jit
def decode(codes, numbers, count: tl.constexpr, has_e4m3: tl.constexpr):
    places = tl.arange(0, count)
    tl.store(numbers + places, decode_e4m3(tl.load(codes + places), tl.float32, has_e4m3))


@triton.jit
def encode(numbers, codes, count: tl.constexpr, is_e4m3: tl.constexpr):
    places = tl.arange(0, count)
    found = tl.load(numbers + places)
    tl.store(codes + places, encode_e4m3(found) if is_e4m3 else encode_int8(found))


def test_every_code_of_e4m3_is_read_as_torch_reads_it():
    codes = torch.arange(256, dtype=torch.uint8)
    expected = codes.view(torch.float8_e4m3fn).float()
    for has_e4m3 in (False, True):
        found = torch.empty(256)
        decode[(1,)](codes, found, 256, has_e4m3)
        is_number = expected.isfinite()
        assert is_number.sum() == 254  # two codes are no number, and nobody writes them
        assert torch.equal(found[is_number], expected[is_number])


def test_numbers_become_the_codes_that_torch_gives_them():
    torch.manual_seed(0)
    exact = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    exact = exact[exact.isfinite()].sort().values
    halves = (exact[1:] + exact[:-1]) / 2  # ties go to the even one
    spread = (
        torch.randn(4096 - len(exact) - len(halves)) * torch.logspace(-5, 2.2, 4096)[: 4096 - 507]
    )
    numbers = torch.cat((exact, halves, spread)).clamp(-448, 448)
    found = torch.empty(4096, dtype=torch.uint8)
    encode[(1,)](numbers, found, 4096, True)
    assert torch.equal(found, numbers.to(torch.float8_e4m3fn).view(torch.uint8))


def test_what_is_beyond_the_largest_number_becomes_it():
    numbers = torch.tensor([449.0, -1e6, torch.inf, -torch.inf])
    found = torch.empty(4, dtype=torch.uint8)
    encode[(1,)](numbers, found, 4, True)
    assert found.view(torch.float8_e4m3fn).tolist() == [448.0, -448.0, 448.0, -448.0]


def test_integers_are_rounded_as_torch_rounds():
    numbers = torch.linspace(-127, 127, 1024)
    numbers[:4] = torch.tensor([0.5, 1.5, -0.5, -2.5])
    found = torch.empty(1024, dtype=torch.int8)
    encode[(1,)](numbers, found, 1024, False)
    assert torch.equal(found, numbers.round().to(torch.int8))
