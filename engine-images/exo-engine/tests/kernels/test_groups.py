"""Products of many matrices in one call are those of each alone, bit for bit."""

from __future__ import annotations

import pytest
import torch
from exo_engine.kernels.groups import MatrixGroups
from exo_engine.kernels.library import Kernels
from exo_engine.kernels.linear import PackedMatrix
from exo_engine.kernels.quantized import QuantizedMatrix

FORMS = {
    "bf16": None,
    "int8": (8, 136),
    "int8 in groups": (8, 32),
    "int4": (4, 32),
    "int4 in 64": (4, 64),
}
OUTPUTS, INPUTS = 200, 130
SIZES = {
    "some": [3, 0, 1, 40, 0, 7],
    "one each": [1] * 6,
    "all of one": [0, 0, 0, 50, 0, 0],
    "one row": [0, 1, 0, 0, 0, 0],
    "none": [0] * 6,
}


def _matrices(kernels: Kernels, form: str, count: int) -> list[PackedMatrix | QuantizedMatrix]:
    generator = torch.Generator().manual_seed(5)
    made: list[PackedMatrix | QuantizedMatrix] = []
    for index in range(count):
        numbers = torch.randn(OUTPUTS, INPUTS, generator=generator)
        if (kind := FORMS[form]) is None:
            plain = PackedMatrix(kernels, OUTPUTS, INPUTS)
            plain.fill(0, numbers)
            made.append(plain)
            continue
        matrix = QuantizedMatrix(OUTPUTS, INPUTS, bits=kind[0], group=kind[1])
        codes = torch.randint(2 ** kind[0], (OUTPUTS, INPUTS), generator=generator).byte()
        scales = torch.rand(OUTPUTS, matrix.num_groups, generator=generator) * 4.0 ** (2 * index)
        matrix.pack_scaled(codes, scales)  # each has a factor of its own
        made.append(matrix)
    return made


def _multiply(
    matrix: PackedMatrix | QuantizedMatrix, kernels: Kernels, rows: torch.Tensor
) -> torch.Tensor:
    if isinstance(matrix, PackedMatrix):
        return matrix.multiply(rows)
    return matrix.multiply(kernels, rows)


def _call(matrix: PackedMatrix | QuantizedMatrix):
    return matrix.call if isinstance(matrix, PackedMatrix) else matrix.kernel_call()


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("form", FORMS)
def test_groups_have_the_bits_of_products_of_their_own(
    kernels: Kernels, form: str, sizes: list[int]
) -> None:
    matrices = _matrices(kernels, form, len(sizes))
    inputs = torch.randn(sum(sizes), INPUTS, generator=torch.Generator().manual_seed(1)).bfloat16()
    starts = torch.tensor([0, *sizes]).cumsum(0).int()
    expected = torch.cat(
        [
            _multiply(matrix, kernels, rows)
            for matrix, rows in zip(matrices, inputs.split(sizes), strict=True)
        ]
    )
    groups = MatrixGroups(kernels, [_call(each) for each in matrices])
    for num_threads in (1, 2, 3, 7):
        kernels.set_num_threads(num_threads)
        assert torch.equal(groups.multiply(inputs, starts), expected)
    assert expected.count_nonzero() >= 0.9 * expected.numel()


def test_a_bias_of_a_product_before_is_no_part_of_a_group(kernels: Kernels) -> None:
    """A matrix remembers what its last product was told."""
    matrix = PackedMatrix(kernels, OUTPUTS, INPUTS)
    matrix.fill(0, torch.ones(OUTPUTS, INPUTS))
    inputs = torch.ones(1, INPUTS).bfloat16()
    matrix.multiply(inputs, torch.ones(OUTPUTS).bfloat16(), dtype=torch.float32)
    groups = MatrixGroups(kernels, [matrix.call])
    assert (groups.multiply(inputs, torch.tensor([0, 1]).int()) == INPUTS).all()


def test_groups_of_more_inputs_than_are_turned_into_float32_have_the_same_bits(
    kernels: Kernels,
) -> None:
    """64 MiB of them is the most: 2,049 rows of 8,192 numbers are 32 KiB more."""
    matrices = [PackedMatrix(kernels, 3, 8192) for _ in range(2)]
    for matrix in matrices:
        matrix.fill(0, torch.randn(3, 8192, generator=torch.Generator().manual_seed(2)))
    inputs = torch.randn(2049, 8192, generator=torch.Generator().manual_seed(3)).bfloat16()
    expected = torch.cat([matrices[0].multiply(inputs[:9]), matrices[1].multiply(inputs[9:])])
    groups = MatrixGroups(kernels, [each.call for each in matrices])
    assert torch.equal(groups.multiply(inputs, torch.tensor([0, 9, 2049]).int()), expected)
