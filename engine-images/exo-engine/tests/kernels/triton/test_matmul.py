"""Products of plain numbers, INT8 and FP8 in Triton, under the interpreter, are those of float64."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from exo_engine.kernels.triton.fixed import HEAD_ROWS, multiply_heads
from exo_engine.kernels.triton.launch import Target
from exo_engine.kernels.triton.matmul import (
    FIXED_ROWS,
    Matrices,
    encode,
    multiply,
    plan_product,
)

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
from product_cases import ProductCase, check_bits, random_product_case, rounding

pytestmark = pytest.mark.gpu_kernels


@pytest.mark.parametrize(
    "case",
    [
        ProductCase((3,), 100, 70, has_bias=True),
        ProductCase((5,), 1300, 65, "e4m3", has_bias=True),
        ProductCase((17,), 96, 130, dtype=torch.bfloat16, is_fixed=True, has_bias=True),
        ProductCase((0, 3, 17, 0, 1), 70, 66),
        ProductCase((33, 0, 70), 130, 40, "e4m3", dtype=torch.float16),
        ProductCase((5,), 1300, 65, "int8", has_bias=True, dtype=torch.bfloat16),
        ProductCase((5,), 1300, 65, "e4m3 rows", has_bias=True),
        ProductCase((3, 0, 70), 130, 40, "int8", is_fixed=True),
        ProductCase((3, 0, 70), 130, 40, "e4m3 rows", dtype=torch.bfloat16),
    ],
    ids=str,
)
def test_products_are_those_of_the_numbers(case: ProductCase) -> None:
    case.check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_random_shapes(seed: int) -> None:
    random_product_case(seed).check(seed)


STORED = ("plain", "int8", "e4m3", "e4m3 rows")


LONG = 1100
"""Inputs whose sums are cut where they are fixed."""


@pytest.mark.usefixtures("dots_in_one_order")
@pytest.mark.parametrize("num_inputs", [300, LONG])
@pytest.mark.parametrize("stored", STORED)
def test_a_row_has_the_same_bits_alone_and_among_others(stored: str, num_inputs: int) -> None:
    case = ProductCase((2 * FIXED_ROWS + 9,), num_inputs, 40, stored, is_fixed=True)
    (numbers,), scales, _ = case.matrices(5)
    inputs, scale = case.inputs(5), scales[0] if scales else None
    bias = torch.linspace(-3, 3, 40)
    whole = multiply(numbers, scale, inputs, bias, is_fixed=True)
    for rows in (slice(0, 1), slice(3, 60), slice(130, None)):
        alone = multiply(numbers, scale, inputs[rows], bias, is_fixed=True)
        assert torch.equal(alone, whole[rows])


@pytest.mark.usefixtures("dots_in_one_order")
@pytest.mark.parametrize("seed", range(4))
def test_what_a_gpu_is_to_prove_holds_here(seed: int) -> None:
    check_bits(torch.device("cpu"), seed, most=1400)


@pytest.mark.parametrize("stored", STORED)
def test_fixed_sums_are_cut_for_few_rows_and_added_up_at_once_for_many(stored: str) -> None:
    """So that the test above holds both ways equal."""
    ways = []
    for num_rows in (1, 2 * FIXED_ROWS + 9):
        case = ProductCase((num_rows,), LONG, 40, stored, is_fixed=True)
        (numbers,), scales, _ = case.matrices(5)
        inputs, factors = case.inputs(5), None
        outputs = inputs.new_empty(num_rows, 40)
        if stored == "e4m3 rows":
            inputs, factors = encode(inputs)
        launches = plan_product(
            numbers,
            scales[0] if scales else None,
            inputs,
            None,
            outputs,
            Target.of(inputs.device),
            factors=factors,
            is_fixed=True,
        )
        first = launches[0].arguments
        ways.append((len(launches), first["ADDS_PARTS"], first["num_parts"]))
    parts = ways[0][2]
    assert parts > 1
    assert ways == [(2, False, parts), (1, True, parts)]


@pytest.mark.usefixtures("dots_in_one_order")
@pytest.mark.parametrize("num_inputs", [300, LONG])
@pytest.mark.parametrize("stored", STORED)
def test_a_row_of_many_matrices_has_the_bits_of_its_own_alone(stored: str, num_inputs: int) -> None:
    sizes = (FIXED_ROWS + 9, 0, 1, 30)
    case = ProductCase(sizes, num_inputs, 40, stored, is_fixed=True)
    numbers, scales, _ = case.matrices(5)
    inputs, starts = case.inputs(5), torch.tensor([0, *sizes]).cumsum(0).int()
    found = Matrices.of(numbers, scales, is_fixed=True).multiply(inputs, starts)
    for place in (0, FIXED_ROWS + 8, FIXED_ROWS + 9, FIXED_ROWS + 20):
        owner = int((starts[1:] <= place).sum())
        scale = scales[owner] if scales else None
        own = multiply(numbers[owner], scale, inputs[place : place + 1], is_fixed=True)
        assert torch.equal(own[0], found[place])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("is_across", [False, True])
def test_heads_are_multiplied_by_their_own_matrices(dtype: torch.dtype, *, is_across: bool) -> None:
    """As latent attention does: inputs are a part of each head's numbers, and matrices lie either way."""
    torch.manual_seed(0)
    around = torch.full((HEAD_ROWS + 6, 3, 90), torch.nan)
    around[..., :70] = torch.randn(HEAD_ROWS + 6, 3, 70)
    inputs = around.to(dtype)[..., :70]
    shape = (3, 150, 70) if is_across else (3, 70, 150)
    weights = torch.randn(shape).to(dtype)
    weights = weights.transpose(1, 2) if is_across else weights
    expected = torch.einsum("thk,hkn->thn", inputs.double(), weights.double())
    most = float(expected.abs().max()) * rounding(dtype)
    found = multiply_heads(inputs, weights)
    torch.testing.assert_close(found.double(), expected, rtol=0.0, atol=most)


@pytest.mark.usefixtures("dots_in_one_order")
def test_heads_of_a_row_have_the_same_bits_alone_and_among_others() -> None:
    torch.manual_seed(0)
    inputs, weights = torch.randn(HEAD_ROWS + 6, 2, 70), torch.randn(2, 70, 40)
    whole = multiply_heads(inputs, weights)
    for rows in (slice(0, 1), slice(3, 40), slice(HEAD_ROWS - 1, None)):
        assert torch.equal(multiply_heads(inputs[rows], weights), whole[rows])


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
