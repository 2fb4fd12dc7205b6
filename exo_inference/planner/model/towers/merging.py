"""Encoders that take images as they are and join patches behind: GLM-V, EXAONE 4.5, dots.ocr, Ovis 2, DeepSeek-OCR.

`vision.py` calls it. Sizes as transformers 5.23.0 or vLLM 0.32.0 have them.
"""

from __future__ import annotations

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

_GLM_MAX_PATCHES = 9633792 // 14**2
"""The preprocessor's largest image: 9,633,792 pixels (preprocessor_config.json of GLM-4.1V-9B-Thinking)."""


def _downsampled(size: int, out: int, inner: int) -> list[Weight]:
    """Return GLM's merger: a convolution over two by two patches, a projection, a norm and a gated feed-forward."""
    return [
        matrix("downsample", out, 4 * size),
        matrix("merger.proj", out, out, part="projector"),
        matrix("merger.mlp", inner, out, 3, part="projector"),
        plain_vectors(out + 2 * out),
    ]


def glm(vision: ConfigFields, text: int) -> Built:
    """GLM-4.1V and 4.5V: gated blocks as wide as the text model, with norms around the position table."""
    size, count = vision.integer("hidden_size"), vision.integer("depth")
    out, patch = vision.integer("out_hidden_size", text), vision.integer("patch_size", 14)
    positions = (vision.integer("image_size", 336) // max(1, patch)) ** 2
    weights = blocks(size, out, count, biases=False, norms=2, gated=True)
    weights += [
        matrix("patch_embed", size, 3 * vision.integer("temporal_patch_size", 2) * patch * patch),
        plain_vectors(size + positions * size + 2 * size),
        *_downsampled(size, out, vision.integer("intermediate_size")),
    ]
    return weights, VisionShape(size, out, count, _GLM_MAX_PATCHES)


def glm_ocr(vision: ConfigFields, text: int) -> Built:
    """GLM-OCR: blocks with biases and norms of heads, without a position table."""
    size, count = vision.integer("hidden_size"), vision.integer("depth")
    out, patch = vision.integer("out_hidden_size", text), vision.integer("patch_size", 14)
    wide, head = (
        vision.integer("intermediate_size"),
        size // max(1, vision.integer("num_heads", 16)),
    )
    weights = blocks(size, wide, count, biases=True, norms=2, gated=True)
    weights += [
        plain_vectors(2 * head, count),
        matrix("patch_embed", size, 3 * vision.integer("temporal_patch_size", 2) * patch * patch),
        plain_vectors(size + size),
        *_downsampled(size, out, out * vision.integer("in_channels", 3)),
    ]
    return weights, VisionShape(size, wide, count, _GLM_MAX_PATCHES)


def exaone(vision: ConfigFields, text: int) -> Built:
    """EXAONE 4.5: Qwen2.5-VL's encoder with fewer heads for keys and values."""
    size, wide, count = (
        vision.integer("hidden_size"),
        vision.integer("intermediate_size"),
        vision.integer("depth"),
    )
    heads, patch = vision.integer("num_heads"), vision.integer("patch_size", 14)
    qkv = size + 2 * vision.integer("num_key_value_heads", heads) * (size // max(1, heads))
    out = vision.integer("out_hidden_size", text)
    joined = size * vision.integer("spatial_merge_size", 2) ** 2
    weights = [
        matrix("qkv", qkv, size, count),
        matrix("proj", size, size, count),
        matrix("mlp", wide, size, 3 * count),
        plain_vectors(2 * size + qkv + size + 2 * wide + size, count),
        matrix("patch_embed", size, 3 * vision.integer("temporal_patch_size", 2) * patch * patch),
        matrix("merger.0", joined, joined, part="projector"),
        matrix("merger.2", out, joined, part="projector"),
        plain_vectors(size + joined + out),
    ]
    return weights, VisionShape(size, wide, count, QWEN_MAX_PATCHES)


def dots(vision: ConfigFields, text: int) -> Built:
    """dots.ocr: gated blocks without biases, and a merger with them (vLLM 0.32.0, dots_ocr.py)."""
    size = vision.integer("embed_dim", vision.integer("hidden_size", 1536))
    wide = vision.integer("intermediate_size", 4224)
    count, patch = vision.integer("num_hidden_layers", 42), vision.integer("patch_size", 14)
    joined = size * vision.integer("spatial_merge_size", 2) ** 2
    weights = blocks(size, wide, count, biases=False, norms=2, gated=True)
    weights += [
        matrix("patch_embed", size, 3 * patch * patch),
        plain_vectors(size + size + size),
        matrix("merger.0", joined, joined, part="projector"),
        matrix("merger.2", text, joined, part="projector"),
        plain_vectors(2 * size + joined + text),
    ]
    return weights, VisionShape(size, wide, count, QWEN_MAX_PATCHES)


_RADIO_TILES = 13
"""Twelve and the whole image (`max_num_tiles` of the published models)."""


def radio(vision: ConfigFields, text: int) -> Built:
    """Nemotron Nano VL: C-RADIOv2-H and a projection of joined patches without biases (vLLM 0.32.0, nano_nemotron_vl.py)."""
    size, wide, count, patch = 1280, 5120, 32, 16
    positions, skipped = (2048 // patch) ** 2, 10
    joined, inner = 4 * size, vision.integer("projector_hidden_size", 20480)
    weights = blocks(size, wide, count, biases=True, norms=4)
    weights += [
        matrix("embedder", size, 3 * patch * patch),
        plain_vectors(positions * size + skipped * size + 6),
        matrix("mlp1.1", inner, joined, part="projector"),
        matrix("mlp1.3", text, inner, part="projector"),
        plain_vectors(joined),
    ]
    return weights, VisionShape(size, wide, count, _RADIO_TILES * 1024)


_OVIS_TILES = 10
"""Nine and the whole image (`max_partition` of the published models)."""


def ovis(vision: ConfigFields, text: int) -> Built:
    """Ovis 2: AIMv2, joined patches as chances over a vocabulary of images, and its table (vLLM 0.32.0, ovis.py)."""
    size, wide = vision.integer("hidden_size"), vision.integer("intermediate_size")
    count, patch = vision.integer("num_hidden_layers"), vision.integer("patch_size")
    patches = (vision.integer("image_size") // max(1, patch)) ** 2
    rows, reserved = vision.integer("vocab_size"), 5
    weights = blocks(size, wide, count, biases=False, norms=2, gated=True)
    weights += [
        matrix("patch_embedding", size, 3 * patch * patch),
        plain_vectors(size + patches * size + 2 * size),
        matrix("head", rows - reserved, size * vision.integer("hidden_stride", 2) ** 2),
        plain_vectors(2 * (rows - reserved)),
        matrix("visual_embeddings_table", rows, text, part="projector"),
    ]
    return weights, VisionShape(size, wide, count, _OVIS_TILES * patches)


def _sam(out: int) -> list[Weight]:
    """Return SAM ViT-B with two convolutions behind it, of which the last has `out` channels."""
    sam, net = 768, 256
    return [
        *blocks(sam, 4 * sam, 12, biases=True, norms=4),
        plain_vectors(8 * (2 * 14 - 1) * 64 * 2 + 4 * (2 * 64 - 1) * 64 * 2),  # relative positions
        matrix("sam.patch_embed", sam, 3 * 16 * 16),
        plain_vectors(sam + 64 * 64 * sam),
        matrix("sam.neck", net, sam + 9 * net),
        matrix("sam.net_2", 2 * net, 9 * net),
        matrix("sam.net_3", out, 9 * 2 * net),
        plain_vectors(4 * net),
    ]


def sam_and_qwen(text: int) -> Built:
    """DeepSeek-OCR 2: SAM ViT-B, Qwen2-0.5B's layers over it and learned queries, and one projection.

    The sizes are those of vLLM 0.32.0 (deepencoder2.py), which config.json only names.
    """
    size, wide, count = 896, 4864, 24
    weights = [
        *_sam(size),
        matrix("qwen2.qkv", size + 2 * 128, size, count),
        matrix("qwen2.o_proj", size, size, count),
        matrix("qwen2.mlp", wide, size, 3 * count),
        plain_vectors(size + 2 * 128 + 2 * size, count),
        plain_vectors(size + (144 + 256) * size),
        matrix("projector", text, size, part="projector"),
        plain_vectors(text + text),
    ]
    return weights, VisionShape(size, wide, 36, 7 * 1600)


def sam_and_clip(text: int) -> Built:
    """DeepSeek-OCR: SAM ViT-B with two convolutions, CLIP ViT-L/14 behind it, and one projection of both.

    The sizes are those of vLLM 0.32.0 (deepencoder.py), which config.json only names.
    """
    clip = 1024
    weights = [
        *_sam(clip),
        *blocks(clip, 4 * clip, 24, biases=True, norms=4),
        matrix("clip.patch_embedding", clip, 3 * 14 * 14),
        plain_vectors(clip + (16 * 16 + 1) * clip + 2 * clip),
        matrix("projector", text, 2 * clip, part="projector"),
        plain_vectors(text + text + text),
    ]
    return weights, VisionShape(clip, 4 * clip, 36, 10 * 1600)
