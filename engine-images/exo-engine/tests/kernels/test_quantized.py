"""Products with codes are those of the numbers that they stand for, and blocks of known formats fit in."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from exo_engine.kernels.library import Kernels, load_path
from exo_engine.kernels.quantized import QuantizedMatrix

from ..cpu_kernels import PATHS

SHAPES = ((64, 32), (200, 130), (17, 6), (129, 576))
KINDS = ((8, 32, False), (8, 640, False), (4, 32, False), (4, 64, True), (4, 128, False))


@pytest.fixture
def kernels(kernels_for_codes: Kernels) -> Kernels:
    return kernels_for_codes


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def _matrix(shape: tuple[int, int], bits: int, group: int, *, has_zeros: bool) -> QuantizedMatrix:
    matrix = QuantizedMatrix(*shape, bits=bits, group=group, has_zeros=has_zeros)
    generator = torch.Generator().manual_seed(7)
    of_groups = shape[0], matrix.num_groups
    zeros = torch.randint(2**bits, of_groups, generator=generator, dtype=torch.uint8)
    matrix.pack(
        torch.randint(2**bits, shape, generator=generator, dtype=torch.uint8),
        torch.rand(of_groups, generator=generator) * 0.01,
        zeros if has_zeros else None,
    )
    return matrix


def _as_kernels_see(inputs: torch.Tensor) -> torch.Tensor:
    """Inputs in 8 bits, turned back."""
    largest = inputs.float().abs().amax(dim=1, keepdim=True)
    codes = (inputs.float() * torch.div(torch.full_like(largest, 127), largest)).round()
    return codes.double() * (largest / 127).double()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("bits", "group", "has_zeros"), KINDS)
def test_products_are_those_of_the_numbers(
    kernels: Kernels, shape: tuple[int, int], bits: int, group: int, *, has_zeros: bool
) -> None:
    matrix = _matrix(shape, bits, group, has_zeros=has_zeros)
    numbers = matrix.numbers(slice(0, shape[0])).double()
    for num_rows in (1, 2, 3, 4, 5, 6, 7, 12, 33):
        inputs, bias = _random(num_rows, shape[1]), _random(shape[0])
        exact = _as_kernels_see(inputs) @ numbers.T
        sums = matrix.multiply(kernels, inputs, dtype=torch.float32)
        assert (sums - exact).abs().max() <= 2e-6 * shape[1] ** 0.5 * exact.abs().max()
        assert torch.equal(matrix.multiply(kernels, inputs), sums.bfloat16())
        assert torch.equal(matrix.multiply(kernels, inputs, bias), (sums + bias).bfloat16())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("group", [32, 640])
def test_products_of_inputs_in_16_bits_are_nearly_those_of_the_inputs(
    kernels: Kernels, shape: tuple[int, int], group: int
) -> None:
    matrix = _matrix(shape, 8, group, has_zeros=False)
    matrix.scale = 0.5
    numbers = matrix.numbers(slice(0, shape[0])).double()
    for num_rows in (1, 2, 3, 5, 6, 7, 16, 17, 33):
        inputs = _random(num_rows, shape[1])
        inputs[0, 3] = 40.0  # where 8 bits would leave little of the others
        exact, step = inputs.double() @ numbers.T, inputs.float().abs().amax(dim=1) / 127 / 256
        sums = matrix.multiply(kernels, inputs, dtype=torch.float32, input_bits=16)
        # Each input is off by half a step at most.
        bound = step.double().unsqueeze(1) / 2 * numbers.abs().sum(dim=1) + 1e-5 * exact.abs().max()
        assert ((sums - exact).abs() <= bound).all()
        assert torch.equal(matrix.multiply(kernels, inputs, input_bits=16), sums.bfloat16())
        bias = _random(shape[0])
        with_bias = matrix.multiply(kernels, inputs, bias, input_bits=16)
        assert torch.equal(with_bias, (sums + bias).bfloat16())
        for num_threads in (1, 3):
            kernels.set_num_threads(num_threads)
            for row in range(num_rows):
                alone = matrix.multiply(
                    kernels, inputs[row : row + 1], dtype=torch.float32, input_bits=16
                )
                assert torch.equal(alone[0], sums[row])
        kernels.set_num_threads(2)


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_largest_sums_of_4_bit_codes_fit(
    kernels: Kernels, group: int, sign: float, *, has_zeros: bool
) -> None:
    """Where they are added up in 16 bits, all codes at their largest times all inputs at theirs are the most."""
    matrix = QuantizedMatrix(64, 2 * group, bits=4, group=group, has_zeros=has_zeros)
    of_groups = 64, matrix.num_groups
    zeros = torch.zeros(of_groups, dtype=torch.uint8) if has_zeros else None
    codes = torch.full((64, 2 * group), 15, dtype=torch.uint8)
    matrix.pack(codes, torch.ones(of_groups), zeros)
    inputs = torch.full((3, 2 * group), sign * 127).bfloat16()
    expected = torch.full((3, 64), sign * 127 * 2 * group * (15 if has_zeros else 7))
    assert torch.equal(matrix.multiply(kernels, inputs, dtype=torch.float32), expected)


@pytest.mark.parametrize("code", [0, 255])
@pytest.mark.parametrize("number", [-1.0, -255 / 256, 255 / 256, 1.0])
def test_sums_of_the_largest_group_of_inputs_in_16_bits_fit(
    kernels: Kernels, code: int, number: float
) -> None:
    """High numbers are -127 or 127, and of 255 / 256 low ones are 127 or -127."""
    size = 2**16
    matrix = QuantizedMatrix(64, size, bits=8, group=size)
    matrix.pack(torch.full((64, size), code, dtype=torch.uint8), torch.full((64, 1), 2.0**-8))
    inputs = torch.full((2, size), number).bfloat16()
    inputs[:, 0] = 1.0
    exact = inputs.double() @ matrix.numbers(slice(0, 1)).double().T  # all rows are alike
    found = matrix.multiply(kernels, inputs, dtype=torch.float32, input_bits=16)
    assert ((found - exact).abs() <= 1e-4 * exact.abs()).all()


@pytest.mark.parametrize("shape", [(200, 130), (17, 6), (129, 576)], ids=str)
@pytest.mark.parametrize("group", [32, 640])
def test_rows_of_codes_are_looked_up_as_numbers(
    kernels: Kernels, shape: tuple[int, int], group: int
) -> None:
    matrix = _matrix(shape, 8, group, has_zeros=False)
    matrix.scale = 0.25
    ids = torch.tensor([0, shape[0] - 1, 16, 3, 3])
    expected = matrix.numbers(slice(0, shape[0]))[ids].bfloat16()
    assert torch.equal(matrix.rows(kernels, ids), expected)
    assert matrix.rows(kernels, ids[:0]).shape == (0, shape[1])


@pytest.mark.parametrize(("bits", "group", "has_zeros"), KINDS)
def test_a_row_has_the_same_bits_alone_in_any_batch_and_on_any_threads(
    kernels: Kernels, bits: int, group: int, *, has_zeros: bool
) -> None:
    matrix = _matrix((200, 130), bits, group, has_zeros=has_zeros)
    inputs = _random(13, 130)
    together = matrix.multiply(kernels, inputs, dtype=torch.float32)
    for num_threads in (1, 2, 3):
        kernels.set_num_threads(num_threads)
        for row in range(13):
            alone = matrix.multiply(kernels, inputs[row : row + 1], dtype=torch.float32)
            assert torch.equal(alone[0], together[row])
        assert torch.equal(matrix.multiply(kernels, inputs, dtype=torch.float32), together)


# Those that tiles of 16 rows multiply where there are any.
ON_TILES = ((8, None, False), (4, 32, False), (4, 32, True), (4, 64, True), (4, 128, False))


@pytest.mark.parametrize("shape", [(200, 130), (17, 6), (129, 576)], ids=str)
@pytest.mark.parametrize(("bits", "group", "has_zeros"), ON_TILES)
def test_a_row_has_the_same_bits_among_any_number_of_rows(
    kernels: Kernels, shape: tuple[int, int], bits: int, group: int | None, *, has_zeros: bool
) -> None:
    """Sums of a group are whole numbers, added exactly whatever adds them."""
    matrix = _matrix(shape, bits, group or -(-shape[1] // 8) * 8, has_zeros=has_zeros)
    inputs = _random(70, shape[1])
    together = matrix.multiply(kernels, inputs, dtype=torch.float32)
    for num_rows in (*range(1, 35), 48, 49, 65):
        for first in (0, 70 - num_rows):
            some = matrix.multiply(kernels, inputs[first : first + num_rows], dtype=torch.float32)
            assert torch.equal(some, together[first : first + num_rows])


@pytest.mark.skipif("amx" not in PATHS, reason="no tiles here")
@pytest.mark.parametrize("shape", [(200, 130), (17, 6), (129, 576)], ids=str)
@pytest.mark.parametrize(("bits", "group", "has_zeros"), ON_TILES)
def test_tiles_have_the_bits_of_the_instruction_for_one_row(
    shape: tuple[int, int], bits: int, group: int | None, *, has_zeros: bool
) -> None:
    matrix = _matrix(shape, bits, group or -(-shape[1] // 8) * 8, has_zeros=has_zeros)
    for num_rows in (1, 4, 5, 16, 17, 33, 70):
        inputs = _random(num_rows, shape[1])
        for input_bits in (8, 16) if bits == 8 else (8,):
            tiles, rows = (
                matrix.multiply(load_path(path), inputs, dtype=torch.float32, input_bits=input_bits)
                for path in ("amx", "avx512_bf16")
            )
            assert torch.equal(tiles, rows)


@pytest.mark.parametrize(("bits", "input_bits"), [(4, 8), (8, 8), (8, 16)])
def test_nan_and_infinity_spoil_their_own_row_alone(
    kernels: Kernels, bits: int, input_bits: Literal[8, 16]
) -> None:
    matrix = _matrix((64, 48), bits, 32, has_zeros=False)
    inputs = _random(5, 48)
    inputs[0, 1], inputs[1, 2], inputs[2, 47], inputs[3] = torch.nan, torch.inf, -torch.inf, 0
    outputs = matrix.multiply(kernels, inputs, dtype=torch.float32, input_bits=input_bits)
    assert not outputs[:3].isfinite().any()
    assert (outputs[3] == 0).all()
    assert outputs[4].isfinite().all()


@pytest.mark.parametrize(("bits", "group", "has_zeros"), KINDS)
def test_what_was_packed_comes_back(bits: int, group: int, *, has_zeros: bool) -> None:
    matrix = QuantizedMatrix(150, 96, bits=bits, group=group, has_zeros=has_zeros)
    codes = torch.randint(2**bits, (150, 96), dtype=torch.uint8)
    zeros = torch.randint(2**bits, (150, matrix.num_groups), dtype=torch.uint8)
    # Every float16 but NaN, whose bits a conversion may change: down to the smallest.
    halves = torch.arange(150 * matrix.num_groups, dtype=torch.int16) * 13 % 31743
    scales = halves.view(torch.float16).view(150, -1)
    matrix.pack(codes, scales.float(), zeros if has_zeros else None)
    for rows in (slice(0, 150), slice(70, 131)):
        found = matrix.unpack(rows)
        assert torch.equal(found[0], codes[rows])
        assert torch.equal(found[1], scales[rows])
        assert torch.equal(found[2], zeros[rows]) or not has_zeros


def test_blocks_of_gguf_fit_in() -> None:
    """Q8_0: float16 d, int8 q, w = d q. Q4_0: w = d (q - 8), numbers 0 to 15 of a block in lower halves of bytes."""
    scale, eights = _random(3, 2).half(), torch.randint(-128, 128, (3, 64), dtype=torch.int8)
    matrix = QuantizedMatrix(3, 64, bits=8, group=32)
    matrix.pack((eights.short() + 128).to(torch.uint8), scale)
    expected = eights.float() * scale.float().repeat_interleave(32, dim=1)
    assert torch.equal(matrix.numbers(slice(0, 3)), expected)

    stored = torch.randint(256, (3, 2, 16), dtype=torch.uint8)  # blocks of 32, as in the file
    fours = torch.cat((stored & 15, stored >> 4), dim=2).view(3, 64)
    matrix = QuantizedMatrix(3, 64, bits=4, group=32)
    matrix.pack(fours, scale)
    expected = (fours.float() - 8) * scale.float().repeat_interleave(32, dim=1)
    assert torch.equal(matrix.numbers(slice(0, 3)), expected)


@pytest.mark.parametrize("offset", [0, 1], ids=["awq", "gptq"])
def test_groups_with_zeros_fit_in(offset: int) -> None:
    """AWQ: w = s (q - z). GPTQ stores z - 1, so 16 may be meant, which 8 bits hold."""
    codes = torch.randint(16, (5, 256), dtype=torch.uint8)
    zeros = torch.randint(16, (5, 2), dtype=torch.uint8) + offset
    scales = _random(5, 2).half()
    matrix = QuantizedMatrix(5, 256, bits=4, group=128, has_zeros=True)
    matrix.pack(codes, scales, zeros)
    spread = zeros.float().repeat_interleave(128, 1), scales.float().repeat_interleave(128, 1)
    assert torch.equal(matrix.numbers(slice(0, 5)), (codes.float() - spread[0]) * spread[1])
