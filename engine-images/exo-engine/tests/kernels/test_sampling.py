"""Tokens are chosen as PyTorch's float64 would, whatever the filters, and a row's alone as in any batch."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from exo_engine.kernels.library import Kernels
from exo_engine.kernels.sampling import Filters, choose_tokens, forbid_tokens
from exo_engine.sampling.token_tables import unpack_bits
from torch import Tensor

SIZES = [1, 3, 16, 499, 5000, 33_333]


def rows_of(size: int, generator: torch.Generator) -> Tensor:
    """Return logits of many forms: spread, peaked, all alike, with ties, partly forbidden, far apart."""
    noise = torch.randn(6, size, generator=generator)
    forbidden = torch.rand(size, generator=generator) < 0.5
    forbidden[size // 2] = False
    forms = [
        3 * noise[0],
        20 * noise[1],
        torch.zeros(size),
        (2 * noise[2]).round(),
        noise[3].masked_fill(forbidden, -math.inf),
        300 * noise[4],
    ]
    return torch.stack(forms)


def filters_of(size: int, num_rows: int, picks: random.Random) -> Filters:
    def pick(*values: float) -> list[float]:
        return [picks.choice(values) for _ in range(num_rows)]

    ks = [int(k) for k in pick(0, 0, 1, 2, 40, 1000, 2 * size)]
    return Filters(
        temperatures=torch.tensor(pick(0.0, 0.5, 1.0, 1.7, 1e-6)),
        log_min_ps=torch.tensor(pick(-math.inf, -math.inf, -3.0, 0.0)),
        top_ps=torch.tensor(pick(1.0, 1.0, 0.95, 0.5, 1e-9), dtype=torch.float64),
        top_ks=torch.tensor(ks),
    )


def plainly(logits: Tensor, filters: Filters, row: int, number: float) -> int:
    """Choose as the sampler says it, everything sorted."""
    temperature = filters.temperatures[row]
    if temperature == 0:
        return int(logits.argmax())
    scaled = logits / temperature
    scaled[scaled < scaled.max() + filters.log_min_ps[row]] = -math.inf
    weights = (scaled - scaled.max()).double().exp()
    top_k, top_p = int(filters.top_ks[row]), float(filters.top_ps[row])
    order = torch.arange(len(logits))
    if top_k or top_p < 1:
        order = scaled.sort(descending=True, stable=True).indices[: top_k or len(logits)]
        before = weights[order].cumsum(0) - weights[order]
        order = order[before < top_p * weights[order].sum()] if top_p < 1 else order
    sums = weights[order].cumsum(0)
    picked = int(torch.searchsorted(sums, number * sums[-1], right=True))
    return int(order[min(picked, int(weights[order].nonzero().max()))])


@pytest.mark.parametrize("size", SIZES)
def test_tokens_are_those_of_a_plain_draw(kernels: Kernels, size: int) -> None:
    generator, picks = torch.Generator().manual_seed(size), random.Random(size)
    for _ in range(40 if size < 1000 else 8):
        logits = rows_of(size, generator)
        filters = filters_of(size, len(logits), picks)
        numbers = torch.rand(len(logits), generator=generator, dtype=torch.float64)
        numbers[picks.randrange(len(logits))] = 1 - 2.0**-40  # beyond that rounding of sums decides
        tokens, is_finite = choose_tokens(kernels, logits, filters, numbers)
        assert is_finite.all()
        expected = [
            plainly(row.clone(), filters, index, numbers[index].item())
            for index, row in enumerate(logits)
        ]
        assert tokens.tolist() == expected


@pytest.mark.parametrize("top_k", [0, 5000])
def test_the_largest_number_takes_a_token_that_is_allowed(kernels: Kernels, top_k: int) -> None:
    logits = rows_of(5000, torch.Generator().manual_seed(2))
    filters = Filters(
        torch.full((6,), 0.3),
        torch.full((6,), -5.0),
        torch.ones(6, dtype=torch.float64),
        torch.full((6,), top_k),
    )
    tokens, _ = choose_tokens(
        kernels, logits, filters, torch.full((6,), 1 - 2.0**-53, dtype=torch.float64)
    )
    scaled = logits / 0.3
    chosen = scaled.gather(1, tokens.unsqueeze(1)).squeeze(1)
    assert (chosen >= scaled.amax(dim=1) - 5.0).all()


def test_a_row_has_the_same_token_alone_and_in_any_batch(kernels: Kernels) -> None:
    logits = rows_of(5000, torch.Generator().manual_seed(1))
    filters = filters_of(5000, len(logits), random.Random(1))
    numbers = torch.rand(len(logits), dtype=torch.float64)
    together, _ = choose_tokens(kernels, logits, filters, numbers)
    for index in range(len(logits)):
        row = slice(index, index + 1)
        own = Filters(
            filters.temperatures[row],
            filters.log_min_ps[row],
            filters.top_ps[row],
            filters.top_ks[row],
        )
        alone, _ = choose_tokens(kernels, logits[row].contiguous(), own, numbers[row])
        assert alone.item() == together[index].item()


def test_greedy_rows_take_the_first_of_their_largest(kernels: Kernels) -> None:
    logits = torch.zeros(3, 70)
    logits[0, [5, 69]] = 2.0
    logits[1, 69] = 1.0
    tokens, is_finite = choose_tokens(kernels, logits)
    assert tokens.tolist() == [5, 69, 0]
    assert is_finite.all()


@pytest.mark.parametrize("place", [0, 17, 98])
@pytest.mark.parametrize("value", [math.nan, -math.nan, math.inf])
def test_a_row_that_is_not_finite_says_so(kernels: Kernels, place: int, value: float) -> None:
    logits = torch.randn(3, 99)
    logits[1, place] = value
    filters = Filters(
        torch.ones(3),
        torch.full((3,), -math.inf),
        torch.full((3,), 0.9, dtype=torch.float64),
        torch.tensor([0, 0, 40]),
    )
    numbers = torch.full((3,), 0.5, dtype=torch.float64)
    for is_drawn in (False, True):
        call = (filters, numbers) if is_drawn else (None, None)
        tokens, is_finite = choose_tokens(kernels, logits, *call)
        assert is_finite.tolist() == [True, False, True]
        assert 0 <= tokens[1] < 99


def test_a_row_without_any_token_is_not_finite(kernels: Kernels) -> None:
    _, is_finite = choose_tokens(kernels, torch.full((1, 50), -math.inf))
    assert not is_finite.item()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("is_of_all", [True, False])
def test_what_masks_do_not_allow_is_forbidden(kernels: Kernels, size: int, is_of_all: bool) -> None:
    generator = torch.Generator().manual_seed(size)
    logits = rows_of(size, generator)
    rows = None if is_of_all else torch.tensor([4, 0, 3])
    num_masks = len(logits) if rows is None else len(rows)
    shape = (num_masks, size // 32 + 2)  # the last word is beyond the vocabulary
    masks = torch.from_numpy(
        np.random.default_rng(size).integers(-(2**31), 2**31, shape, dtype=np.int32)
    )
    masks[0], masks[1] = 0, -1
    expected = logits.clone()
    places = range(len(logits)) if rows is None else rows.tolist()
    for place, allowed in zip(places, unpack_bits(masks, size), strict=True):
        expected[place] = logits[place].masked_fill(~allowed, -math.inf)
    is_finite = forbid_tokens(kernels, logits, masks, rows)
    assert torch.equal(logits, expected)
    assert is_finite.all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 17, 98])
def test_a_forbidden_number_that_is_none_is_told(
    kernels: Kernels, value: float, place: int
) -> None:
    logits = torch.zeros(4, 99)
    logits[1, place] = logits[2, place] = value
    logits[3] = -math.inf
    masks = torch.zeros(2, 4, dtype=torch.int32)
    is_finite = forbid_tokens(kernels, logits, masks, torch.tensor([0, 1]))
    assert is_finite.tolist() == [True, False, False, False]
    assert torch.equal(logits[:2], torch.full((2, 99), -math.inf))
