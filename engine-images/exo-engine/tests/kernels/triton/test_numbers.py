"""Numbers of one byte, read and written by integer operations, are those of torch."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from exo_engine.kernels.triton.numbers import (
    E4M3_INTEGERS_PTX,
    E4M3_PTX,
    INT8_PTX,
    decode_e4m3,
    encode_e4m3,
    encode_int8,
)

pytestmark = pytest.mark.gpu_kernels


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


def run_ptx(text: str, codes: np.ndarray) -> np.ndarray:
    """Do what a few instructions do with four bytes each: (n, 4) uint8 to (n, 4) float16.

    No GPU is here: a double of those that `numbers.py` has, as the PTX manual says of each (ISA 8.7, 9.7).
    """
    registers = {"$2": codes.view(np.uint32)[:, 0].copy()}

    def value(name: str) -> np.ndarray | np.uint32:
        return registers[name] if name in registers else np.uint32(int(name, 0))

    def halves(name: str) -> np.ndarray:
        return np.broadcast_to(value(name), len(codes)).copy().view(np.float16).reshape(-1, 2)

    for line in re.findall(r"^(?!\.reg)(\w[\w.]*) (.*);$", text, re.MULTILINE):
        name, rest = line
        target, *sources = re.findall(r"\{.*?\}|[$\w]+", rest)
        if target.startswith("{"):  # the lower half first
            low, high = re.findall(r"\w+", target)
            registers |= {low: value(sources[0]) & 0xFFFF, high: value(sources[0]) >> 16}
            continue
        if name == "mov.b32":
            found = np.full(len(codes), value(sources[0]), np.uint32)
        elif name == "prmt.b32":
            pair = [np.broadcast_to(value(each), len(codes)).copy() for each in sources[:2]]
            pool = np.stack(pair, axis=1).view(np.uint8)
            wanted = [int(sources[2], 0) >> shift & 0xF for shift in (0, 4, 8, 12)]
            found = np.ascontiguousarray(pool[:, wanted]).view(np.uint32)[:, 0]
        elif name == "cvt.rn.f16x2.e4m3x2":
            both = np.stack([value(sources[0]) & 0xFF, value(sources[0]) >> 8], axis=1)
            numbers = torch.from_numpy(both.astype(np.uint8)).view(torch.float8_e4m3fn).half()
            found = numbers.numpy().view(np.uint32)[:, 0]
        elif name.endswith(".f16x2"):
            one, other = map(halves, sources)
            numbers = one * other if name == "mul.f16x2" else one - other
            assert name in ("mul.f16x2", "sub.f16x2")
            found = numbers.view(np.uint32)[:, 0]
        else:
            one, other = map(value, sources)
            operations = {
                "and": np.bitwise_and,
                "or": np.bitwise_or,
                "xor": np.bitwise_xor,
                "shr": np.right_shift,
            }
            found = operations[name.removesuffix(".b32")](one, other)  # fmt: skip
        registers[target] = found
    return np.stack([registers["$0"], registers["$1"]], axis=1).view(np.float16)


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        (E4M3_PTX, torch.float8_e4m3fn),
        (E4M3_INTEGERS_PTX, torch.float8_e4m3fn),
        (INT8_PTX, torch.int8),
    ],
    ids=["hardware", "integers", "int8"],
)
def test_instructions_make_the_numbers_that_torch_makes_of_four_bytes(text, dtype):
    codes = torch.arange(256, dtype=torch.uint8)
    expected = codes.view(dtype).half().view(-1, 4)
    found = torch.from_numpy(run_ptx(text.value, codes.view(-1, 4).numpy()))
    is_number = expected.isfinite()
    assert is_number.sum() >= 254
    assert torch.equal(found[is_number], expected[is_number])


def test_instructions_write_nothing_before_all_is_read():
    """So that an output may have the register of the input, as the compiler is told it may not."""
    for text in (E4M3_PTX, E4M3_INTEGERS_PTX, INT8_PTX):
        lines = text.value.splitlines()
        first_output = next(i for i, line in enumerate(lines) if "$0" in line)
        assert all("$2" not in line for line in lines[first_output:])
