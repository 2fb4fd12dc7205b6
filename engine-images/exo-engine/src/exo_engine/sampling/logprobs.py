"""Log-probabilities for reports: of a chosen token, its rank, and the likeliest tokens.

They describe the model's own distribution, before bias, penalties, temperature and filters.

Legend: N rows, V vocabulary, K likeliest tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from exo_engine.core.request import TokenLogprobs
from exo_engine.kernels.uploads import to_device


@dataclass(frozen=True, slots=True)
class LogprobTensors:
    """Reports of N rows, still on the device."""

    token_ids: Tensor
    """(N,) int64: the chosen tokens."""
    logprobs: Tensor
    """(N,) float32"""
    ranks: Tensor
    """(N,) int64"""
    top_ids: Tensor
    """(N, K) int64, likeliest first; K is what the row that asks for most does."""
    top_logprobs: Tensor
    """(N, K) float32"""
    num_top: Sequence[int]
    """How many of the K each row asks for."""

    def reports(self) -> list[TokenLogprobs]:
        """Bring them to the host, one report per row."""
        return [
            TokenLogprobs(token_id, logprob, rank, tuple(zip(ids[:num], values[:num], strict=True)))
            for token_id, logprob, rank, num, ids, values in zip(
                self.token_ids.tolist(),
                self.logprobs.tolist(),
                self.ranks.tolist(),
                self.num_top,
                self.top_ids.tolist(),
                self.top_logprobs.tolist(),
                strict=True,
            )
        ]


def measure_logprobs(logits: Tensor, token_ids: Tensor, num_top: Sequence[int]) -> LogprobTensors:
    """Return what is to be reported of each row of `logits` (N, V) float32.

    Args:
        logits: as the model gave them.
        token_ids: (N,) int64, the chosen token of each row.
        num_top: how many of the likeliest tokens to report for each row.
    """
    logprobs = logits.log_softmax(dim=-1)
    chosen = logprobs.gather(1, token_ids.unsqueeze(1))
    ranks = (logprobs > chosen).sum(dim=-1) + 1
    most = min(max(num_top, default=0), logits.shape[1])
    values, ids = logprobs.topk(most, dim=-1)
    return LogprobTensors(token_ids, chosen.squeeze(1), ranks, ids, values, num_top)


def gather_logprobs(
    logits: Tensor, token_ids: Sequence[int], num_top: Sequence[int]
) -> list[TokenLogprobs]:
    """Return a report per row, as `measure_logprobs` does, on the host."""
    index = to_device(np.array(token_ids, np.int64), logits.device)
    return measure_logprobs(logits, index, num_top).reports()
