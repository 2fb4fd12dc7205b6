"""The models that are measured: names, shapes, and what a token costs at least. No torch.

A shape is the `config.json` of a model; the weights are random (`models.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PROMPT_TOKENS = 128
"""Of each sequence that is decoded."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What follows from a model's config.json."""

    config: dict[str, Any]

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        given = self.config.get("head_dim")
        return given or self.config["hidden_size"] // self.config["num_attention_heads"]

    @property
    def multiplied(self) -> int:
        """Weights that each decoded token is multiplied with: all matrices but a table that is only looked up."""
        hidden, layers = self.config["hidden_size"], self.config["num_hidden_layers"]
        heads, kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        attention = hidden * self.head_dim * (2 * heads + 2 * kv_heads)
        return (
            layers * (attention + 3 * hidden * self.config["intermediate_size"])
            + hidden * self.config["vocab_size"]
        )

    @property
    def looked_up(self) -> int:
        """Weights of an embedding table that is not the output's as well."""
        is_tied = self.config["tie_word_embeddings"]
        return 0 if is_tied else self.config["hidden_size"] * self.config["vocab_size"]

    @property
    def parameters(self) -> int:
        """Weights of all matrices."""
        return self.multiplied + self.looked_up

    def cache_bytes(self, num_tokens: float) -> float:
        """Return what keys and values of so many tokens take in 16 bits."""
        row = self.config["num_key_value_heads"] * self.head_dim
        return num_tokens * 2 * 2 * row * self.config["num_hidden_layers"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the machine gives at most, measured in the same run.

    Attributes:
        read_bytes: bytes per second that all threads read from memory.
        operations: multiplications and additions per second of a product of matrices, by number format.
    """

    read_bytes: float
    operations: dict[str, float]


def floor_of_step(
    shape: Shape, limits: Limits, *, weights_bytes: float, batch: int, tokens: float, numbers: str
) -> float:
    """Return the seconds that a step which decodes a batch takes at least.

    The weights are read once, or multiplied, whichever takes longer; then keys and values are read.

    Args:
        shape: the model.
        limits: of the machine.
        weights_bytes: all weights as they are held; a table that is only looked up is taken off.
        batch: sequences.
        tokens: of each of them, on average, in the cache.
        numbers: a name of `limits.operations`.
    """
    held = weights_bytes - weights_bytes * shape.looked_up / shape.parameters
    multiplying = 2 * shape.multiplied * batch / limits.operations[numbers]
    cache = shape.cache_bytes(batch * tokens) / limits.read_bytes
    return max(held / limits.read_bytes, multiplying) + cache


def floor_of_prompt(shape: Shape, limits: Limits, *, tokens: int, numbers: str) -> float:
    """Return the seconds that a prompt takes at least; the output is made for its last token only."""
    config = shape.config
    head = config["hidden_size"] * config["vocab_size"]
    products = 2 * (shape.multiplied - head) * tokens
    heads = config["num_attention_heads"] * shape.head_dim * config["num_hidden_layers"]
    attention = 2 * heads * tokens * tokens  # causal: half of two products
    return (products + attention) / limits.operations[numbers]
