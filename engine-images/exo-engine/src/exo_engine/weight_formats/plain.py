"""Plain numbers: the checkpoint's, in the number format of the computation."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from exo_engine.weight_formats.base import Share, Stored, WeightFormat


class Plain(WeightFormat):
    """A matrix of float32, bfloat16 or float16."""

    def __init__(
        self, rows: int, columns: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.weight = torch.empty(rows, columns, dtype=dtype, device=device)

    @classmethod
    def stored(cls, rows: int, columns: int) -> Mapping[str, Stored]:
        """See `WeightFormat.stored`."""
        return {"weight": Stored((rows, columns))}

    def load(self, suffix: str, tensor: Tensor, share: Share) -> None:
        """See `WeightFormat.load`."""
        self.weight[share.target].copy_(tensor[share.rows, share.columns])

    def multiply(self, inputs: Tensor, bias: Tensor | None) -> Tensor:
        """See `WeightFormat.multiply`."""
        return F.linear(inputs, self.weight, bias)

    @property
    def num_bytes(self) -> int:
        """See `WeightFormat.num_bytes`."""
        return self.weight.nbytes
