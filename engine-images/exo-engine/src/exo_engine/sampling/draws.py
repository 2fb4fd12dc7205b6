"""Chooses tokens of rows that ask for different things, without asking the device anything.

The rows' numbers are tensors, and what is computed depends on `Ways` alone, so that a step can be repeated from a
graph. No row has its vocabulary sorted: where top-p keeps more tokens than are looked at first, probabilities are
added up by the leading bits of their logits, and then within one group of bits (a radix selection by weight).
They are whole numbers there, whose sums do not depend on the order of adding.

Legend: N rows, V vocabulary, C candidates.
"""

from __future__ import annotations

import math
from enum import IntFlag

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

NUM_CANDIDATES = 1024
"""Top-k up to this many tokens looks at the likeliest tokens only."""
LEAST_TEMPERATURE = 1e-6
"""What lower ones, but 0, are taken for."""
# Tables of a row's vocabulary that are made at a time, in numbers.
_MOST_NUMBERS = 2**23
# A key's 32 bits, of which some are looked at after the others: the more at a time, the more sums there are.
_FEW_DIGITS, _MANY_DIGITS = (16, 16), (11, 11, 10)
_LARGE_VOCABULARY = 2**15
# A likeliest token's weight: 2^19 of them are within 63 bits.
_UNIT = 2.0**43

TEMPERATURE, LOG_MIN_P, TOP_K, TOP_P, NUMBER = range(5)
"""Rows of a table of numbers (5, N) float64: temperature 0 is greedy, top-k 0 is none, the last one is where in
[0, 1) a draw falls."""


class Ways(IntFlag):
    """How rows of a step are drawn; none of these: all are greedy."""

    PLAIN = 1
    """From all tokens, by their ids."""
    CANDIDATES = 2
    """Top-k up to `NUM_CANDIDATES`, perhaps with top-p: from the likeliest tokens, sorted."""
    MASS = 4
    """Top-p alone, or with a larger top-k: from as many of the likeliest tokens as it takes, by their likelihood."""
    COUNT = 8
    """Beside `MASS`: some row has such a top-k."""

    @classmethod
    def of(cls, top_ks: NDArray[np.int64], top_ps: NDArray[np.float64], vocab_size: int) -> Ways:
        """Return what drawn rows need of top-k and top-p."""
        is_narrow = (top_ks > 0) & (top_ks <= NUM_CANDIDATES)
        is_plain = (top_ks == 0) & (top_ps >= 1.0)
        is_counted = (top_ks > NUM_CANDIDATES) & (top_ks < vocab_size)
        kinds = {
            cls.PLAIN: is_plain,
            cls.CANDIDATES: is_narrow,
            cls.MASS: ~is_plain & ~is_narrow,
            cls.COUNT: is_counted,
        }
        return cls(sum(way for way, found in kinds.items() if found.any()))


