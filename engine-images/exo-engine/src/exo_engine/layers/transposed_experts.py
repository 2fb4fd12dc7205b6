"""Experts as gpt-oss stores them: inputs by outputs, gates and values in turns, with biases.

Legend: X experts, E hidden size, I inner size of an expert.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from exo_engine.layers.base import Context, Slot
from exo_engine.layers.linear import Linear
from exo_engine.layers.mlp import GatedMLP
from exo_engine.weight_formats.base import Stored


class ExpertBiases:
    """A row per expert to be added to what its matrices give, of this rank's outputs."""

    def __init__(
        self, context: Context, num_experts: int, hidden_size: int, inner_size: int
    ) -> None:
        self._inner = context.share(inner_size)
        self._is_first = context.rank == 0
        num_inner = self._inner.stop - self._inner.start
        self.gate_up = context.empty(num_experts, 2 * num_inner)
        self.down = context.empty(num_experts, hidden_size)
        self._stored = Stored((num_experts, 2 * inner_size)), Stored((num_experts, hidden_size))

    def slots(self, name: str) -> dict[str, Slot]:
        """Return the slots of both tensors."""
        return {
            f"{name}.gate_up_proj_bias": Slot(self._stored[0], self._load_gate_up),
            f"{name}.down_proj_bias": Slot(self._stored[1], self._load_down),
        }

    @property
    def num_bytes(self) -> int:
        """Bytes of both."""
        return self.gate_up.nbytes + self.down.nbytes

    def _load_gate_up(self, tensor: Tensor) -> None:
        parts = [tensor[:, start::2][:, self._inner] for start in (0, 1)]
        self.gate_up.copy_(torch.cat(parts, dim=1))

    def _load_down(self, tensor: Tensor) -> None:
        if self._is_first:  # results of ranks are added up
            self.down.copy_(tensor)
        else:
            self.down.zero_()


def transposed_slots(
    name: str, experts: Sequence[GatedMLP], hidden_size: int, inner_size: int
) -> dict[str, Slot]:
    """Return the slots of the tensors that hold one matrix of every expert."""
    shapes = {"gate_up": (hidden_size, 2 * inner_size), "down": (inner_size, hidden_size)}
    return {
        f"{name}.{kind}_proj": Slot(
            Stored((len(experts), *shape)),
            partial(_load, [getattr(each, kind) for each in experts]),
        )
        for kind, shape in shapes.items()
    }


def _load(layers: Sequence[Linear], tensor: Tensor) -> None:
    """Give each expert's layer its own of `tensor` (X, inputs, outputs), whose parts take turns."""
    for layer, own in zip(layers, tensor, strict=True):
        for place, (share, _) in enumerate(layer.shares.values()):
            part = own[:, place :: len(layer.shares)].T.contiguous()
            layer.matrix.load("weight", part, share)
