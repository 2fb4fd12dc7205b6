"""What an attention backend must do, and the description of a step it gets.

The runner builds a `StepLayout` per step and calls `begin` once, then the model calls `attend` once
per layer. A backend owns nothing but scratch: the cache belongs to the runner.

Legend: T tokens in step, S decoding sequences, H heads, Hkv key/value heads, D head dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one sequence inside the step's flat token list."""

    first: int
    """Index of the first token in the step."""
    num_tokens: int
    context_len: int
    """Tokens of the sequence up to and including the span's last one."""
    block_table: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepLayout:
    """Where the tokens of a step belong.

    Tokens [0, len(decodes)) are one token each of the decoding sequences, in order; the spans of
    `prefills` follow without gaps.
    """

    decodes: tuple[Span, ...]
    prefills: tuple[Span, ...]
    slots: Tensor
    """(T,) int64 on the device: where each token's keys and values go."""


class AttentionBackend(ABC):
    """Causal attention of a step's tokens over the cache."""

    @abstractmethod
    def begin(self, layout: StepLayout) -> None:
        """Prepare what all layers of the step share; valid until the next call."""

    @abstractmethod
    def scratch_bytes(self) -> int:
        """Return the most memory that `attend` takes beside its result, whatever the contexts."""

    @abstractmethod
    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Write keys and values into the cache and return what the queries see.

        Args:
            layer: index of the layer.
            queries: (T, H, D), rotary embedding applied.
            keys: (T, Hkv, D), likewise.
            values: (T, Hkv, D).

        Returns:
            (T, H, D), of the queries' dtype.
        """
