"""An encoder of BERT's shape: token ids in, states out, one flat batch of tokens per step.

Legend: T tokens in step, E hidden size.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from exo_engine import pulse
from exo_engine.attention.base import AttentionBackend
from exo_engine.layers import Context, Embedding, Layer, Linear
from exo_engine.layers.layer_norm import LayerNorm
from exo_engine.models.pooling.spec import EncoderActivation, EncoderSpec
from exo_engine.weight_formats import PLAIN, load_format


class EncoderLayer:
    """Attention and an MLP, each added to what came in and normalised then."""

    def __init__(self, context: Context, spec: EncoderSpec, index: int) -> None:
        name, size = f"{spec.prefix}encoder.layer.{index}", spec.hidden_size
        parts = {f"{name}.attention.self.{part}": size for part in ("query", "key", "value")}
        self._index = index
        self._shape = (3, spec.num_heads, size // spec.num_heads)
        self._activation = spec.activation
        self._merged = Linear.column(context, parts, size, has_bias=True)
        output = f"{name}.attention.output"
        self._output = Linear.row(context, f"{output}.dense", size, size, has_bias=True)
        self._attention_norm = LayerNorm(context, f"{output}.LayerNorm", size, spec.norm_eps)
        inner = {f"{name}.intermediate.dense": spec.intermediate_size}
        self._inner = Linear.column(context, inner, size, has_bias=True)
        self._outer = Linear.row(
            context, f"{name}.output.dense", spec.intermediate_size, size, has_bias=True
        )
        self._norm = LayerNorm(context, f"{name}.output.LayerNorm", size, spec.norm_eps)

    def __call__(self, hidden: Tensor, backend: AttentionBackend) -> Tensor:
        """Return (T, E) for hidden states (T, E)."""
        merged = self._merged(hidden).view(len(hidden), *self._shape)
        attended = backend.attend(self._index, *merged.unbind(1)).flatten(1)
        hidden = self._attention_norm(hidden + self._output(attended))
        return self._norm(hidden + self._outer(_activate(self._inner(hidden), self._activation)))


class Encoder:
    """An encoder with uninitialised weights; `weights` fills them."""

    def __init__(
        self,
        spec: EncoderSpec,
        *,
        dtype: torch.dtype,
        device: torch.device,
        weight_format: str = PLAIN,
    ) -> None:
        context = Context(load_format(weight_format), dtype, device)
        self.spec = spec
        self.weighted_layers: list[Layer] = context.layers
        """Every layer with weights, in the order of the computation."""
        name, size = f"{spec.prefix}embeddings", spec.hidden_size
        self._words = Embedding(context, f"{name}.word_embeddings", spec.vocab_size, size)
        self._positions = Embedding(
            context, f"{name}.position_embeddings", spec.num_positions, size
        )
        self._types = Embedding(context, f"{name}.token_type_embeddings", spec.num_types, size)
        self._norm = LayerNorm(context, f"{name}.LayerNorm", size, spec.norm_eps)
        self._layers = [EncoderLayer(context, spec, index) for index in range(spec.num_layers)]
        self.note_layer: Callable[[], None] = pulse.OWN.count_layer
        """Called behind each layer."""

    def forward(
        self, token_ids: Tensor, positions: Tensor, types: Tensor, attention: AttentionBackend
    ) -> Tensor:
        """Run a step's tokens through all layers.

        Args:
            token_ids: (T,) integers.
            positions: (T,) integers, of each token in its text.
            types: (T,) integers: 1 where a token is of the second text of a pair; a model that knows one kind of
                text is not told.
            attention: begun for this step.

        Returns:
            (T, E).
        """
        rows = positions + self.spec.first_position
        types = types.clamp(max=self.spec.num_types - 1)
        hidden = self._words.look_up(token_ids) + self._types.look_up(types)
        hidden = self._norm(hidden + self._positions.look_up(rows))
        for layer in self._layers:
            hidden = layer(hidden, attention)
            self.note_layer()
        return hidden


def _activate(states: Tensor, activation: EncoderActivation) -> Tensor:
    if activation == "relu":
        return F.relu(states)
    return F.gelu(states, approximate="tanh" if activation == "gelu_tanh" else "none")
