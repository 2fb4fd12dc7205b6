"""Draws of all rows at once are those of sorted rows, and nothing of them asks the device or sorts a vocabulary."""

from __future__ import annotations

import math

import pytest
import torch
from exo_engine.sampling import draws
from exo_engine.sampling.draws import Ways, choose
from torch.utils._python_dispatch import TorchDispatchMode

VOCAB = 3000
EVERYTHING = Ways.PLAIN | Ways.CANDIDATES | Ways.MASS | Ways.COUNT


class NeitherSortsNorWaits(TorchDispatchMode):
    """Fails where a vocabulary is sorted, or where a GPU would have the host wait for it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        names = (
            "aten.sort",
            "aten.argsort",
            "aten._local_scalar_dense",
            "aten.nonzero",
            "aten.equal",
        )
        assert not str(func).startswith(names), f"not here: {func}"
        return func(*args, **(kwargs or {}))


def table(*rows: tuple[float, float, int, float, float]) -> torch.Tensor:
    """Return rows of temperature, log of min-p, top-k, top-p and number as columns."""
    return torch.tensor(rows, dtype=torch.float64).T.contiguous()


def sorted_draw(logits: torch.Tensor, top_k: int, top_p: float, number: float) -> int:
    """Draw by sorting, ties by ids, in float64."""
    values, ids = logits.sort(descending=True, stable=True)
    top_k = top_k or len(ids)
    weights = (values[:top_k].double() - values[0].double()).exp()
    sums = weights.cumsum(0)
    weights[sums - weights >= top_p * sums[-1]] = 0.0
    sums = weights.cumsum(0)
    return int(ids[int((sums <= number * sums[-1]).sum())])


@pytest.mark.parametrize("spread", [0.01, 1.0, 8.0])
def test_draws_by_likelihood_are_those_of_sorted_rows(spread):
    generator = torch.Generator().manual_seed(int(100 * spread))
    logits = torch.randn(60, VOCAB, generator=generator) * spread
    logits[30:] = (logits[30:] * 4 / spread).round() / 4 * spread  # of which many are equal
    numbers = torch.rand(60, generator=generator, dtype=torch.float64).tolist()
    kinds = [(0, 0.3), (0, 0.999), (1500, 0.9), (2000, 1.0), (5000, 0.5), (0, 1e-9)]
    rows = [(1.0, -math.inf, *kinds[i % 6], number) for i, number in enumerate(numbers)]
    with NeitherSortsNorWaits():
        tokens, is_finite = choose(logits.clone(), table(*rows), Ways.MASS | Ways.COUNT)
    expected = [sorted_draw(*pair[:1], *pair[1][2:]) for pair in zip(logits, rows, strict=True)]
    assert tokens.tolist() == expected
    assert is_finite.all()


def test_more_ways_than_rows_need_change_no_token():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, VOCAB, generator=generator) * 3
    rows = [
        (0.0, -math.inf, 0, 1.0, 0.0),
        (0.9, -math.inf, 0, 1.0, 0.7),
        (0.9, math.log(0.05), 0, 1.0, 0.7),
        (1.3, -math.inf, 40, 0.95, 0.4),
        (1.3, -math.inf, 0, 0.95, 0.8),
    ]
    needed = [Ways(0), Ways.PLAIN, Ways.PLAIN, Ways.CANDIDATES, Ways.MASS]
    alone = [
        int(choose(logits[i : i + 1], table(row), way)[0])
        for i, (row, way) in enumerate(zip(rows, needed, strict=True))
    ]
    with NeitherSortsNorWaits():
        together, _ = choose(logits, table(*rows), EVERYTHING)
    assert together.tolist() == alone
    assert len(set(alone)) == 5


def test_a_large_vocabulary_in_fewer_steps_gives_the_same(monkeypatch):
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(3)) * 3
    rows = table(*[(1.0, -math.inf, 0, 0.8 + 0.03 * i, i / 6) for i in range(6)])
    found = choose(logits, rows, Ways.MASS)[0]
    monkeypatch.setattr(draws, "_LARGE_VOCABULARY", VOCAB)
    assert torch.equal(choose(logits, rows, Ways.MASS)[0], found)


def test_a_vocabulary_in_parts_gives_the_same(monkeypatch):
    logits = torch.randn(7, VOCAB, generator=torch.Generator().manual_seed(1))
    rows = table(*[(1.0, -math.inf, 0, 0.9, i / 7) for i in range(7)])
    whole = choose(logits, rows, EVERYTHING)[0]
    monkeypatch.setattr(draws, "_MOST_NUMBERS", 2 * VOCAB)
    assert torch.equal(choose(logits, rows, EVERYTHING)[0], whole)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_rows_without_numbers_are_told_and_change_no_other(value):
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(2))
    rows = table(*[(1.0, -math.inf, 0, 0.9, 0.5)] * 3)
    alone = choose(logits, rows, EVERYTHING)[0]
    logits[1] = value
    tokens, is_finite = choose(logits, rows, EVERYTHING)
    assert is_finite.tolist() == [True, False, True]
    assert tokens[[0, 2]].tolist() == alone[[0, 2]].tolist()
    assert 0 <= int(tokens[1]) < VOCAB


def test_ways_are_found_by_what_drawn_rows_ask_for():
    top_ks = torch.tensor([0, 50, 0, 2000, 9000]).numpy()
    top_ps = torch.tensor([1.0, 0.9, 0.9, 1.0, 1.0], dtype=torch.float64).numpy()
    found = [Ways.of(top_ks[i : i + 1], top_ps[i : i + 1], VOCAB) for i in range(5)]
    assert found == [Ways.PLAIN, Ways.CANDIDATES, Ways.MASS, Ways.MASS | Ways.COUNT, Ways.MASS]
    assert Ways.of(top_ks, top_ps, VOCAB) == EVERYTHING
