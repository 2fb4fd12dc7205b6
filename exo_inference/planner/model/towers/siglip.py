"""SigLIP before a text model, with each family's projector. `vision.py` calls it; sizes as transformers 5.23.0 has them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from exo_inference.planner.model.shapes import VisionShape
from exo_inference.planner.model.vision_parts import (
    QWEN_MAX_PATCHES,
    Built,
    blocks,
    matrix,
    plain_vectors,
)

if TYPE_CHECKING:
    from exo_inference.planner.model.config_fields import ConfigFields


def tower(vision: ConfigFields, *, count: int | None = None) -> Built:
    """Return SigLIP without its head; `count` of its layers, where a family leaves out the last."""
    size, wide = vision.integer("hidden_size"), vision.integer("intermediate_size")
    count = vision.integer("num_hidden_layers") if count is None else count
    patch = max(1, vision.integer("patch_size"))
    patches = vision.integer("num_patches", 0) or (vision.integer("image_size") // patch) ** 2
    weights = blocks(size, wide, count, biases=True, norms=4)
    weights += [
        matrix("patch_embedding", size, 3 * patch * patch),
        plain_vectors(size + patches * size + 2 * size),
    ]
    return weights, VisionShape(size, wide, count, patches)


def one_layer(vision: ConfigFields, text: int) -> Built:
    """PaliGemma: one projection."""
    weights, shape = tower(vision)
    weights += [
        matrix("projector", text, shape.hidden_size, part="projector"),
        plain_vectors(text),
    ]
    return weights, shape


_ANYRES_TILES = 37
"""The image and a grid of up to six by six tiles (`image_grid_pinpoints` of the published models)."""


def two_layers(vision: ConfigFields, text: int) -> Built:
    """LLaVA-OneVision: two projections and a learned end of line, over tiles."""
    weights, shape = tower(vision)
    weights += [
        matrix("linear_1", text, shape.hidden_size, part="projector"),
        matrix("linear_2", text, text, part="projector"),
        plain_vectors(2 * text + text),
    ]
    return weights, replace(shape, max_tokens=_ANYRES_TILES * shape.max_tokens)


def normed_two_layers(vision: ConfigFields, text: int) -> Built:
    """R-4B and Bee: LLaVA-OneVision's, behind a norm."""
    weights, shape = two_layers(vision, text)
    return [*weights, plain_vectors(2 * shape.hidden_size)], shape


_PACKED_POSITIONS = 32768
"""Rows of Keye's table for images of other shapes (vLLM 0.32.0, keye.py, `packing_position_embedding`)."""


def keye(vision: ConfigFields, text: int) -> Built:
    """Keye-VL: a norm, and two projections of joined patches."""
    weights, shape = tower(vision)
    joined = 4 * shape.hidden_size
    weights += [
        plain_vectors(_PACKED_POSITIONS * shape.hidden_size),
        matrix("linear_1", joined, joined, part="projector"),
        matrix("linear_2", text, joined, part="projector"),
        plain_vectors(2 * shape.hidden_size + joined + text),
    ]
    return weights, replace(shape, max_tokens=QWEN_MAX_PATCHES)


def isaac(vision: ConfigFields, text: int) -> Built:
    """Isaac: two wide projections of joined patches without biases (vLLM 0.32.0, isaac.py)."""
    weights, shape = tower(vision)
    joined = shape.hidden_size * vision.integer("pixel_shuffle_scale_factor", 2) ** 2
    weights += [
        matrix("linear_1", 4 * joined, joined, part="projector"),
        matrix("linear_2", text, 4 * joined, part="projector"),
    ]
    return weights, replace(shape, max_tokens=_ISAAC_PATCHES)


_ISAAC_PATCHES = 6144
"""`vision_max_num_patches` of the published model."""


def gated(vision: ConfigFields, text: int) -> Built:
    """Aya Vision: joined patches, a norm and a gated projection, over tiles and the whole image."""
    weights, shape = ungated_norm(vision, text)
    joined = shape.hidden_size * vision.integer("downsample_factor", 2) ** 2
    return [*weights, plain_vectors(2 * joined)], shape


def ungated_norm(vision: ConfigFields, text: int) -> Built:
    """Command A Vision: as Aya Vision, without the norm."""
    weights, shape = tower(vision)
    joined = shape.hidden_size * vision.integer("downsample_factor", 2) ** 2
    wide = vision.integer("alignment_intermediate_size", 36864)
    weights += [
        matrix("linear_1", wide, joined, part="projector"),
        matrix("linear_2", text, wide // 2, part="projector"),
        plain_vectors(wide + text),
    ]
    tiles = 1 + vision.integer("max_splits_per_img", 12)
    return weights, replace(shape, max_tokens=tiles * shape.max_tokens)


def unshuffled(vision: ConfigFields, text: int) -> Built:
    """LFM2-VL: joined patches, a norm and two projections, over tiles of 512 pixels."""
    weights, shape = tower(vision)
    joined = shape.hidden_size * vision.integer("downsample_factor", 2) ** 2
    inner = vision.integer("projector_hidden_size", 2560)
    has_norm = vision.flag("projector_use_layernorm", default=True)
    weights += [
        matrix("linear_1", inner, joined, part="projector"),
        matrix("linear_2", text, inner, part="projector"),
        plain_vectors(inner + text + (2 * joined if has_norm else 0)),
    ]
    tokens = vision.integer("max_tiles", 10) * vision.integer("max_num_patches", 1024)
    return weights, replace(shape, max_tokens=tokens)


_SLICES = 10
"""Nine of 448 pixels and the whole image."""


def merged(vision: ConfigFields, text: int) -> Built:
    """MiniCPM-V 4.6: patches joined once within the encoder, behind attention of their own, and once behind it."""
    weights, shape = tower(vision)
    size, wide = shape.hidden_size, 4 * shape.intermediate_size
    joined = 4 * size
    weights += [
        matrix("vit_merger.attention", 4 * size, size),
        matrix("vit_merger.linear_1", wide, joined),
        matrix("vit_merger.linear_2", size, wide),
        plain_vectors(4 * size + 2 * size + 2 * joined + wide + size),
        matrix("merger.linear_1", joined, joined, part="projector"),
        matrix("merger.linear_2", text, joined, part="projector"),
        plain_vectors(2 * joined + joined + text),
    ]
    return weights, replace(shape, max_tokens=_SLICES * 1024)


def resampled(vision: ConfigFields, text: int) -> Built:
    """MiniCPM-V 2.5, 2.6 and MiniCPM-o 2.6: learned queries attend to patches, over slices (vLLM 0.32.0, minicpmv.py).

    The last layer of the encoder is left out where `drop_vision_last_layer` says so.
    """
    dropped = int(vision.flag("drop_vision_last_layer", default=True))
    weights, shape = tower(vision, count=vision.integer("num_hidden_layers") - dropped)
    weights += [
        matrix("resampler.kv_proj", text, shape.hidden_size, part="projector"),
        matrix("resampler.attn", 4 * text, text, part="projector"),
        matrix("resampler.proj", text, text, part="projector"),
        plain_vectors(vision.integer("query_num", 64) * text + 4 * text + 6 * text),
    ]
    return weights, replace(shape, max_tokens=_SLICES * 1024)
