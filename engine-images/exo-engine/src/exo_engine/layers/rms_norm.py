"""Root-mean-square normalisation."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from exo_engine.kernels.pointwise import add_and_normalise
from exo_engine.layers.base import Context, Layer, Slot
from exo_engine.weight_formats.base import Stored, is_for_triton


def normalise(states: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Return states (..., E) normalised, times weight (E,) if there is one."""
    if is_for_triton(states.device):
        from exo_engine.kernels.triton import pointwise

        return pointwise.normalise(states, weight, eps)
    return F.rms_norm(states, states.shape[-1:], weight, eps)


class RMSNorm(Layer):
    """Zhang and Sennrich 2019 over the last dimension, with a weight per element.

    Args:
        context: of the model.
        name: of the layer in the checkpoint.
        size: of the last dimension.
        eps: added to the mean of the squares.
        offset: added to the weight; checkpoints of Gemma hold by how much it is more than 1.
    """

    def __init__(
        self, context: Context, name: str, size: int, eps: float, *, offset: float = 0.0
    ) -> None:
        super().__init__(context)
        self._offset = offset
        self.weight = context.empty(size)
        self.eps = eps
        self._kernels = context.kernels
        self.keeps_bits = is_for_triton(context.device)
        self.slots[f"{name}.weight"] = Slot(Stored((size,)), self.weight.copy_)

    def __call__(self, states: Tensor) -> Tensor:
        """Return `states` (..., size), normalised."""
        return normalise(states, self.weight, self.eps)

    def add(self, states: Tensor, update: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return `states + update`, and that normalised; `states` may be overwritten.

        Args:
            states: (T, size).
            update: likewise; None: nothing is added.
        """
        if self._kernels is not None:
            return states, add_and_normalise(self._kernels, states, update, self.weight, self.eps)
        if update is None:
            return states, self(states)
        if is_for_triton(states.device):
            from exo_engine.kernels.triton import pointwise

            return pointwise.add_and_normalise(states, update, self.weight, self.eps)
        states = states + update
        return states, self(states)

    def finish(self) -> None:
        """See `Layer.finish`: add what a checkpoint leaves out of the weight."""
        if self._offset:
            self.weight += self._offset

    @property
    def num_bytes(self) -> int:
        """See `Layer.num_bytes`."""
        return self.weight.nbytes
