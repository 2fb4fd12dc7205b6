"""The gated MLP: two products whose results gate each other, and one back.

Legend: T tokens in step, E hidden size, I inner size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from exo_engine.kernels.library import Kernels
from exo_engine.kernels.pointwise import silu_and_multiply
from exo_engine.layers.base import Context
from exo_engine.layers.linear import Linear
from exo_engine.models.spec import Activation, ClampSpec
from exo_engine.weight_formats.base import is_for_triton


class GatedMLP:
    """`down(act(gate(x)) * up(x))`, where gate and up are one matrix.

    Args:
        context: what the model is made with.
        name: that the names of its three matrices begin with.
        hidden_size: E.
        inner_size: I, of the whole model.
        has_bias: whether each matrix has one.
        activation: of the gates.
    """

    def __init__(
        self,
        context: Context,
        name: str,
        hidden_size: int,
        inner_size: int,
        *,
        has_bias: bool = False,
        activation: Activation = "silu",
    ) -> None:
        self._kernels = context.kernels
        self.activation = activation
        parts = {f"{name}.gate_proj": inner_size, f"{name}.up_proj": inner_size}
        self.gate_up = Linear.column(context, parts, hidden_size, has_bias=has_bias)
        self.down = Linear.row(
            context, f"{name}.down_proj", inner_size, hidden_size, has_bias=has_bias
        )

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return (T, E) for hidden states (T, E)."""
        gated = self.gate_up.gated(hidden, self.activation)
        if gated is None:
            gated = gate(self.gate_up(hidden), self._kernels, self.activation)
        return self.down(gated)


def gate(
    merged: Tensor,
    kernels: Kernels | None,
    activation: Activation = "silu",
    clamp: ClampSpec | None = None,
) -> Tensor:
    """Return the first half of `merged` (T, 2 I), activated, times the second: (T, I)."""
    if clamp is not None:
        gates, values = merged.chunk(2, dim=-1)
        gates, values = gates.clamp(max=clamp.limit), values.clamp(-clamp.limit, clamp.limit)
        return (values + 1) * gates * torch.sigmoid(clamp.alpha * gates)
    if kernels is not None and activation == "silu":
        return silu_and_multiply(kernels, merged)
    if is_for_triton(merged.device):
        from exo_engine.kernels.triton import pointwise

        return pointwise.gate(merged, is_silu=activation == "silu")
    gates, values = merged.chunk(2, dim=-1)
    return (F.silu(gates) if activation == "silu" else F.gelu(gates, approximate="tanh")) * values
