"""What cache and backend must know of a layer's attention. No torch.

Attention masks by a layer's reach, and the block manager gives back blocks that no later token reaches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # the API process has no numpy
    import numpy as np
    from numpy.typing import NDArray

    Position = TypeVar("Position", int, NDArray[np.int32], NDArray[np.int64])


@dataclass(frozen=True, slots=True)
class Reach:
    """Of one layer; at most one of these is set, and with none a token sees all before it."""

    window: int | None = None
    """A token sees this many tokens, itself included."""
    chunk: int | None = None
    """A token sees those before it in its chunk; chunks of this many tokens begin at 0."""

    is_state: bool = False
    """A token sees one state, which all tokens before it have made; a block holds that after its
    last token."""

    @property
    def sees_all(self) -> bool:
        """Whether nothing before a token is out of its reach."""
        return self.window is None and self.chunk is None and not self.is_state

    def first_seen(self, position: Position) -> Position:
        """Return the first position that the token at `position` sees; 0 or more."""
        if self.window is not None or self.is_state:
            behind = position - (self.window or 2) + 1
            return behind * (behind > 0)
        if self.chunk is not None:
            return position // self.chunk * self.chunk
        return position * 0


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """One layer, as far as attention goes."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    """Multiplies every product of a query and a key."""
    reach: Reach = Reach()
    soft_cap: float | None = None
    """Scores s become cap * tanh(s / cap), as in Gemma 2."""
    has_sinks: bool = False
    """Each head has a score that takes weight and gives no value, as in gpt-oss."""
    kv_layer: int | None = None
    """Index of the earlier layer whose keys and values it reads, as in Gemma 3n; None: its own."""
    num_latent: int | None = None
    """Latent attention, as in DeepSeek-V2: values are the first so many numbers of the keys, which
    alone are cached; None: values are cached beside the keys."""

    @property
    def value_dim(self) -> int:
        """Numbers of a value."""
        return self.num_latent or self.head_dim

    @property
    def num_planes(self) -> int:
        """How many tensors its cache has: keys and values, or one for both."""
        return 1 if self.num_latent else 2


@dataclass(frozen=True, slots=True)
class StateLayer:
    """A layer that keeps a state of fixed size per sequence, as Gated DeltaNet and Mamba-2 do."""

    num_bytes: int
    """Of one sequence's state."""
    reach: Reach = Reach(is_state=True)
    kv_layer: None = None
    num_planes: int = 1
    """At least; it takes as many as there are."""


CachedLayer = AttentionLayer | StateLayer


def attention_layers(layers: Sequence[CachedLayer]) -> Iterator[tuple[int, AttentionLayer]]:
    """Yield the layers that attend, with their places among all."""
    for index, layer in enumerate(layers):
        if isinstance(layer, AttentionLayer):
            yield index, layer
