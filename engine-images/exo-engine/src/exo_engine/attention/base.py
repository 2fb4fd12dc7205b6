"""What an attention backend must do.

The runner builds a `StepLayout` per step and calls `begin` once, then the model calls `attend` once
per layer. A backend owns nothing but scratch: the cache belongs to the runner.

Legend: T tokens in step, H heads, Hkv key/value heads, D head dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from exo_engine.attention.layout import StepLayout
from exo_engine.attention.states import States
from exo_engine.kernels.stack import StackLayer


@dataclass(frozen=True, slots=True)
class Rotation:
    """By which angles a step's queries and keys are turned; pairs are d and d + D / 2."""

    cosines: Tensor
    """(positions, D / 2) float32, of every position there may be."""
    sines: Tensor
    """Likewise."""
    positions: Tensor
    """(T,) int32."""


class AttentionBackend(ABC):
    """Causal attention of a step's tokens over the cache."""

    states: States
    """Of layers that are no attention, in the same cache; the runner sets and begins them."""
    can_be_captured: ClassVar[bool] = False
    """Whether steps of single tokens can be repeated on the device: `begin` and `attend` read nothing of a
    layout's tensors on the host."""
    is_batch_invariant: bool = False
    """Whether a token's result has the same bits whatever else is in its step."""
    needs_cleared_blocks: ClassVar[bool] = True
    """Whether it multiplies what it masks out, which must be finite then."""

    @abstractmethod
    def begin(self, layout: StepLayout) -> None:
        """Prepare what all layers of the step share; valid until the next call."""

    @abstractmethod
    def scratch_bytes(self) -> int:
        """Return the most memory that `attend` takes beside its result, whatever the contexts."""

    @abstractmethod
    def attend(
        self,
        layer: int,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Write keys and values into the cache and return what the queries see.

        Args:
            layer: index of the layer.
            queries: (T, H, D), rotary embedding applied.
            keys: (T, Hkv, D), likewise. Of a layer that reads another's they are not looked at.
            values: (T, Hkv, D).
            sinks: (H,): a score of each head that takes weight and gives no value.

        Returns:
            (T, H, D), of the queries' dtype; of latent attention as many numbers as values have.
        """

    def compile_ahead(self, max_num_seqs: int, max_context: int) -> None:
        """Launch what attends single tokens, once for each kind that serving may need and the start did not.

        Args:
            max_num_seqs: most sequences of a step.
            max_context: most tokens of a sequence.
        """
        del max_num_seqs, max_context

    def attend_merged(
        self,
        layer: int,
        merged: Tensor,
        rotation: Rotation,
        *,
        norms: tuple[Tensor, Tensor] | None = None,
        eps: float = 0.0,
    ) -> Tensor | None:
        """Norm of heads, rotation and `attend` in one, where a backend has that for this layer.

        Args:
            layer: index of the layer.
            merged: (T, (H + 2 Hkv) D): queries, keys and values after one another, as they were projected.
            rotation: applied to queries and keys.
            norms: weights (D,) of the norms of query and key heads, which come first; None: none.
            eps: of the norms.

        Returns:
            (T, H, D); None: the layer is to be computed in steps.
        """
        del layer, merged, rotation, norms, eps
        return None

    def run_layers(
        self, layers: Sequence[StackLayer], states: Tensor, rotation: Rotation
    ) -> Tensor | None:
        """All layers of a model in one call, where a backend has that.

        Args:
            layers: the same in every step.
            states: (T, E): what the first layer gets; changed, unless the result is None.
            rotation: of queries and keys.

        Returns:
            (T, E), which is to be added to `states`; None: the layers are to be computed one by one.
        """
        del layers, states, rotation
        return None
