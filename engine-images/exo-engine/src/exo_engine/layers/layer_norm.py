"""Layer normalisation, with a bias, as encoders have it."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from exo_engine.layers.base import Context, Layer, Slot
from exo_engine.weight_formats.base import Stored


class LayerNorm(Layer):
    """Ba, Kiros and Hinton 2016 over the last dimension."""

    def __init__(self, context: Context, name: str, size: int, eps: float) -> None:
        super().__init__(context)
        self.weight, self.bias = context.empty(size), context.empty(size)
        self._eps = eps
        for suffix, tensor in (("weight", self.weight), ("bias", self.bias)):
            self.slots[f"{name}.{suffix}"] = Slot(Stored((size,)), tensor.copy_)

    def __call__(self, states: Tensor) -> Tensor:
        """Return `states` (..., size), normalised."""
        return F.layer_norm(states, self.weight.shape, self.weight, self.bias, self._eps)

    @property
    def num_bytes(self) -> int:
        """See `Layer.num_bytes`."""
        return self.weight.nbytes + self.bias.nbytes
