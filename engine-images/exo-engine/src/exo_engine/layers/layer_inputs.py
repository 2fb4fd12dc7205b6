"""What layers of Gemma 3n and Gemma 4 have of their own: embeddings of each, and a number that scales it.

Legend: T tokens in step, E hidden size, L layers, P numbers of a layer's own inputs.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from exo_engine.layers.base import Context, Layer, Slot
from exo_engine.layers.embedding import Embedding
from exo_engine.layers.linear import Linear
from exo_engine.layers.rms_norm import RMSNorm
from exo_engine.models.spec import DecoderSpec, LayerInputSpec
from exo_engine.weight_formats.base import Stored


def _whole(context: Context) -> Context:
    """Small matrices that every rank has."""
    return replace(context, rank=0, num_ranks=1, add_up=None)


class LayerInputs:
    """All layers' inputs of a step: half from the tokens, half from their embeddings."""

    def __init__(self, context: Context, spec: DecoderSpec, inputs: LayerInputSpec) -> None:
        size = spec.num_layers * inputs.size
        name = "model.embed_tokens_per_layer"
        self._embedding = Embedding(context, name, inputs.vocab_size, size)
        parts = {"model.per_layer_model_projection": size}
        self._projection = Linear.column(_whole(context), parts, spec.hidden_size)
        name = "model.per_layer_projection_norm"
        self._norm = RMSNorm(context, name, inputs.size, spec.rms_norm_eps)
        self._size = inputs.size
        self._scale = spec.hidden_size**-0.5

    def __call__(self, token_ids: Tensor, hidden: Tensor) -> Tensor:
        """Return (T, L, P) for token ids (T,) and their scaled embeddings (T, E)."""
        scale = torch.tensor(self._size**0.5, dtype=hidden.dtype)
        looked_up = self._embedding.look_up(token_ids) * scale
        projected = (self._projection(hidden) * self._scale).view(len(hidden), -1, self._size)
        total: Tensor = self._norm(projected) + looked_up.view_as(projected)
        return total * math.sqrt(0.5)


class LayerInput:
    """How a layer takes its own inputs in: gated by the hidden states, and normalised."""

    def __init__(self, context: Context, name: str, spec: DecoderSpec, size: int) -> None:
        context, hidden = _whole(context), spec.hidden_size
        self._gate = Linear.column(context, {f"{name}.per_layer_input_gate": size}, hidden)
        self._project = Linear.column(context, {f"{name}.per_layer_projection": hidden}, size)
        norm = f"{name}.post_per_layer_input_norm"
        self._norm = RMSNorm(context, norm, hidden, spec.rms_norm_eps)

    def __call__(self, hidden: Tensor, inputs: Tensor) -> Tensor:
        """Return what is to be added to hidden states (T, E), for inputs (T, P)."""
        gates = F.gelu(self._gate(hidden), approximate="tanh")
        return self._norm(self._project(gates * inputs))


class Scale(Layer):
    """A number by which all that a layer gives is multiplied."""

    keeps_bits = True

    def __init__(self, context: Context, name: str) -> None:
        super().__init__(context)
        self.weight = context.empty(1)
        self.slots[name] = Slot(Stored((1,)), self.weight.copy_)

    def __call__(self, hidden: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
        """Return both, multiplied."""
        return hidden * self.weight, update * self.weight

    @property
    def num_bytes(self) -> int:
        """See `Layer.num_bytes`."""
        return self.weight.nbytes
