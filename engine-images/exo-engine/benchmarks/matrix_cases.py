"""Random matrices in the GPU's formats, held equal to products in float64.

Used by the tests, under Triton's interpreter, and by `gpu_check.py` on a GPU. What lies behind a row of inputs
is no number, and so is all memory that a product takes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import torch
from attention_cases import CPU, Poisoned
from exo_engine.kernels.quantized import QuantizedMatrix
from exo_engine.kernels.triton import codes
from exo_engine.kernels.triton.launch import Target
from torch import Tensor

_ROUNDING = {torch.float32: 2.0**-20, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
"""Of a product's largest number; bfloat16's is twice what rounding may be, as the interpreter cuts off."""


@dataclass(frozen=True, slots=True)
class CodesCase:
    """One product with 4-bit codes."""

    num_rows: int
    num_inputs: int
    num_outputs: int
    group: int = 32
    has_zeros: bool = False
    has_bias: bool = False
    dtype: torch.dtype = torch.float32
    device: torch.device = CPU

    def matrix(self, seed: int) -> QuantizedMatrix:
        """Return a matrix of random codes, scales and zeros."""
        generator = torch.Generator().manual_seed(seed)
        matrix = QuantizedMatrix(
            self.num_outputs, self.num_inputs, bits=4, group=self.group, has_zeros=self.has_zeros,
            order="halves", device=self.device,
        )  # fmt: skip
        matrix.storage.fill_(255)
        groups = self.num_outputs, matrix.num_groups
        shape = self.num_outputs, self.num_inputs
        zeros = torch.randint(17, groups, generator=generator, dtype=torch.uint8)
        matrix.pack(
            torch.randint(16, shape, generator=generator, dtype=torch.uint8).to(self.device),
            (torch.rand(groups, generator=generator) + 0.01).to(self.device),
            zeros.to(self.device) if self.has_zeros else None,
        )
        matrix.scale = 2.0**-3
        return matrix

    def operands(self, seed: int) -> tuple[Tensor, Tensor | None]:
        """Return inputs (T, K), between numbers that are none, and a bias (N,) or None."""
        generator = torch.Generator().manual_seed(seed + 1)
        numbers = torch.randn(self.num_rows, self.num_inputs, generator=generator)
        around = torch.full((self.num_rows + 1, self.num_inputs + 16), torch.nan)
        around[:-1, : self.num_inputs] = numbers
        bias = torch.randn(self.num_outputs, generator=generator) if self.has_bias else None
        inputs = around.to(self.device, self.dtype)[:-1, : self.num_inputs]
        return inputs, None if bias is None else bias.to(self.device, self.dtype)

    def check(self, seed: int = 0) -> None:
        """Fail where the product is not right."""
        matrix, (inputs, bias) = self.matrix(seed), self.operands(seed)
        numbers = matrix.numbers(slice(0, self.num_outputs))
        if self.num_rows > codes.MOST_ROWS:
            numbers = numbers.to(self.dtype)
        expected = inputs.double() @ numbers.double().T
        expected = expected if bias is None else expected + bias.double()
        with Poisoned():
            found = codes.multiply(matrix, inputs, bias)
        most = float(expected.abs().max()) * rounding(self.dtype)
        assert found.dtype == self.dtype
        torch.testing.assert_close(found.double(), expected, rtol=0.0, atol=most)


@dataclass(frozen=True, slots=True)
class GroupedCodesCase:
    """Products with the 4-bit codes of several matrices in one launch."""

    rows: tuple[int, ...]
    """Of each matrix."""
    case: CodesCase
    """All else; of its rows all matrices' together."""
    is_fixed: bool = False

    def check(self, seed: int = 0) -> None:
        """Fail where a product is not right."""
        matrices = [self.case.matrix(seed + each) for each in range(len(self.rows))]
        for each, matrix in enumerate(matrices):
            matrix.scale = 2.0 ** (each % 5 - 3)
        inputs, _ = self.case.operands(seed)
        outputs = inputs.new_full((len(inputs), self.case.num_outputs), torch.nan)
        starts = torch.tensor([0, *self.rows]).cumsum(0).int().to(self.case.device)
        grouped, target = codes.CodedMatrices.of(matrices), Target.of(self.case.device)
        codes.plan_grouped_codes(
            grouped, inputs, starts, outputs, target, is_fixed=self.is_fixed
        ).run()
        whole = slice(0, self.case.num_outputs)
        parts = zip(inputs.double().split(list(self.rows)), matrices, strict=True)
        expected = torch.cat([rows @ each.numbers(whole).double().T for rows, each in parts])
        most = float(expected.abs().max()) * rounding(self.case.dtype)
        torch.testing.assert_close(outputs.double(), expected, rtol=0.0, atol=most)


def random_grouped_codes_case(
    seed: int, device: torch.device = CPU, *, most: int = 400
) -> GroupedCodesCase:
    """Return a case of several matrices, some of them without a row."""
    numbers = random.Random(seed)
    rows = (3, *(numbers.choice((0, 1, 5, 40, 70)) for _ in range(numbers.choice((1, 3, 6)))))
    case = random_codes_case(seed, device, most=most)
    return GroupedCodesCase(
        rows, replace(case, num_rows=sum(rows), has_bias=False), numbers.random() < 0.3
    )


def random_codes_case(seed: int, device: torch.device = CPU, *, most: int = 400) -> CodesCase:
    """Return a case of odd sizes; `most` bounds inputs and outputs."""
    numbers = random.Random(seed)
    return CodesCase(
        num_rows=numbers.choice((1, 2, 7, 16, 17, 33, 65, 128, 129)),
        num_inputs=numbers.randrange(1, most),
        num_outputs=numbers.randrange(1, most),
        group=numbers.choice((32, 64, 128)),
        has_zeros=numbers.random() < 0.5,
        has_bias=numbers.random() < 0.5,
        dtype=numbers.choice((torch.float32, torch.bfloat16, torch.float16)),
        device=device,
    )


def rounding(dtype: torch.dtype) -> float:
    """Return how far products of this type may be off, as a share of the largest."""
    return _ROUNDING[dtype]
