"""Chooses the next token of each sequence from its logits.

The runner calls `sample` once per step. The order of operations is vLLM's: allowed tokens and a
grammar's mask, bias, held-back tokens and bad words, penalties, then greedy, or temperature, min-p,
top-k and top-p, draw. Work that no row asks for is skipped, and rows never influence each other. The
device is waited for only where top-p without top-k may need all tokens sorted.

Legend: N rows (sequences that sample in this step), V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from exo_engine.core.request import TokenLogprobs
from exo_engine.kernels.sampling import choose_tokens
from exo_engine.sampling.logprobs import LogprobTensors, measure_logprobs
from exo_engine.sampling.random_numbers import uniform
from exo_engine.sampling.state import NUM_CANDIDATES, Draws, Penalties, SamplingState, StepPlan
from exo_engine.sampling.token_tables import Ints, unpack_bits


@dataclass(frozen=True, slots=True)
class Samples:
    """What was chosen for a step's rows; the tensors may still be under way on the device."""

    tokens: Tensor
    """(N,) int64"""
    is_valid: Tensor
    """(N,) bool, False where the model produced no finite logits, or no token is allowed."""
    is_finite: Tensor
    """(N,) bool, False where the model produced no finite logits."""
    logprobs: LogprobTensors | None = None
    """Of the rows that ask for them."""
    reported_rows: Ints | None = None

    @property
    def packed(self) -> Tensor:
        """(N,) int64 for one copy: a token, or what lies that far below 0 if it is not valid."""
        return torch.where(self.is_valid, self.tokens, ~self.tokens)

    def reports(self) -> dict[int, TokenLogprobs]:
        """Return the log-probabilities by row."""
        if self.logprobs is None or self.reported_rows is None:
            return {}
        return dict(zip(self.reported_rows.tolist(), self.logprobs.reports(), strict=True))


@dataclass(frozen=True, slots=True)
class RowMask:
    """Which tokens may follow, of some of a step's rows; M of them."""

    rows: Tensor | None
    """(M,) int64; None: all rows, in order."""
    bits: Tensor
    """(M, W) int32, a bit per token that is allowed, the lowest first; W may be more than needed."""


def unpack(packed: int) -> tuple[int, bool]:
    """Return token and whether it is valid, of a number of `Samples.packed`."""
    return (packed, True) if packed >= 0 else (~packed, False)


def sample(
    logits: Tensor, state: SamplingState, slots: Ints, mask: RowMask | None = None
) -> Samples:
    """Choose one token per row. It is not appended to the state.

    Args:
        logits: (N, V) float32; overwritten.
        state: what the slots ask for.
        slots: (N,) the slot of each row.
        mask: of the rows with a grammar.
    """
    plan = state.plan(slots)
    raw = None if plan.reported is None else logits[plan.reported]
    is_finite = None
    if plan.adjusts or mask is not None:
        is_finite = _is_finite(logits)
        _adjust(logits, state, plan, mask)
    tokens, is_finite_now = _choose(logits, state, plan)
    is_valid = is_finite = is_finite_now if is_finite is None else is_finite
    if mask is not None or plan.may_forbid_all:  # a forbidden token is chosen only where all are
        is_valid = is_finite & (logits.gather(1, tokens.unsqueeze(1)).squeeze(1) > -math.inf)
    if raw is None:
        return Samples(tokens, is_valid, is_finite)
    reported = measure_logprobs(raw, tokens[plan.reported], plan.num_top.tolist())
    return Samples(tokens, is_valid, is_finite, reported, plan.reported_rows)


def _is_finite(logits: Tensor) -> Tensor:
    """Return (N,) bool: NaN anywhere in a row makes its maximum NaN; such a request ends, the others go on."""
    return torch.isfinite(logits.amax(dim=-1))


def _choose(logits: Tensor, state: SamplingState, plan: StepPlan) -> tuple[Tensor, Tensor]:
    """Return a token for each row (N,), and whether its largest logit is finite (N,)."""
    draws = plan.draws
    if state.kernels is not None:
        numbers = None if draws is None else _numbers_of_rows(state, draws, len(logits))
        return choose_tokens(state.kernels, logits.contiguous(), plan.filters, numbers)
    is_finite = _is_finite(logits)
    if draws is None:
        return logits.max(dim=-1).indices, is_finite
    if draws.is_all:
        return _draw(logits, state, draws), is_finite
    tokens = logits.max(dim=-1).indices
    tokens[draws.rows] = _draw(logits[draws.rows], state, draws)
    return tokens, is_finite


def _numbers_of_rows(state: SamplingState, draws: Draws, num_rows: int) -> Tensor:
    """Return (N,) float64: where the draw of each row falls, 0 where it is greedy."""
    numbers = torch.zeros(num_rows, dtype=torch.float64)
    numbers[draws.rows] = _draw_numbers(state, draws)
    return numbers


def _draw_numbers(state: SamplingState, draws: Draws) -> Tensor:
    counters = state.num_outputs[draws.slots].astype(np.uint64)
    return torch.from_numpy(uniform(draws.keys, counters))


