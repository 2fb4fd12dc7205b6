"""Random products in Triton of plain numbers, codes, INT8 and FP8, held equal to float64.

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
from exo_engine.kernels.triton.matmul import (
    BLOCK,
    Matrices,
    encode,
    multiply,
    plan_grouped,
    plan_product,
)
from exo_engine.weight_formats.base import Share
from exo_engine.weight_formats.fp8 import Fp8, Fp8PerBlock, Fp8PerTensor, why_not_scaled
from torch import Tensor

_ROUNDING = {torch.float32: 2.0**-20, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
"""Of a product's largest number; bfloat16's is twice what rounding may be, as the interpreter cuts off."""

_ROUNDING_OF_FP8 = 2.0**-11
"""Of inputs and weights of FP8: tensor cores of compute capability 9.0 add them up with 14 bits (DeepSeek-AI 2024,
"DeepSeek-V3 Technical Report", 3.3.2)."""


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


@dataclass(frozen=True, slots=True)
class ProductCase:
    """Rows of each matrix; one number: a product by one matrix."""

    rows: tuple[int, ...]
    num_inputs: int
    num_outputs: int
    stored: str = "plain"
    """plain, int8, e4m3 (in blocks) or e4m3 rows (inputs, too)."""
    has_bias: bool = False
    is_fixed: bool = False
    dtype: torch.dtype = torch.float32
    device: torch.device = CPU

    def matrices(self, seed: int) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Return numbers (N, K) of each matrix, scales (G, N), and what they stand for (X, N, K) float64."""
        generator = torch.Generator().manual_seed(seed)
        shape = len(self.rows), self.num_outputs, self.num_inputs
        numbers = torch.randn(shape, generator=generator).to(self.device)
        if self.stored == "plain":
            plain = list(numbers.to(self.dtype))
            return plain, [], torch.stack(plain).double()
        is_int8 = self.stored == "int8"
        codes = (30 * numbers).clamp(-127, 127).round().to(torch.int8)
        if not is_int8:
            codes = (100 * numbers).clamp(-448, 448).to(torch.float8_e4m3fn)
        groups = -(-self.num_inputs // BLOCK) if self.stored == "e4m3" else 1
        scales = torch.rand(len(codes), groups, self.num_outputs, generator=generator) + 0.01
        scales = scales.to(
            self.dtype if is_int8 and self.dtype == torch.bfloat16 else torch.float32
        )
        each = BLOCK if self.stored == "e4m3" else self.num_inputs
        spread = scales.transpose(1, 2).repeat_interleave(each, dim=2)
        meant = codes.double() * spread[..., : self.num_inputs].double().to(self.device)
        codes = codes.view(torch.uint8) if self.stored == "e4m3" else codes
        return list(codes), list(scales.to(self.device)), meant

    def inputs(self, seed: int) -> Tensor:
        """Return inputs (T, K), between numbers that are none."""
        generator = torch.Generator().manual_seed(seed + 1)
        numbers = torch.randn(sum(self.rows), self.num_inputs, generator=generator)
        around = torch.full((len(numbers) + 1, self.num_inputs + 16), torch.nan)
        around[:-1, : self.num_inputs] = numbers
        return around.to(self.device, self.dtype)[:-1, : self.num_inputs]

    def run(self, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Return what comes out, and what is right, in float64."""
        numbers, scales, meant = self.matrices(seed)
        inputs = self.inputs(seed)
        outputs = inputs.new_full((len(inputs), self.num_outputs), torch.nan)
        factors = None
        if self.stored == "e4m3 rows":
            inputs, factors = encode(inputs)
            own = inputs.double() * factors.double()
        else:
            own = inputs.double()
        parts = torch.split(own, list(self.rows))
        expected = torch.cat([part @ each.T for part, each in zip(parts, meant, strict=True)])
        target = Target.of(self.device)
        if len(self.rows) > 1:
            ends = torch.tensor([0, *self.rows]).cumsum(0).int().to(self.device)
            matrices = Matrices.of(numbers, scales)
            plan_grouped(
                matrices, inputs, ends, outputs, target, factors=factors, is_fixed=self.is_fixed
            ).run()
            return outputs, expected
        bias = None
        if self.has_bias:
            bias = torch.linspace(-3, 3, self.num_outputs).to(self.device, self.dtype)
            expected = expected + bias.double()
        scale = scales[0] if scales else None
        with Poisoned():
            launches = plan_product(
                numbers[0],
                scale,
                inputs,
                bias,
                outputs,
                target,
                factors=factors,
                is_fixed=self.is_fixed,
            )
        for launch in launches:
            launch.run()
        return outputs, expected

    def check(self, seed: int = 0) -> None:
        """Fail where the product is not right."""
        found, expected = self.run(seed)
        off = rounding(self.dtype)
        if self.stored == "e4m3 rows":
            off = max(off, _ROUNDING_OF_FP8)
        most = float(expected.abs().max()) * off
        torch.testing.assert_close(found.double(), expected, rtol=0.0, atol=most)


def random_product_case(seed: int, device: torch.device = CPU, *, most: int = 300) -> ProductCase:
    """Return a case of odd sizes; `most` bounds inputs and outputs."""
    numbers = random.Random(seed)
    can_scale = not why_not_scaled(Target.of(device))
    kinds = ("plain", "int8", "e4m3", *(("e4m3 rows",) if can_scale else ()))
    rows = tuple(numbers.choice((0, 1, 5, 40, 70)) for _ in range(numbers.choice((1, 1, 3, 7))))
    return ProductCase(
        rows=rows if sum(rows) else (3,),
        num_inputs=numbers.randrange(1, most),
        num_outputs=numbers.randrange(1, most),
        stored=numbers.choice(kinds),
        has_bias=numbers.random() < 0.5,
        is_fixed=numbers.random() < 0.3,
        dtype=numbers.choice((torch.float32, torch.bfloat16, torch.float16)),
        device=device,
    )


def check_bits(device: torch.device, seed: int, *, most: int = 3000) -> None:
    """Fail where rows alone have other bits than among others, with fixed sums: of numbers and of 4-bit codes."""
    numbers = random.Random(seed)
    can_scale = not why_not_scaled(Target.of(device))
    case = ProductCase(
        rows=(numbers.choice((140, 300, 900)),),
        num_inputs=numbers.randrange(1, most),
        num_outputs=numbers.randrange(1, most // 4),
        stored=numbers.choice(("plain", "int8", "e4m3", *(("e4m3 rows",) if can_scale else ()))),
        dtype=numbers.choice((torch.bfloat16, torch.float16)),
        device=device,
    )
    (weights,), scales, _ = case.matrices(seed)
    inputs = case.inputs(seed)
    coded = CodesCase(
        case.rows[0],
        case.num_inputs,
        case.num_outputs,
        numbers.choice((32, 64, 128)),
        device=device,
    ).matrix(seed)
    ways = {
        case.stored: lambda rows: multiply(weights, scales[0] if scales else None, rows, is_fixed=True),
        "codes": lambda rows: codes.multiply(coded, rows, is_fixed=True),
    }  # fmt: skip
    for name, way in ways.items():
        whole = way(inputs)
        for first in (0, numbers.randrange(len(inputs))):
            rows = slice(first, first + numbers.choice((1, 1, 17)))
            assert torch.equal(way(inputs[rows]), whole[rows]), f"{name}: {rows} of {case}"


def check_fp8(kind: type[Fp8], device: torch.device, seed: int) -> None:
    """Fail where a product with FP8, as a layer makes it, is not that of its numbers; in bfloat16."""
    numbers = random.Random(seed)
    rows, (num_inputs, num_outputs) = (
        numbers.choice((1, 17, 130)),
        (16 * numbers.randint(1, 20) for _ in range(2)),
    )
    generator = torch.Generator().manual_seed(seed)
    matrix = kind(num_outputs, num_inputs, dtype=torch.bfloat16, device=device)
    every = slice(0, num_outputs)
    weight = torch.randn(num_outputs, num_inputs, generator=generator)
    matrix.load("weight", weight, Share(every, every, slice(0, num_inputs)))
    matrix.finish()
    spread = torch.logspace(-2, 2, rows).unsqueeze(1)
    inputs = (torch.randn(rows, num_inputs, generator=generator) * spread).to(
        device, torch.bfloat16
    )
    seen = inputs.float()
    if matrix.is_scaled:
        # By a tensor: a GPU would multiply by the inverse of a number.
        factors = seen.abs().amax(dim=1, keepdim=True) / seen.new_tensor(448.0)
        seen = (seen / factors).to(torch.float8_e4m3fn).float() * factors
    expected = seen.double() @ matrix.numbers(every).double().T
    with Poisoned():
        found = matrix.multiply(inputs, None)
    off = (found.double() - expected).abs().amax(dim=1) / expected.abs().amax(dim=1)
    assert float(off.max()) < 2 * rounding(torch.bfloat16), (
        f"{kind.__name__}: off by {off.max():.3g}"
    )


def fp8_kinds(target: Target) -> list[type[Fp8]]:
    """Return the formats that a GPU can have."""
    return [Fp8PerBlock] if why_not_scaled(target) else [Fp8, Fp8PerTensor, Fp8PerBlock]
