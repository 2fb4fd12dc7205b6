"""Sampling row by row, as plainly as it can be said: what `exo_engine.sampling` is held equal to.

Nothing of the sampler is used here, random numbers and log-probabilities included. The order of operations is vLLM's: allowed tokens, bias, held-back tokens and bad words, penalties, then
greedy, or temperature, min-p, top-k and top-p, draw. A draw goes through the tokens in order of their ids,
or of their likelihood where top-k or top-p is set, and takes the one at which the number falls.
Logits are float32, one operation after the other, and probabilities float64.

Legend: N rows (sequences that sample in this step), V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from exo_engine.core.request import TokenLogprobs
from exo_engine.sampling_params import SamplingParams
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float32]


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
    """Choose one token per row of `logits` (N, V) float32."""
    return [_choose(each.numpy(), row) for each, row in zip(logits, rows, strict=True)]


def uniform(key: int, counter: int) -> float:
    """Philox4x32-10 (Salmon et al. 2011) of one counter, 53 of its bits as a number in [0, 1)."""
    mask = 2**32 - 1
    words = [counter & mask, counter >> 32, 0, 0]
    low, high = key & mask, key >> 32
    for _ in range(10):
        first, second = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57
        words = [
            (second >> 32) ^ words[1] ^ low,
            second & mask,
            (first >> 32) ^ words[3] ^ high,
            first & mask,
        ]
        low, high = (low + 0x9E3779B9) & mask, (high + 0xBB67AE85) & mask
    return ((words[0] << 32 | words[1]) >> 11) / 2**53


def _choose(raw: Floats, row: SamplingRow) -> Token:
    if not math.isfinite(max(raw.tolist())) or np.isnan(raw).any():
        return Token(int(np.argmax(raw)), is_valid=False)
    logits = _adjusted(raw, row)
    token_id = int(np.argmax(logits)) if row.params.is_greedy else _draw(logits, row)
    asked = row.params.logprobs
    return Token(token_id, None if asked is None else _report(raw, token_id, asked))


def _report(raw: Floats, token_id: int, num_top: int) -> TokenLogprobs:
    total = math.log(math.fsum(math.exp(value) for value in raw.tolist()))
    best = sorted(range(len(raw)), key=lambda each: -raw[each])[:num_top]
    return TokenLogprobs(
        token_id,
        float(raw[token_id]) - total,
        1 + int((raw > raw[token_id]).sum()),
        tuple((each, float(raw[each]) - total) for each in best),
    )


def _adjusted(raw: Floats, row: SamplingRow) -> Floats:
    """Apply what changes the likeliest token: bias, held-back tokens, penalties."""
    params, logits = row.params, raw.copy()
    outputs = list(row.output_token_ids)
    if params.allowed_token_ids is not None:
        for token_id in set(range(len(logits))) - set(params.allowed_token_ids):
            logits[token_id] = -math.inf
    for token_id, bias in (params.logit_bias or {}).items():
        logits[token_id] += np.float32(bias)
    if len(outputs) < params.min_tokens:
        for token_id in row.stop_token_ids:
            logits[token_id] = -math.inf
    for *beginning, last in params.bad_words:
        if outputs[len(outputs) - len(beginning) :] == beginning:
            logits[last] = -math.inf
    factor = np.float32(params.repetition_penalty)
    for token_id in {*row.prompt_token_ids, *outputs}:
        is_likely = logits[token_id] > 0
        logits[token_id] = logits[token_id] / factor if is_likely else logits[token_id] * factor
    for token_id in set(outputs):
        count = np.float32(outputs.count(token_id))
        frequency, presence = map(np.float32, (params.frequency_penalty, params.presence_penalty))
        logits[token_id] -= frequency * count + presence
    return logits


def _draw(logits: Floats, row: SamplingRow) -> int:
    params = row.params
    scaled = (logits / np.float32(max(params.temperature, 1e-6))).astype(np.float64)
    weights = np.exp(scaled - scaled.max())  # of the likeliest one: 1
    weights[weights < params.min_p] = 0.0
    order = list(range(len(weights)))
    if params.top_k or params.top_p < 1.0:
        order = sorted(order, key=lambda each: -weights[each])[: params.top_k or None]
        order = _nucleus(order, weights, params.top_p)
    left = uniform(row.key, len(row.output_token_ids)) * math.fsum(weights[order])
    for token_id in order:
        left -= weights[token_id]
        if left < 0:
            return token_id
    return [each for each in order if weights[each] > 0][-1]


def _nucleus(order: list[int], weights: NDArray[np.float64], top_p: float) -> list[int]:
    """Return the first tokens, up to the one with which they reach `top_p` of the whole."""
    goal, before = top_p * math.fsum(weights[order]), 0.0
    for count, token_id in enumerate(order):
        if count and before >= goal:
            return order[:count]
        before += weights[token_id]
    return order
