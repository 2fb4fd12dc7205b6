"""CLIP-likes whose sizes a model's own code has: EVA-CLIP of GLM-4V, and CLIP of Molmo. `vision.py` calls it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exo_inference.planner.model.shapes import VisionShape
from exo_inference.planner.model.vision_parts import (
    Built,
    blocks,
    matrix,
    plain_vectors,
    usual_sizes,
)

if TYPE_CHECKING:
    from exo_inference.planner.model.config_fields import ConfigFields
    from exo_inference.planner.model.shapes import Weight


def joint(vision: ConfigFields, text: int) -> Built:
    """CLIP beside its text model, with a projection of each into one space."""
    size, wide, count, patch, patches = usual_sizes(vision)
    positions, joint_size = patches + 1, vision.integer("projection_dim", 512)
    weights = blocks(size, wide, count, biases=True, norms=4)
    weights += [
        matrix("patch_embedding", size, 3 * patch * patch),
        plain_vectors(size + positions * size + 4 * size),
        matrix("visual_projection", joint_size, size, part="projector"),
        matrix("text_projection", joint_size, text, part="projector"),
        plain_vectors(1),
    ]
    return weights, VisionShape(size, wide, count, positions)


def eva(vision: ConfigFields, text: int) -> Built:
    """GLM-4V: EVA-CLIP, a convolution over two by two patches, and a gated feed-forward (vLLM 0.32.0, glm4v.py)."""
    size, wide = vision.integer("hidden_size"), vision.integer("intermediate_size")
    count, patch = vision.integer("num_hidden_layers"), vision.integer("patch_size")
    positions, inner = vision.integer("num_positions"), vision.integer("ffn_hidden_size")
    weights = blocks(size, wide, count, biases=True, norms=4)
    weights += [
        matrix("patch_embedding", size, 3 * patch * patch),
        plain_vectors(size + size + positions * size),
        matrix("conv", text, 4 * size, part="projector"),
        matrix("linear_proj", text, text, part="projector"),
        matrix("mlp", inner, text, 3, part="projector"),
        plain_vectors(text + 2 * text + 2 * text),
    ]
    return weights, VisionShape(size, wide, count, positions)


_MOLMO_CROPS = 13
"""Twelve and the whole image (`max_crops` of the published models)."""


def molmo(text: int, inner: int) -> tuple[list[Weight], VisionShape, bool]:
    """Molmo: 23 layers of CLIP ViT-L/14 at 336 pixels, attention over two by two patches, and a gated projection.

    Sizes as vLLM 0.32.0 has them (molmo.py, VisionBackboneConfig); `inner` is the projection's width.
    """
    size, wide, count, positions = 1024, 4096, 23, 577
    weights = blocks(size, wide, count, biases=True, norms=4)
    weights += [
        matrix("patch_embedding", size, 3 * 14 * 14),
        plain_vectors(size + positions * size + 2 * size),
        matrix("image_pooling_2d.qkv", 3 * size, 2 * size),
        matrix("image_pooling_2d.wo", size, size),
        plain_vectors(4 * size + 2 * 2 * size),
        matrix("image_projector.up", inner, size, 2, part="projector"),
        matrix("image_projector.down", text, inner, part="projector"),
    ]
    return weights, VisionShape(size, wide, count, _MOLMO_CROPS * positions), True
