"""Sampling row by row, as plainly as it can be said: what `exo_engine.sampling` is held equal to.

The order of operations is vLLM's: bias and held-back tokens,
penalties, then greedy, or temperature, min-p, top-k and top-p, draw. Work that no row asks for is
skipped, and rows never influence each other.

Legend: N rows (sequences that sample in this step), V vocabulary.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from exo_engine.core.request import TokenLogprobs
from exo_engine.sampling.logprobs import gather_logprobs
from exo_engine.sampling.random_numbers import uniform
from exo_engine.sampling_params import SamplingParams
from torch import Tensor

# Filters look at this many likeliest tokens first; rows for which that is not enough sort all.
_NUM_CANDIDATES = 1024


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """What sampling needs to know of one sequence."""

    params: SamplingParams
    prompt_token_ids: Seq[int]
    output_token_ids: Seq[int]
    key: int
    """64-bit key of its random numbers."""
    stop_token_ids: tuple[int, ...]
    """Tokens that may not come before `min_tokens`."""


class Token(NamedTuple):
    """What was chosen for a row."""

    token_id: int
    logprobs: TokenLogprobs | None = None
    is_valid: bool = True


def sample(logits: Tensor, rows: Seq[SamplingRow]) -> list[Token]:
    """Choose one token per row.

    Args:
        logits: (N, V) float32; overwritten.
        rows: one per row of `logits`.
    """
    # NaN anywhere in a row makes its maximum NaN; such a request ends, the others go on.
    is_valid = torch.isfinite(logits.amax(dim=-1)).tolist()
    wants_logprobs = [i for i, row in enumerate(rows) if row.params.logprobs is not None]
    raw = logits[wants_logprobs] if wants_logprobs else None
    _adjust(logits, rows)
    tokens = logits.argmax(dim=-1)
    drawn = [i for i, row in enumerate(rows) if not row.params.is_greedy and is_valid[i]]
    if drawn:
        index = torch.tensor(drawn, device=logits.device)
        chosen = logits if len(drawn) == len(rows) else logits[index]
        tokens[index] = _draw(chosen, [rows[i] for i in drawn])
    token_ids: list[int] = tokens.tolist()
    logprobs: dict[int, TokenLogprobs] = {}
    if raw is not None:
        entries = gather_logprobs(
            raw,
            [token_ids[i] for i in wants_logprobs],
            [rows[i].params.logprobs or 0 for i in wants_logprobs],
        )
        logprobs = dict(zip(wants_logprobs, entries, strict=True))
    return [Token(token_id, logprobs.get(i), is_valid[i]) for i, token_id in enumerate(token_ids)]


def _adjust(logits: Tensor, rows: Seq[SamplingRow]) -> None:
    """Apply what changes the likeliest token: bias, held-back tokens, penalties. In place."""
    for index, row in enumerate(rows):
        params = row.params
        if params.allowed_token_ids is not None:
            banned = sorted(set(range(logits.shape[1])) - set(params.allowed_token_ids))
            logits[index, banned] = -math.inf
        if params.logit_bias:
            ids = torch.tensor(list(params.logit_bias), device=logits.device)
            bias = torch.tensor(list(params.logit_bias.values()), device=logits.device)
            logits[index, ids] += bias.to(logits.dtype)
        if len(row.output_token_ids) < params.min_tokens and row.stop_token_ids:
            logits[index, list(row.stop_token_ids)] = -math.inf
        for *beginning, last in params.bad_words:
            if (
                list(row.output_token_ids)[len(row.output_token_ids) - len(beginning) :]
                == beginning
            ):
                logits[index, last] = -math.inf
        if params.uses_penalties:
            _penalize(logits[index], row)


def _penalize(logits: Tensor, row: SamplingRow) -> None:
    """Apply penalties to one row's logits (V,), in place."""
    params, device = row.params, logits.device
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted({*row.prompt_token_ids, *row.output_token_ids}), device=device)
        values = logits[seen]
        logits[seen] = torch.where(
            values > 0, values / params.repetition_penalty, values * params.repetition_penalty
        )
    if row.output_token_ids:
        counts = Counter(row.output_token_ids)
        ids = torch.tensor(list(counts), device=device)
        occurrences = torch.tensor(list(counts.values()), dtype=logits.dtype, device=device)
        logits[ids] -= params.frequency_penalty * occurrences + params.presence_penalty


def _draw(logits: Tensor, rows: Seq[SamplingRow]) -> Tensor:
    """Draw one token per row: (N, V) to (N,) int64."""
    device = logits.device
    temperatures = torch.tensor([row.params.temperature for row in rows], device=device)
    scaled = logits / temperatures.clamp_min(1e-6).unsqueeze(1)
    keys = np.array([row.key for row in rows], dtype=np.uint64)
    counters = np.array([len(row.output_token_ids) for row in rows], dtype=np.uint64)
    numbers = torch.from_numpy(uniform(keys, counters)).to(device)
    if any(row.params.min_p > 0.0 for row in rows):
        floors = torch.tensor(
            [math.log(row.params.min_p) if row.params.min_p > 0.0 else -math.inf for row in rows]
        )
        limit = scaled.amax(dim=-1, keepdim=True) + floors.to(device).unsqueeze(1)
        scaled.masked_fill_(scaled < limit, -math.inf)
    tokens = torch.empty(len(rows), dtype=torch.int64, device=device)
    # Sums in float64, so that a draw does not hang on the last bit of a sum over the vocabulary.
    plain = [i for i, row in enumerate(rows) if not _is_filtered(row.params)]
    filtered = [i for i, row in enumerate(rows) if _is_filtered(row.params)]
    if plain:
        tokens[plain] = _pick(scaled[plain].double().softmax(dim=-1), numbers[plain])
    if filtered:
        tokens[filtered] = _draw_filtered(
            scaled[filtered], [rows[i].params for i in filtered], numbers[filtered]
        )
    return tokens


def _draw_filtered(scaled: Tensor, params: Seq[SamplingParams], numbers: Tensor) -> Tensor:
    """Draw from the top-k and top-p part of each row: (N, V) to (N,)."""
    vocab_size = scaled.shape[1]
    top_ks = torch.tensor([p.top_k or vocab_size for p in params], device=scaled.device)
    top_ps = torch.tensor([p.top_p for p in params], device=scaled.device, dtype=torch.float64)
    num_candidates = min(_NUM_CANDIDATES, vocab_size)
    values, ids = scaled.topk(num_candidates, dim=-1)
    # Probabilities among all that top-k keeps; where it keeps more than the candidates, among all.
    totals = scaled.double().logsumexp(dim=-1)
    mass = (values.double() - totals.unsqueeze(1)).exp().sum(dim=-1)
    is_enough = (top_ks <= num_candidates) | ((mass >= top_ps) & (top_ks >= vocab_size))
    tokens = _draw_sorted(values, ids, top_ks, top_ps, totals, numbers)
    if num_candidates < vocab_size and not bool(is_enough.all()):
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


def _is_filtered(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1.0
