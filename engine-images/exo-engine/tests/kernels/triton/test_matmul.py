"""Products of plain numbers and FP8 in Triton, under the interpreter, are those of float64."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from exo_engine.kernels.triton.launch import Target
from exo_engine.kernels.triton.matmul import FIXED_ROWS, encode, plan_product

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
from product_cases import ProductCase, random_product_case


@pytest.mark.parametrize(
    "case",
    [
        ProductCase((3,), 100, 70, has_bias=True),
        ProductCase((5,), 1300, 65, "e4m3", has_bias=True),
        ProductCase((17,), 96, 130, dtype=torch.bfloat16, is_fixed=True, has_bias=True),
        ProductCase((0, 3, 17, 0, 1), 70, 66),
        ProductCase((33, 0, 70), 130, 40, "e4m3", dtype=torch.float16),
    ],
    ids=str,
)
def test_products_are_those_of_the_numbers(case: ProductCase) -> None:
    case.check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_random_shapes(seed: int) -> None:
    random_product_case(seed).check(seed)


@pytest.mark.usefixtures("dots_in_one_order")
@pytest.mark.parametrize("stored", ["plain", "e4m3"])
def test_a_row_has_the_same_bits_alone_and_among_others(stored: str) -> None:
    case = ProductCase((FIXED_ROWS + 9,), 300, 40, stored, is_fixed=True)
    (numbers,), scales, _ = case.matrices(5)
    inputs = case.inputs(5)
    results = []
    for rows in (slice(0, None), slice(0, 1), slice(3, 60), slice(130, None)):
        own = inputs[rows]
        outputs = own.new_empty(len(own), 40)
        (launch,) = plan_product(
            numbers, scales[0] if scales else None, own, None, outputs,
            Target.of(own.device), is_fixed=True,
        )  # fmt: skip
        launch.run()
        results.append((rows, outputs))
    whole = results[0][1]
    for rows, found in results[1:]:
        assert torch.equal(found, whole[rows])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_inputs_become_fp8_by_the_largest_of_each_row(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    around = (torch.randn(5, 200) * torch.logspace(-3, 3, 5).unsqueeze(1)).to(dtype)
    around[3] = 0.0
    around[:, 150:] = torch.nan
    inputs = around[:, :150]
    codes, factors = encode(inputs)
    expected = inputs.float().abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / 448
    assert torch.equal(factors, expected)
    scaled = (inputs.float() / expected).to(torch.float8_e4m3fn)
    assert torch.equal(codes.view(torch.uint8), scaled.view(torch.uint8))
