"""A model that embeds or scores: token ids in, one vector per text out.

Legend: T tokens in step, S texts in step, E hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from exo_engine.attention.layer import AttentionLayer
from exo_engine.attention.whole import WholeAttention
from exo_engine.layers import Context, Layer, Linear
from exo_engine.models.decoder import Decoder
from exo_engine.models.pooling.encoder import Encoder
from exo_engine.models.pooling.spec import EncoderSpec, HeadSpec, PoolingSpec
from exo_engine.weight_formats import PLAIN, load_format


class ScoreHead:
    """From texts' vectors to their scores; in plain numbers, as it is small."""

    def __init__(self, context: Context, spec: HeadSpec, size: int) -> None:
        self._inner = None
        if spec.inner is not None:
            self._inner = Linear.column(context, {spec.inner: size}, size, has_bias=True)
        self._output = Linear.column(
            context, {spec.output: spec.num_labels}, size, has_bias=spec.has_bias
        )

    def __call__(self, vectors: Tensor) -> Tensor:
        """Return (S, N) for vectors (S, E) and N labels."""
        if self._inner is not None:
            vectors = torch.tanh(self._inner(vectors))
        return self._output(vectors)


class PoolingModel:
    """A body, its pooling and its head, with uninitialised weights; `weights` fills them."""

    def __init__(
        self,
        spec: PoolingSpec,
        *,
        dtype: torch.dtype,
        device: torch.device,
        weight_format: str = PLAIN,
    ) -> None:
        self.spec = spec
        self.device = device
        options = {"dtype": dtype, "device": device, "weight_format": weight_format}
        self._body = _make_body(spec, options)
        self.weighted_layers: list[Layer] = self._body.weighted_layers
        """Every layer with weights, in the order of the computation."""
        self._head = None
        if spec.head is not None:
            context = Context(load_format(PLAIN), dtype, device, layers=self.weighted_layers)
            self._head = ScoreHead(context, spec.head, spec.body.hidden_size)
        is_causal = not isinstance(spec.body, EncoderSpec)
        layers = [each for each in spec.body.attention_layers if isinstance(each, AttentionLayer)]
        self._attention = WholeAttention(layers, is_causal=is_causal)

    def set_num_positions(self, num_positions: int) -> None:
        """Prepare for texts of up to `num_positions` tokens."""
        if isinstance(self._body, Decoder):
            self._body.set_num_positions(num_positions)

    def have_layers_noted(self, note_layer: Callable[[], None]) -> None:
        """Call `note_layer` behind each layer."""
        self._body.note_layer = note_layer

    def position_bytes(self, num_positions: int) -> int:
        """Return what that takes meanwhile."""
        return self._body.position_bytes(num_positions) if isinstance(self._body, Decoder) else 0

    def forward(
        self, token_ids: Tensor, positions: Tensor, types: Tensor, lengths: Sequence[int]
    ) -> Tensor:
        """Compute texts.

        Args:
            token_ids: (T,) int32, text after text.
            positions: (T,) int32, of each token in its text.
            types: (T,) int32: 1 where a token is of the second text of a pair.
            lengths: S, of the texts.

        Returns:
            (S, E) float32, or of a model with N labels (S, N): before normalisation, sigmoid or softmax.
        """
        self._attention.begin_whole(lengths)
        if isinstance(self._body, Encoder):
            states = self._body.forward(token_ids, positions, types, self._attention)
        else:
            states = self._body.forward(token_ids, positions, self._attention)
        pooled = self._pool(states, lengths)
        return pooled.float() if self._head is None else self._head(pooled).float()

    def _pool(self, states: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return a vector (S, E) per text of its tokens' states (T, E)."""
        texts = torch.split(states, list(lengths))
        if self.spec.method == "mean":
            return torch.stack([each.float().mean(dim=0) for each in texts])
        row = 0 if self.spec.method == "cls" else -1
        return torch.stack([each[row] for each in texts])

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(layer.num_bytes for layer in self.weighted_layers)


def activate(spec: PoolingSpec, vectors: Tensor, num_dimensions: int | None = None) -> Tensor:
    """Cut vectors (S, N) and give them length 1; those of labels pass a softmax or a sigmoid."""
    if spec.head is not None:
        return vectors.softmax(dim=1) if spec.is_exclusive else vectors.sigmoid()
    return torch.nn.functional.normalize(vectors[:, :num_dimensions], dim=1)


def _make_body(spec: PoolingSpec, options: dict[str, object]) -> Encoder | Decoder:
    make = Encoder if isinstance(spec.body, EncoderSpec) else Decoder
    return make(spec.body, **options)  # type: ignore[arg-type]
