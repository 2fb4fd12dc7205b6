"""Chooses the next token of each sequence from its logits.

The runner calls `sample` once per step. The order of operations is vLLM's: a grammar's mask and
allowed tokens, bias, held-back tokens and bad words, penalties, then greedy, or temperature, min-p,
top-k and top-p, draw (`draws.py`). Work that no row asks for is skipped, rows never influence each other,
and the device is not waited for.

Legend: N rows (sequences that sample in this step), V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from exo_engine.core.request import TokenLogprobs
from exo_engine.kernels.library import Kernels
from exo_engine.kernels.sampling import choose_tokens, forbid_tokens
from exo_engine.kernels.uploads import to_device
from exo_engine.sampling.draws import Ways, choose
from exo_engine.sampling.logprobs import LogprobTensors, measure_logprobs
from exo_engine.sampling.state import Draws, Penalties, SamplingState, StepPlan
from exo_engine.sampling.token_tables import Ints, unpack_bits

_FORBIDDEN = 2**40
"""More than there are tokens."""


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
        """(N + R,) int64 for one copy: a token, or what lies that far below 0 if it is not valid; then R of reports.

        `_FORBIDDEN` further below where no token is allowed.
        """
        tokens = torch.where(self.is_valid, self.tokens, ~self.tokens)
        if self.is_valid is not self.is_finite:
            tokens = torch.where(self.is_valid | ~self.is_finite, tokens, tokens - _FORBIDDEN)
        return tokens if self.logprobs is None else torch.cat((tokens, self.logprobs.packed))

    def reports(self, packed: Ints) -> dict[int, TokenLogprobs]:
        """Return the log-probabilities by row, of `packed` on the host without its tokens."""
        if self.logprobs is None or self.reported_rows is None:
            return {}
        return dict(zip(self.reported_rows.tolist(), self.logprobs.unpack(packed), strict=True))


@dataclass(frozen=True, slots=True)
class RowMask:
    """Which tokens may follow, of some of a step's rows; M of them."""

    rows: Tensor | None
    """(M,) int64; None: all rows, in order."""
    bits: Tensor
    """(M, W) int32, a bit per token that is allowed, the lowest first; W may be more than needed."""


def unpack(packed: Ints) -> tuple[Ints, NDArray[np.bool_], NDArray[np.bool_]]:
    """Return tokens (N,), `is_valid` and `is_finite` of the first N of `Samples.packed`."""
    is_valid = packed >= 0
    if is_valid.all():
        return packed, is_valid, is_valid
    is_forbidden = packed < -_FORBIDDEN
    tokens = np.where(is_valid, packed, ~(packed + _FORBIDDEN * is_forbidden))
    return tokens, is_valid, is_valid | is_forbidden


def sample(
    logits: Tensor,
    state: SamplingState,
    slots: Ints,
    mask: RowMask | None = None,
    choose_otherwise: Callable[[StepPlan], tuple[Tensor, Tensor] | None] | None = None,
) -> Samples:
    """Choose one token per row. It is not appended to the state.

    Args:
        logits: (N, V) float32; overwritten.
        state: what the slots ask for.
        slots: (N,) the slot of each row.
        mask: of the rows with a grammar.
        choose_otherwise: chooses from the logits once they are adjusted, as `draws.choose` does; gives None where it
            cannot.
    """
    plan = state.plan(slots)
    raw = None if plan.reported is None else logits[plan.reported]
    is_finite = None
    if plan.adjusts or mask is not None:
        is_finite = _is_finite(logits) if mask is None else _forbid(logits, mask, state.kernels)
        _adjust(logits, state, plan)
    chosen = None if choose_otherwise is None else choose_otherwise(plan)
    tokens, is_finite_now = _choose(logits, state, plan) if chosen is None else chosen
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
    if draws is None:
        return choose(logits, logits, Ways(0))
    numbers = to_device(state.draw_numbers(draws), logits.device)
    table = torch.cat([draws.on_device, numbers.unsqueeze(0)])
    if draws.index is None:
        return choose(logits, table, draws.ways)
    tokens, is_finite = choose(logits, logits, Ways(0))
    drawn, _ = choose(logits[draws.index], table, draws.ways)
    tokens[draws.index] = drawn
    return tokens, is_finite


def _numbers_of_rows(state: SamplingState, draws: Draws, num_rows: int) -> Tensor:
    """Return (N,) float64: where the draw of each row falls, 0 where it is greedy."""
    numbers = np.zeros(num_rows)
    numbers[draws.rows] = state.draw_numbers(draws)
    return torch.from_numpy(numbers)


def _adjust(logits: Tensor, state: SamplingState, plan: StepPlan) -> None:
    """Apply what changes the likeliest token, but for a grammar's mask, in place."""
    if plan.allowed is not None:
        rows, table_rows = plan.allowed
        allowed = unpack_bits(state.masks.of_rows(table_rows), logits.shape[1])
        logits[rows] = logits[rows].masked_fill(~allowed, -math.inf)
    if plan.additions is not None:
        rows, token_ids, values = plan.additions
        logits.index_put_((rows, token_ids), values, accumulate=True)
    if plan.held is not None:
        _hold_back(logits, state, plan.slots, plan.held)
    for words in plan.words or ():
        has_begun = state.bad_words.has_begun(words.slots, words.beginnings)
        # Added, since several words may end in one token and only some of them have begun.
        values = logits.new_zeros(len(words.rows)).masked_fill_(has_begun, -math.inf)
        logits.index_put_((words.rows, words.lasts), values, accumulate=True)
    if plan.penalties is not None:
        _penalize(logits, state, plan.penalties)


def _forbid(logits: Tensor, mask: RowMask, kernels: Kernels | None) -> Tensor:
    """Leave only the tokens of a mask, in place; return (N,) bool, as `_is_finite` says it of the logits before."""
    if kernels is not None and logits.is_contiguous():
        return forbid_tokens(kernels, logits, mask.bits, mask.rows)
    is_finite = _is_finite(logits)
    forbidden = unpack_bits(~mask.bits, logits.shape[1])
    if mask.rows is None:
        logits.masked_fill_(forbidden, -math.inf)
    else:
        logits[mask.rows] = logits[mask.rows].masked_fill_(forbidden, -math.inf)
    return is_finite


def _hold_back(
    logits: Tensor, state: SamplingState, slots: Ints, held: tuple[Ints, Ints, Ints]
) -> None:
    """Forbid stop tokens to rows whose answer is still too short."""
    rows, token_ids, until = held
    is_held = state.num_outputs[slots][rows] < until
    if is_held.any():
        index = to_device(np.stack([rows[is_held], token_ids[is_held]]), logits.device)
        logits[index[0], index[1]] = -math.inf


def _penalize(logits: Tensor, state: SamplingState, penalties: Penalties) -> None:
    token_ids, counts, is_seen = state.seen.of_rows(penalties.table_rows, penalties.slots)
    index = (penalties.rows.unsqueeze(1), token_ids)
    chosen = logits[index]
    repeated = torch.where(chosen > 0, chosen / penalties.repetition, chosen * penalties.repetition)
    chosen = torch.where(is_seen, repeated, chosen)
    owed = penalties.frequency * counts + penalties.presence
    logits[index] = torch.where(counts > 0, chosen - owed, chosen)
