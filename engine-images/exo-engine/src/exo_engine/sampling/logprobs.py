"""Log-probabilities for reports: of a chosen token, its rank, and the likeliest tokens.

They describe the model's own distribution, before bias, penalties, temperature and filters.

Legend: N rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from exo_engine.core.request import TokenLogprobs


def gather_logprobs(
    logits: Tensor, token_ids: Sequence[int], num_top: Sequence[int]
) -> list[TokenLogprobs]:
    """Return a report per row of `logits` (N, V) float32.

    Args:
        logits: as the model gave them.
        token_ids: the chosen token of each row.
        num_top: how many of the likeliest tokens to report for each row.
    """
    logprobs = logits.log_softmax(dim=-1)
    index = torch.tensor(list(token_ids), device=logits.device).unsqueeze(1)
    chosen = logprobs.gather(1, index)
    ranks = (logprobs > chosen).sum(dim=-1) + 1
    most = min(max(num_top, default=0), logits.shape[1])
    top_values: list[list[float]] = [[]] * len(token_ids)
    top_ids: list[list[int]] = [[]] * len(token_ids)
    if most:
        values, ids = logprobs.topk(most, dim=-1)
        top_values, top_ids = values.tolist(), ids.tolist()
    return [
        TokenLogprobs(
            token_id=token_id,
            logprob=logprob,
            rank=rank,
            top=tuple(zip(row_ids[:num], row_values[:num], strict=True)),
        )
        for token_id, logprob, rank, num, row_ids, row_values in zip(
            token_ids,
            chosen.squeeze(1).tolist(),
            ranks.tolist(),
            num_top,
            top_ids,
            top_values,
            strict=True,
        )
    ]
