"""What all layers with weights share: where they are made, and how they are filled.

Called by model files (to make layers) and by `models/weights.py` (to fill them).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from exo_engine.errors import ConfigurationError
from exo_engine.kernels.library import Kernels, kernels_for
from exo_engine.weight_formats.base import Stored, WeightFormat


class Ranks(Protocol):
    """Processes that share each layer of a model, as this one sees them."""

    rank: int
    size: int

    def add_up(self, part: Tensor) -> Tensor:
        """Return the sum of every rank's part, the same on each."""


@dataclass(frozen=True, slots=True)
class Context:
    """What the layers of one model are made with; each enters itself in `layers`."""

    weight_format: type[WeightFormat]
    """Of linear layers; embeddings, norms and biases are plain."""
    dtype: torch.dtype
    device: torch.device
    rank: int = 0
    num_ranks: int = 1
    """Processes that share each layer; this one is `rank`."""
    add_up: Callable[[Tensor], Tensor] | None = None
    """Returns the sum of what the ranks have; None: there is one."""
    is_fixed: bool = False
    """Whether a token's bits may not depend on the tokens beside it, where PyTorch's on this device do."""
    layers: list[Layer] = field(default_factory=list)

    def share(self, size: int) -> slice:
        """Return this rank's part of `size` rows, columns or heads.

        Raises:
            ConfigurationError: they cannot be shared evenly.
        """
        if size % self.num_ranks:
            raise ConfigurationError(f"{size} cannot be shared evenly by {self.num_ranks} ranks")
        each = size // self.num_ranks
        return slice(self.rank * each, (self.rank + 1) * each)

    @property
    def kernels(self) -> Kernels | None:
        """What computes on this device where PyTorch need not."""
        return kernels_for(self.dtype, self.device)

    def empty(self, *shape: int) -> Tensor:
        """Return a tensor of the model's number format with nothing in it."""
        return torch.empty(shape, dtype=self.dtype, device=self.device)


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for one tensor of the checkpoint."""

    stored: Stored
    load: Callable[[Tensor], object]
    """Take what is needed of the tensor, a view of a file."""


class Layer(ABC):
    """A layer with weights. `slots` has a place for each of its tensors, by name in a checkpoint."""

    asks_host = False
    """Whether the host waits for what the layer computes, in every step."""
    keeps_bits = False
    """Whether a token's bits do not depend on the tokens beside it, on a GPU."""

    def __init__(self, context: Context) -> None:
        self.slots: dict[str, Slot] = {}
        context.layers.append(self)

    def slots_for(self, names: Container[str]) -> Mapping[str, Slot]:
        """Return the slots to fill from a checkpoint that has tensors of these names."""
        del names
        return self.slots

    def finish(self) -> None:  # noqa: B027 - most layers have nothing left to do
        """Do what is left once every slot is filled."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Bytes of the layer's weights once it is finished; known from the start."""
