"""Log-probabilities for reports: of a chosen token, its rank, and the likeliest tokens.

They describe the model's own distribution, before bias, penalties, temperature and filters.

Legend: N rows, V vocabulary, K likeliest tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
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

    @property
    def packed(self) -> Tensor:
        """(N (3 + 2 K),) int64 for one copy: of each row all that there is, float32 as its bits."""
        logprobs, top_logprobs = (
            each.view(torch.int32).long() for each in (self.logprobs, self.top_logprobs)
        )
        columns = torch.stack((self.token_ids, logprobs, self.ranks), dim=1)
        return torch.cat((columns, self.top_ids, top_logprobs), dim=1).flatten()

    def unpack(self, packed: NDArray[np.int64]) -> list[TokenLogprobs]:
        """Return a report per row, of `packed` on the host."""
        whole = packed.reshape(len(self.num_top), -1)
        floats = whole.astype(np.int32).view(np.float32)
        most = (whole.shape[1] - 3) // 2
        rows = zip(whole.tolist(), floats.tolist(), self.num_top, strict=True)
        reports = []
        for ids, numbers, num in rows:
            top_ids, top_logprobs = ids[3 : 3 + most], numbers[3 + most :]
            top = tuple(zip(top_ids[:num], top_logprobs[:num], strict=True))
            reports.append(TokenLogprobs(ids[0], numbers[1], ids[2], top))
        return reports


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
    found = measure_logprobs(logits, index, num_top)
    return found.unpack(np.array(found.packed.tolist(), dtype=np.int64))