def _adjust(logits: Tensor, state: SamplingState, plan: StepPlan, mask: RowMask | None) -> None:
    """Apply what changes the likeliest token, in place."""
    if plan.allowed is not None:
        rows, table_rows = plan.allowed
        allowed = unpack_bits(state.masks.of_rows(table_rows), logits.shape[1])
        logits[rows] = logits[rows].masked_fill(~allowed, -math.inf)
    if mask is not None:
        _forbid(logits, mask)
    if plan.additions is not None:
        rows, token_ids, values = plan.additions
        logits.index_put_((rows, token_ids), values, accumulate=True)
    if plan.held is not None:
        _hold_back(logits, state, plan.slots, plan.held)
    if plan.words is not None:
        words = plan.words
        has_begun = state.bad_words.has_begun(words.slots, words.beginnings)
        # Added, since several words may end in one token and only some of them have begun.
        values = logits.new_zeros(len(words.rows)).masked_fill_(has_begun, -math.inf)
        logits.index_put_((words.rows, words.lasts), values, accumulate=True)
    if plan.penalties is not None:
        _penalize(logits, state, plan.penalties)


def _forbid(logits: Tensor, mask: RowMask) -> None:
    """Leave only the tokens of a mask, in place."""
    forbidden = unpack_bits(~mask.bits, logits.shape[1])
    if logits.device.type == "cpu":  # less time than masked_fill takes
        values, is_forbidden = logits.numpy(), forbidden.numpy()
        if mask.rows is None:
            np.copyto(values, -np.inf, where=is_forbidden)
            return
        for row, where in zip(mask.rows.tolist(), is_forbidden, strict=True):
            np.copyto(values[row], -np.inf, where=where)
    elif mask.rows is None:
        logits.masked_fill_(forbidden, -math.inf)
    else:
        logits[mask.rows] = logits[mask.rows].masked_fill_(forbidden, -math.inf)


def _hold_back(
    logits: Tensor, state: SamplingState, slots: Ints, held: tuple[Ints, Ints, Ints]
) -> None:
    """Forbid stop tokens to rows whose answer is still too short."""
    rows, token_ids, until = held
    is_held = state.num_outputs[slots][rows] < until
    if is_held.any():
        index = torch.from_numpy(np.stack([rows[is_held], token_ids[is_held]])).to(logits.device)
        logits[index[0], index[1]] = -math.inf


def _penalize(logits: Tensor, state: SamplingState, penalties: Penalties) -> None:
    token_ids, counts, is_seen = state.seen.of_rows(penalties.table_rows, penalties.slots)
    index = (penalties.rows.unsqueeze(1), token_ids)
    chosen = logits[index]
    repeated = torch.where(chosen > 0, chosen / penalties.repetition, chosen * penalties.repetition)
    chosen = torch.where(is_seen, repeated, chosen)
    owed = penalties.frequency * counts + penalties.presence
    logits[index] = torch.where(counts > 0, chosen - owed, chosen)


def _draw(logits: Tensor, state: SamplingState, draws: Draws) -> Tensor:
    """Draw one token per row: (D, V) to (D,) int64."""
    numbers = _draw_numbers(state, draws).to(logits.device)
    scaled = logits / draws.temperatures
    if draws.log_min_ps is not None:
        limit = scaled.amax(dim=-1, keepdim=True) + draws.log_min_ps
        scaled.masked_fill_(scaled < limit, -math.inf)
    # Sums in float64, so that a draw does not hang on the last bit of a sum over the vocabulary.
    if not len(draws.filtered):
        return _pick(scaled.double().softmax(dim=-1), numbers)
    if not len(draws.plain):
        return _draw_filtered(scaled, draws, numbers)
    tokens = torch.empty(len(scaled), dtype=torch.int64, device=logits.device)
    plain, filtered = draws.plain, draws.filtered
    tokens[plain] = _pick(scaled[plain].double().softmax(dim=-1), numbers[plain])
    tokens[filtered] = _draw_filtered(scaled[filtered], draws, numbers[filtered])
    return tokens


def _draw_filtered(scaled: Tensor, draws: Draws, numbers: Tensor) -> Tensor:
    """Draw from the top-k and top-p part of each row: (F, V) to (F,)."""
    vocab_size = scaled.shape[1]
    top_ks, top_ps = draws.top_ks, draws.top_ps
    num_candidates = min(NUM_CANDIDATES, vocab_size)
    values, ids = scaled.topk(num_candidates, dim=-1)
    # Probabilities among all that top-k keeps; where it keeps more than the candidates, among all.
    totals = scaled.double().logsumexp(dim=-1)
    mass = (values.double() - totals.unsqueeze(1)).exp().sum(dim=-1)
    is_enough = (top_ks <= num_candidates) | ((mass >= top_ps) & (top_ks >= vocab_size))
    tokens = _draw_sorted(values, ids, top_ks, top_ps, totals, numbers)
    if num_candidates == vocab_size or draws.is_narrow:
        return tokens
    if not bool(is_enough.all()):
        rest = (~is_enough).nonzero().squeeze(1)
        values, ids = scaled[rest].sort(dim=-1, descending=True, stable=True)
        tokens[rest] = _draw_sorted(
            values, ids, top_ks[rest], top_ps[rest], totals[rest], numbers[rest]
        )
    return tokens


def _draw_sorted(
    values: Tensor, ids: Tensor, top_ks: Tensor, top_ps: Tensor, totals: Tensor, numbers: Tensor
) -> Tensor:
    """Draw from rows whose logits (N, C) are sorted, likeliest first, with token ids (N, C)."""
    ranks = torch.arange(values.shape[1], device=values.device)
    kept = values.double().masked_fill(ranks >= top_ks.unsqueeze(1), -math.inf)
    # top-p counts within what top-k keeps.
    within = torch.where(top_ks <= values.shape[1], kept.logsumexp(dim=-1), totals)
    probabilities = (kept - within.unsqueeze(1)).exp()
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
