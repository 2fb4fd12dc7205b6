"""What image encoders are made of. `vision.py` and `joined_vision.py` build encoders from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exo_inference.planner.model.shapes import Shard, VisionShape, Weight

if TYPE_CHECKING:
    from exo_inference.planner.model.config_fields import ConfigFields

Built = tuple[list[Weight], VisionShape]

QWEN_MAX_PATCHES = 65536
"""Qwen's processors scale images to at most 16,384 merged tokens (12,845,056 pixels, 28x28 each)."""


def matrix(name: str, rows: int, columns: int, copies: int = 1, part: str = "vision") -> Weight:
    """Return `copies` matrices that tensor ranks split."""
    return Weight(f"vision_tower.{name}", part, rows, columns, copies)


def plain_vectors(size: int, copies: int = 1) -> Weight:
    """Return biases, norms and positions, which every rank has whole."""
    return Weight("vision_tower.vectors", "vision", size, 1, copies, Shard.REPLICATED)


def blocks(
    size: int,
    wide: int,
    count: int,
    *,
    biases: bool,
    norms: int,
    gated: bool = False,
) -> list[Weight]:
    """Return the weights of `count` equal encoder blocks."""
    mats = 3 if gated else 2
    vector = norms * size + (4 * size + (mats - 1) * wide + size if biases else 0)
    return [
        matrix("qkv", 3 * size, size, count),
        matrix("proj", size, size, count),
        matrix("mlp", wide, size, count * mats),
        plain_vectors(vector, count),
    ]


def usual_sizes(vision: ConfigFields) -> tuple[int, int, int, int, int]:
    """Return hidden size, width of the feed-forward, layers, edge of a patch, and patches of an image."""
    size, wide = vision.integer("hidden_size"), vision.integer("intermediate_size")
    count, patch = vision.integer("num_hidden_layers"), vision.integer("patch_size")
    return size, wide, count, patch, (vision.integer("image_size") // patch) ** 2
