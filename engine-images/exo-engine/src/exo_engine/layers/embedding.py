"""Token embeddings, which may also be the output head.

Legend: T tokens in step, N rows that need logits, E hidden size, V vocabulary.
"""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from exo_engine.layers.base import Context, Layer, Slot
from exo_engine.weight_formats.base import Stored


class Embedding(Layer):
    """A row of plain numbers per token, the same on every rank."""

    def __init__(self, context: Context, name: str, vocab_size: int, hidden_size: int) -> None:
        super().__init__(context)
        self.weight = context.empty(vocab_size, hidden_size)  # (V, E)
        stored = Stored((vocab_size, hidden_size))
        self.slots[f"{name}.weight"] = Slot(stored, self.weight.copy_)

    def look_up(self, token_ids: Tensor) -> Tensor:
        """Return (T, E) for token ids (T,) integers."""
        return F.embedding(token_ids, self.weight)

    def project(self, hidden: Tensor) -> Tensor:
        """Return how well each token's row fits hidden states (N, E): (N, V)."""
        return F.linear(hidden, self.weight)

    @property
    def num_bytes(self) -> int:
        """See `Layer.num_bytes`."""
        return self.weight.nbytes
