"""Products with 4-bit codes, under the interpreter, are those of the numbers that the codes stand for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from exo_engine.kernels.quantized import QuantizedMatrix
from exo_engine.kernels.triton import codes
from exo_engine.kernels.triton.launch import Target
from exo_engine.llm import LLM
from exo_engine.sampling_params import SamplingParams
from exo_engine.weight_formats import int4

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
from product_cases import (
    CodesCase,
    GroupedCodesCase,
    random_codes_case,
    random_grouped_codes_case,
)

pytestmark = pytest.mark.gpu_kernels

HALVES = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize(
    "case",
    [
        CodesCase(1, 64, 64),
        CodesCase(3, 100, 70, has_bias=True),
        CodesCase(5, 1100, 65, 128, has_zeros=True, has_bias=True),
        CodesCase(17, 96, 130, 64, dtype=torch.bfloat16),
        CodesCase(129, 72, 66, has_zeros=True, has_bias=True),
    ],
    ids=str,
)
def test_products_are_those_of_the_numbers(case: CodesCase) -> None:
    case.check()


@pytest.mark.parametrize(
    "case",
    [
        GroupedCodesCase((0, 3, 17, 0, 1), CodesCase(21, 100, 70)),
        GroupedCodesCase((33, 0, 70), CodesCase(103, 130, 40, 64, has_zeros=True), is_fixed=True),
        GroupedCodesCase((1, 1), CodesCase(2, 260, 130, 128, dtype=torch.bfloat16)),
    ],
    ids=str,
)
def test_products_of_many_matrices_are_those_of_the_numbers(case: GroupedCodesCase) -> None:
    case.check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_random_shapes(seed: int) -> None:
    random_codes_case(seed).check(seed)
    random_grouped_codes_case(seed).check(seed)


@pytest.mark.usefixtures("dots_in_one_order")
@pytest.mark.parametrize("num_inputs", [300, 1100])
def test_a_row_has_the_same_bits_alone_and_among_others(num_inputs: int) -> None:
    """Of one matrix, and of many."""
    case, sizes = CodesCase(90, num_inputs, 40), (70, 0, 1, 19)
    matrices, (inputs, _) = [case.matrix(seed) for seed in range(4)], case.operands(0)
    starts = torch.tensor([0, *sizes]).cumsum(0).int()
    found = codes.CodedMatrices.of(matrices, is_fixed=True).multiply(inputs, starts)
    for place in (0, 69, 70, 80):
        own = matrices[int((starts[1:] <= place).sum())]
        for rows in (slice(place, place + 1), slice(max(0, place - 2), place + 1)):
            alone = codes.multiply(own, inputs[rows], is_fixed=True)
            assert torch.equal(alone[-1], found[place])


def test_sums_are_split_where_few_programs_would_run() -> None:
    case = CodesCase(2, 2100, 64, has_bias=True)
    matrix, (inputs, bias) = case.matrix(0), case.operands(0)
    outputs = inputs.new_empty(2, 64)
    launches = codes.plan_codes(matrix, inputs, bias, outputs, Target.of(inputs.device))
    assert [len(launches), launches[0].grid] == [2, (1, 1, 5)]
    assert not launches[0].arguments["HAS_BIAS"]
    case.check()


@pytest.mark.usefixtures("dots_in_one_order")
def test_fixed_sums_are_cut_for_few_rows_and_added_up_at_once_for_many() -> None:
    case = CodesCase(230, 1100, 40, has_bias=True)
    matrix, (inputs, bias) = case.matrix(0), case.operands(0)
    target, ways = Target.of(inputs.device), []
    for num_rows in (1, 230):
        outputs = inputs.new_empty(num_rows, 40)
        launches = codes.plan_codes(matrix, inputs[:num_rows], bias, outputs, target, is_fixed=True)
        first = launches[0].arguments
        ways.append((len(launches), first["ADDS_PARTS"], first["num_parts"]))
    assert ways == [(2, False, 3), (1, True, 3)]
    whole = codes.multiply(matrix, inputs, bias, is_fixed=True)
    for rows in (slice(0, 1), slice(3, 60), slice(200, None)):
        alone = codes.multiply(matrix, inputs[rows], bias, is_fixed=True)
        assert torch.equal(alone, whole[rows])


@pytest.mark.parametrize("num_rows", [5, 130])
def test_inputs_whose_numbers_do_not_follow_one_another(num_rows: int) -> None:
    """As they come where states are kept the other way round."""
    case = CodesCase(num_rows, 100, 70)
    matrix, (inputs, _) = case.matrix(0), case.operands(0)
    across = inputs.t().contiguous().t()
    assert across.stride() == (1, num_rows)
    assert torch.equal(codes.multiply(matrix, across), codes.multiply(matrix, inputs))


def test_weights_in_slabs_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codes, "_SLAB_WEIGHTS", 64 * 72)
    CodesCase(130, 72, 150, has_bias=True).check()


@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_numbers_are_written_as_they_are_unpacked(dtype: torch.dtype, *, has_zeros: bool) -> None:
    case = CodesCase(1, 100, 70, has_zeros=has_zeros)
    matrix = case.matrix(3)
    found = torch.full((70, 100), torch.nan, dtype=dtype)
    codes.plan_numbers(matrix, slice(0, 70), found).run()
    expected = matrix.numbers(slice(0, 70)).to(dtype).float()
    # The interpreter cuts bfloat16 off.
    bound = 2.0**-7 if dtype == torch.bfloat16 else 0.0
    torch.testing.assert_close(found.float(), expected, rtol=bound, atol=0.0)


@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_what_was_packed_comes_back_in_the_order_of_a_gpu(group: int, *, has_zeros: bool) -> None:
    generator = torch.Generator().manual_seed(group)
    matrix = QuantizedMatrix(150, 200, bits=4, group=group, has_zeros=has_zeros, order="halves")
    plain = QuantizedMatrix(150, 200, bits=4, group=group, has_zeros=has_zeros)
    given = torch.randint(16, (150, 200), generator=generator, dtype=torch.uint8)
    scales = torch.rand(150, matrix.num_groups, generator=generator)
    zeros = torch.randint(16, scales.shape, generator=generator, dtype=torch.uint8)
    for each in (matrix, plain):
        each.pack(given, scales, zeros if has_zeros else None)
    rows = slice(70, 131)
    found, expected = matrix.unpack(rows), plain.unpack(rows)
    assert torch.equal(found[0], given[rows])
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert matrix.storage.nbytes == plain.storage.nbytes


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3", "qwen3-moe"])
def test_the_engine_gives_the_tokens_that_it_gives_without_kernels(
    tiny_model, prompts, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    found = []
    for is_triton in (False, True):
        monkeypatch.setattr(int4, "is_for_triton", lambda device, it=is_triton: it)
        llm = LLM(tiny_model(family).path, device="cpu", dtype="float32", quantization="int4")
        found.append([each.token_ids for each in llm.generate(prompts[:3], params)])
    assert found[0] == found[1]