def choose(logits: Tensor, table: Tensor, ways: Ways) -> tuple[Tensor, Tensor]:
    """Choose a token for each row.

    Args:
        logits: (N, V) float32.
        table: (5, N) float64.
        ways: those that rows of the table need; more of them change no token.

    Returns:
        Tokens (N,) int64, and (N,) bool, whether the row's largest logit is finite: NaN anywhere makes it none.
    """
    values, tokens = logits.max(dim=-1)
    if ways:
        step = max(1, _MOST_NUMBERS // logits.shape[1])
        parts = zip(torch.split(logits, step), torch.split(table, step, dim=1), strict=True)
        drawn = torch.cat([_draw(part, numbers, ways) for part, numbers in parts])
        # Beside a logit that goes beyond float32 no other token has a weight.
        is_drawn = (table[TEMPERATURE] > 0) & torch.isfinite(values / _temperatures(table))
        tokens = torch.where(is_drawn, drawn, tokens)
    return tokens, torch.isfinite(values)


def _temperatures(table: Tensor) -> Tensor:
    return table[TEMPERATURE].float().clamp_min(LEAST_TEMPERATURE)


def _draw(logits: Tensor, table: Tensor, ways: Ways) -> Tensor:
    scaled = logits / _temperatures(table).unsqueeze(1)
    limits = scaled.amax(dim=-1, keepdim=True) + table[LOG_MIN_P].float().unsqueeze(1)
    scaled.masked_fill_(scaled < limits, -math.inf)
    top_ks, top_ps, numbers = table[TOP_K].long(), table[TOP_P], table[NUMBER]
    found = []
    if Ways.PLAIN in ways:
        # Sums in float64, so that a draw does not hang on the last bit of a sum over the vocabulary.
        by_ids = _pick(scaled.double().softmax(dim=-1), numbers)
        found.append(((top_ks == 0) & (top_ps >= 1.0), by_ids))
    if Ways.CANDIDATES in ways:
        is_narrow = (top_ks > 0) & (top_ks <= NUM_CANDIDATES)
        found.append((is_narrow, _draw_candidates(scaled, top_ks, top_ps, numbers)))
    if Ways.MASS in ways:
        is_counted = Ways.COUNT in ways
        by_mass = _draw_by_mass(scaled, top_ks if is_counted else None, top_ps, numbers)
        found.append((torch.ones_like(numbers, dtype=torch.bool), by_mass))
    tokens = found.pop()[1]
    for is_own, each in reversed(found):
        tokens = torch.where(is_own, each, tokens)
    return tokens


def _draw_candidates(scaled: Tensor, top_ks: Tensor, top_ps: Tensor, numbers: Tensor) -> Tensor:
    """Draw from the likeliest tokens of each row (N, V): (N,)."""
    values, ids = scaled.topk(min(NUM_CANDIDATES, scaled.shape[1]), dim=-1)
    ranks = torch.arange(values.shape[1], device=values.device)
    kept = values.double().masked_fill(ranks >= top_ks.unsqueeze(1), -math.inf)
    # top-p counts within what top-k keeps.
    probabilities = kept.softmax(dim=-1)
    # A token stays while the ones before it do not yet reach top-p; so the first always stays.
    before = probabilities.cumsum(dim=-1) - probabilities
    probabilities = probabilities.masked_fill(before >= top_ps.unsqueeze(1), 0.0)
    picked = _pick(probabilities, numbers)
    return ids.gather(1, picked.unsqueeze(1)).squeeze(1)


def _pick(weights: Tensor, numbers: Tensor) -> Tensor:
    """Return, per row of weights (N, C) float64, the index at which `numbers` (N,) falls."""
    sums = weights.cumsum(dim=-1)
    targets = (numbers * sums[:, -1]).unsqueeze(1)
    picked = torch.searchsorted(sums, targets, right=True).squeeze(1)
    # Rounding may push a number past the end: take the last index that has any weight.
    last = weights.shape[1] - 1 - (weights.flip(1) > 0).int().argmax(dim=1)
    return torch.minimum(picked, last)


def _draw_by_mass(scaled: Tensor, top_ks: Tensor | None, top_ps: Tensor, numbers: Tensor) -> Tensor:
    """Draw from as many of the likeliest tokens of each row (N, V) as top-k and top-p keep: (N,)."""
    keys = _falling_keys(scaled)
    largest = scaled.amax(dim=-1, keepdim=True).double()
    masses = ((scaled.double() - largest).exp_() * _UNIT).round_().long()
    if top_ks is not None:
        masses = masses.where(_is_within_top_k(keys, top_ks), 0)
    ranking = _Ranking(keys, masses)
    # The last token that stays is the first with which they reach top-p.
    goals = ((top_ps * ranking.totals).ceil().long() - 1).clamp_min(0)
    is_last, left = ranking.find(goals.minimum(ranking.totals - 1))
    each = masses.where(is_last, 0).amax(dim=-1).clamp_min(1)
    kept = goals - left + (left // each + 1) * each
    is_drawn, left = ranking.find((numbers * kept).long().minimum(kept - 1))
    each = masses.where(is_drawn, 0).amax(dim=-1).clamp_min(1)
    ranks = is_drawn.cumsum(dim=-1, dtype=torch.int32)
    places = (ranks <= (left // each).unsqueeze(1)).sum(dim=-1)
    return places.clamp_max(scaled.shape[1] - 1)


def _is_within_top_k(keys: Tensor, top_ks: Tensor) -> Tensor:
    """Return which tokens (N, V) top-k leaves; of equal keys the first ones."""
    vocab_size = keys.shape[1]
    most = torch.where(top_ks > 0, top_ks, vocab_size).clamp_max(vocab_size)
    is_last, left = _Ranking(keys, torch.ones_like(keys)).find(most - 1)
    is_likelier = keys < keys.where(is_last, 0).amax(dim=-1, keepdim=True)
    return is_likelier | (is_last & (is_last.cumsum(dim=-1) <= left.unsqueeze(1) + 1))


def _falling_keys(values: Tensor) -> Tensor:
    """Return float32 values as whole numbers from 0 to 2^32 - 1, of which the largest value has the least: int64."""
    bits = (values + 0.0).view(torch.int32)  # of -0.0 as of 0.0
    rising = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return 0x7FFFFFFF - rising.long()


class _Ranking:
    """Masses of tokens in the order of their keys.

    Args:
        keys: (N, V) int64, of 32 bits.
        masses: (N, V) int64, not negative, equal where keys are.
    """

    def __init__(self, keys: Tensor, masses: Tensor) -> None:
        self._keys, self._masses = keys, masses
        self._widths = _FEW_DIGITS if keys.shape[1] >= _LARGE_VOCABULARY else _MANY_DIGITS
        self._first_sums = self._sum_up(keys >> (32 - self._widths[0]), masses, self._widths[0])
        self.totals = self._first_sums.sum(dim=-1)
        """(N,)."""

    def find(self, goals: Tensor) -> tuple[Tensor, Tensor]:
        """Find the first key of each row up to which there is more than a goal.

        Args:
            goals: (N,) int64, at least 0 and less than the row's sum.

        Returns:
            Which tokens (N, V) have that key, and what of the goal (N,) is left for them.
        """
        left, shift = goals, 32
        is_own: Tensor | None = None
        for width in self._widths:
            shift -= width
            digits = (self._keys >> shift) & ((1 << width) - 1)
            sums = self._first_sums
            if is_own is not None:
                sums = self._sum_up(digits, self._masses.where(is_own, 0), width)
            found, before = _first_above(sums, left)
            left = left - before
            is_found = digits == found.unsqueeze(1)
            is_own = is_found if is_own is None else is_own & is_found
        assert is_own is not None, "a key has digits"
        return is_own, left

    @staticmethod
    def _sum_up(digits: Tensor, masses: Tensor, width: int) -> Tensor:
        return masses.new_zeros(len(masses), 1 << width).scatter_add_(1, digits, masses)


def _first_above(sums: Tensor, goals: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first index of each row (N, C) up to which there is more than a goal, and the sum before it."""
    ends = sums.cumsum(dim=-1)
    # Of a row without numbers, which is not valid, there may be none.
    found = (ends <= goals.unsqueeze(1)).sum(dim=-1).clamp_max(sums.shape[1] - 1)
    index = found.unsqueeze(1)
    return found, (ends.gather(1, index) - sums.gather(1, index)).squeeze(1)
