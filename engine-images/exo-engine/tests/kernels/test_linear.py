"""Packed products are those of the plain matrix, and a row's bits do not depend on the batch."""

from __future__ import annotations

import os

import pytest
import torch
from exo_engine.kernels.library import Kernels
from exo_engine.kernels.linear import PackedMatrix

SHAPES = ((64, 32), (200, 130), (17, 6), (1, 2), (129, 576))


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_those_of_the_plain_matrix(kernels: Kernels, shape: tuple[int, int]) -> None:
    plain = _random(*shape)
    matrix = PackedMatrix(kernels, *shape)
    matrix.fill(0, plain)
    for num_rows in (1, 2, 3, 4, 5, 6, 7, 12, 33):
        inputs, bias = _random(num_rows, shape[1]), _random(shape[0])
        exact = inputs.double() @ plain.double().T
        sums = matrix.multiply(inputs, dtype=torch.float32)
        assert (sums - exact).abs().max() <= 1e-5 * shape[1] ** 0.5 * exact.abs().max().clamp(min=1)
        assert torch.equal(matrix.multiply(inputs), sums.bfloat16())
        assert torch.equal(matrix.multiply(inputs, bias), (sums + bias).bfloat16())


def test_a_row_has_the_same_bits_alone_in_any_batch_and_on_any_threads(kernels: Kernels) -> None:
    matrix = PackedMatrix(kernels, 200, 130)
    matrix.fill(0, _random(200, 130))
    inputs = _random(13, 130)
    together = matrix.multiply(inputs, dtype=torch.float32)
    for num_threads in (1, 2, 3):
        kernels.set_num_threads(num_threads)
        for row in range(13):
            alone = matrix.multiply(inputs[row : row + 1], dtype=torch.float32)
            assert torch.equal(alone[0], together[row])
        assert torch.equal(matrix.multiply(inputs, dtype=torch.float32), together)


@pytest.mark.parametrize("shape", [(200, 130), (17, 6), (65, 32)], ids=str)
def test_a_row_has_the_same_bits_among_any_number_of_rows(
    kernels: Kernels, shape: tuple[int, int]
) -> None:
    matrix = PackedMatrix(kernels, *shape)
    matrix.fill(0, _random(*shape))
    inputs = _random(70, shape[1])
    together = matrix.multiply(inputs, dtype=torch.float32)
    for num_rows in range(1, 66):  # one tile of 16, two, and what is left after several
        for first in (0, 70 - num_rows):
            some = matrix.multiply(inputs[first : first + num_rows], dtype=torch.float32)
            assert torch.equal(some, together[first : first + num_rows])


@pytest.mark.parametrize("num_rows", [65, 67, 70])
def test_more_rows_than_are_turned_into_float32_at_once_have_the_bits_of_few(
    kernels: Kernels, num_rows: int
) -> None:
    """16 at a time with AVX2; of the last ones, one and three stay as they are."""
    plain = _random(33, 8192)
    matrix = PackedMatrix(kernels, 33, 8192)
    matrix.fill(0, plain)
    inputs, bias = _random(num_rows, 8192), _random(33)
    together = matrix.multiply(inputs, bias, dtype=torch.float32)
    alone = [matrix.multiply(row.unsqueeze(0), bias, dtype=torch.float32) for row in inputs]
    assert torch.equal(together, torch.cat(alone))
    assert torch.equal(matrix.multiply(inputs, bias), together.bfloat16())


def test_parts_may_be_filled_in_any_order_and_number_format(kernels: Kernels) -> None:
    plain = _random(150, 64)
    matrix = PackedMatrix(kernels, 150, 64)
    matrix.fill(100, plain[100:].double())
    matrix.fill(0, plain[:37])
    matrix.fill(37, torch.cat([plain, plain], dim=1)[37:100, :64])  # rows of a wider matrix
    assert torch.equal(matrix.rows(torch.arange(150)), plain)


def test_rows_come_back_by_their_ids(kernels: Kernels) -> None:
    plain = _random(129, 32)
    matrix = PackedMatrix(kernels, 129, 32)
    matrix.fill(0, plain)
    ids = torch.tensor([128, 0, 63, 64, 64])
    assert torch.equal(matrix.rows(ids), plain[ids])


def test_nan_and_infinity_come_through(kernels: Kernels) -> None:
    matrix = PackedMatrix(kernels, 64, 4)
    matrix.fill(0, torch.ones(64, 4))
    inputs = torch.ones(3, 4, dtype=torch.bfloat16)
    inputs[0, 1], inputs[1, 2] = torch.nan, torch.inf
    for outputs in (matrix.multiply(inputs), matrix.multiply(inputs, dtype=torch.float32)):
        assert outputs[0].isnan().all()
        assert outputs[1].isposinf().all()
        assert (outputs[2] == 4).all()


def test_what_a_kernel_would_misread_is_refused(kernels: Kernels) -> None:
    matrix = PackedMatrix(kernels, 64, 32)
    for inputs in (_random(2, 30), _random(2, 32).float(), _random(32, 2).T):
        with pytest.raises(AssertionError, match="expected a contiguous"):
            matrix.multiply(inputs)


def test_a_forked_process_has_threads_of_its_own(kernels: Kernels) -> None:
    matrix = PackedMatrix(kernels, 200, 64)
    matrix.fill(0, _random(200, 64))
    inputs = _random(3, 64)
    expected = matrix.multiply(inputs)
    if (child := os.fork()) == 0:
        os._exit(0 if torch.equal(matrix.multiply(inputs), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
