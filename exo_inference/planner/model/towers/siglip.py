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
    from exo_inference.planner.model.shapes import Weight


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


def _pooler(size: int, wide: int) -> list[Weight]:
    """Return SigLIP's head: a query that attends to all patches, and a feed-forward."""
    return [
        matrix("head.attention", 4 * size, size),
        matrix("head.mlp", wide, size, 2),
        plain_vectors(size + 4 * size + 2 * size + wide + size),
    ]


def joint(vision: ConfigFields, text: int) -> Built:
    """SigLIP beside its text model, with its head, the text's, a scale and a bias."""
    weights, shape = tower(vision)
    weights += [
        *_pooler(shape.hidden_size, shape.intermediate_size),
        matrix("text_model.head", text, text),
        plain_vectors(text + 2),
    ]
    return weights, shape


def shuffled(vision: ConfigFields, text: int) -> Built:
    """ModernVBERT: SigLIP with its head, and one projection of joined patches without biases."""
    weights, shape = tower(vision)
    joined = shape.hidden_size * vision.integer("pixel_shuffle_factor", 4) ** 2
    weights += [
        *_pooler(shape.hidden_size, shape.intermediate_size),
        matrix("modality_projection", text, joined, part="projector"),
    ]
    return weights, shape


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


def discrete(vision: ConfigFields, text: int) -> Built:
    """Ovis 2.5: joined patches as chances over a vocabulary of images, and its table (vLLM 0.32.0, ovis2_5.py)."""
    weights, shape = tower(vision)
    rows, reserved = vision.integer("visual_vocab_size", 65536), 4
    weights += [
        matrix("head", rows - reserved, 4 * shape.hidden_size),
        plain_vectors(2 * (rows - reserved)),
        matrix("visual_embeddings_table", rows, text, part="projector"),
    ]
    return weights, replace(shape, max_tokens=QWEN_MAX_PATCHES // 4)


def pooled(vision: ConfigFields, text: int) -> Built:
    """Molmo 2: 25 of SigLIP 2's 27 layers, attention over neighbouring patches of two of them, a gated projection."""
    weights, shape = tower(vision)
    size, inner = shape.hidden_size, vision.integer("adapter_intermediate_size")
    weights += [
        matrix("image_pooling_2d.qkv", 3 * size, 2 * size),
        matrix("image_pooling_2d.wo", size, size),
        plain_vectors(2 * size),  # four biases; SigLIP's last norm, which it has not, is two more
        matrix("image_projector.up", inner, size, 2, part="projector"),
        matrix("image_projector.down", text, inner, part="projector"),
    ]
    return weights, replace(shape, max_tokens=9 * shape.max_tokens)


def hunyuan(vision: ConfigFields, text: int) -> Built:
    """HunyuanOCR: positions of the largest image, two convolutions and a projection between norms."""
    size, wide = vision.integer("hidden_size"), vision.integer("intermediate_size")
    count, patch = vision.integer("num_hidden_layers"), max(1, vision.integer("patch_size"))
    positions = (vision.integer("max_image_size", 2048) // patch) ** 2 + 1
    weights = blocks(size, wide, count, biases=True, norms=4)
    weights += [
        matrix("patch_embedding", size, 3 * patch * patch),
        plain_vectors(size + positions * size),
        matrix("proj_conv", 2 * size, 4 * size, part="projector"),
        matrix("proj_out", 4 * size, 2 * size, part="projector"),
        matrix("mlp", text, 4 * size, part="projector"),
        plain_vectors(4 * size + 3 * text + 2 * size + 4 * size + text + size + text),
    ]
    return weights, VisionShape(size, wide, count, positions)


_MOONDREAM_CROPS = 13
"""Twelve and the whole image (`max_crops` of the published model)."""


def doubled(vision: ConfigFields, text: int) -> Built:
    """Moondream 3: the whole image beside its crops, and two projections through a wider layer."""
    weights, shape = tower(vision)
    inner = vision.integer("proj_inner_dim", 8192)
    weights += [
        matrix("proj_mlp.fc1", inner, 2 * shape.hidden_size, part="projector"),
        matrix("proj_mlp.fc2", text, inner, part="projector"),
        plain_vectors(inner + text),
    ]
    return weights, replace(shape, max_tokens=_MOONDREAM_CROPS * shape.max_tokens)


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
