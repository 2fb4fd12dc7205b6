"""InternViT with the projectors of InternVL and NVLM. `vision.py` calls it."""

from __future__ import annotations

from exo_inference.planner.model.config_fields import ConfigFields, whole_number
from exo_inference.planner.model.shapes import VisionShape
from exo_inference.planner.model.vision_parts import Built, blocks, matrix, plain_vectors

_INTERNVL_TILES = 13
"""Twelve and the whole image (`max_dynamic_patch` of the published configs)."""


def internvl(vision: ConfigFields, text: int) -> Built:
    """InternViT with the projector of InternVL, over tiles."""
    size, wide = vision.integer("hidden_size"), vision.integer("intermediate_size")
    count = vision.integer("num_hidden_layers")
    patch, image = _edge(vision, "patch_size"), _edge(vision, "image_size")
    positions = (image // max(1, patch)) ** 2 + 1
    has_bias = vision.flag("attention_bias", default=vision.flag("qkv_bias"))
    has_norms = vision.flag("use_qk_norm", default=vision.flag("qk_normalization"))
    norms = 2 if vision.text("norm_type") == "rms_norm" else 4
    vectors = (norms + 4 + 3 * has_bias + 2 * has_norms) * size + wide
    weights = blocks(size, wide, count, biases=False, norms=0)
    weights += [
        plain_vectors(vectors, count),
        matrix("patch_embedding", size, 3 * patch * patch),
        plain_vectors(size + size + positions * size),
        matrix("linear_1", text, 4 * size, part="projector"),
        matrix("linear_2", text, text, part="projector"),
        plain_vectors(2 * 4 * size + 2 * text),
    ]
    return weights, VisionShape(size, wide, count, _INTERNVL_TILES * positions)


def nvlm(vision: ConfigFields, text: int) -> Built:
    """NVLM: InternViT with heads added so that ranks divide them, and a projector as wide as the text's feed-forward."""
    weights, shape = internvl(vision, text)
    size, inner = shape.hidden_size, vision.integer("text_intermediate_size")
    added = vision.integer("num_dummy_heads", 0) * (size // vision.integer("num_attention_heads"))
    weights = [each for each in weights if "linear_" not in each.path]
    weights += [
        matrix("dummy_heads", 4 * added, size, shape.num_layers),
        matrix("linear_1", inner, 4 * size, part="projector"),
        matrix("linear_2", text, inner, part="projector"),
    ]
    return weights, shape


def _edge(vision: ConfigFields, name: str) -> int:
    """Return the edge of a square that a config gives as one number or as two."""
    given = vision.get(name)
    return (
        whole_number(name, given[0]) if isinstance(given, list) and given else vision.integer(name)
    )
