"""Image encoders that join neighbouring patches before the text model sees them. `vision.py` calls them.

Step-3, Muse Glimmer, PaddleOCR-VL, ERNIE 4.5 VL, DeepSeek-VL2 and Dots3; sizes as transformers 5.23.0 or vLLM 0.32.0 have them.
"""

from __future__ import annotations

from exo_inference.planner.model.config_fields import ConfigFields
from exo_inference.planner.model.shapes import VisionShape
from exo_inference.planner.model.vision_parts import (
    QWEN_MAX_PATCHES,
    Built,
    blocks,
    matrix,
    plain_vectors,
    usual_sizes,
)


def muse_glimmer(vision: ConfigFields, text: int) -> Built:
    """Muse Glimmer: two frames to a patch, four patches joined, and an adapter without biases."""
    size, wide = vision.integer("hidden_size"), vision.integer("intermediate_size")
    count, edge = vision.integer("num_hidden_layers"), vision.integer("patch_size")
    grid = vision.integer("pos_emb_height", 32) * vision.integer("pos_emb_width", 32)
    joined = size * vision.integer("merge_size", 2) ** 2
    inner = vision.integer("projector_hidden_size", 4096)
    weights = blocks(size, wide, count, biases=True, norms=4)
    weights += [
        matrix("patch_embedding", size, 3 * vision.integer("patch_temporal", 2) * edge * edge),
        plain_vectors(grid * size + 4 * size),
        matrix("adapter.fc1", inner, joined, part="projector"),
        matrix("adapter.fc2", inner, inner, part="projector"),
        matrix("vision_projection", text, inner, part="projector"),
    ]
    return weights, VisionShape(size, wide, count, 4 * grid)


def paddleocr(vision: ConfigFields, text: int) -> Built:
    """PaddleOCR-VL: SigLIP, and four patches joined before two layers with biases."""
    size, wide, count, patch, patches = usual_sizes(vision)
    joined = size * vision.integer("spatial_merge_size", 2) ** 2
    weights = blocks(size, wide, count, biases=True, norms=4)
    weights += [
        matrix("patch_embedding", size, 3 * patch * patch),
        plain_vectors(size + patches * size + 2 * size + 2 * size + joined + text),
        matrix("linear_1", joined, joined, part="projector"),
        matrix("linear_2", text, joined, part="projector"),
    ]
    return weights, VisionShape(size, wide, count, QWEN_MAX_PATCHES // 4)


def ernie(vision: ConfigFields, text: int) -> Built:
    """ERNIE 4.5 VL: patches joined in space, then two frames in time, before the text's size."""
    size, wide = vision.integer("hidden_size"), vision.integer("intermediate_size")
    count, patch = vision.integer("depth"), vision.integer("patch_size", 14)
    joined = size * vision.integer("spatial_merge_size", 2) ** 2
    frames = vision.integer("temporal_merge_size", 2)
    weights = blocks(size, wide, count, biases=True, norms=4)
    weights += [
        matrix("patch_embed", size, 3 * patch * patch),
        matrix("spatial_linear", joined, joined, 2, part="projector"),
        matrix("temporal_linear.fc1", joined, joined * frames, part="projector"),
        matrix("temporal_linear.fc2", joined, joined, part="projector"),
        matrix("mlp", text, joined, part="projector"),
        plain_vectors(2 * size + 8 * joined + 2 * text),
    ]
    return weights, VisionShape(size, wide, count, QWEN_MAX_PATCHES)


_DEEPSEEK_VL2_TILES = 10
"""Nine and the whole image (`candidate_resolutions` of the published models)."""


def deepseek_vl2(vision: ConfigFields, text: int) -> Built:
    """DeepSeek-VL2: timm's SigLIP, whose config says `width` and `layers`, over tiles."""
    size, count = vision.integer("width", 1152), vision.integer("layers", 27)
    ratio = vision.get("mlp_ratio")
    wide = int(size * ratio) if isinstance(ratio, int | float) else 4 * size
    patch = max(1, vision.integer("patch_size", 14))
    patches = (vision.integer("image_size", 384) // patch) ** 2
    weights = blocks(size, wide, count, biases=True, norms=4)
    weights += [
        matrix("patch_embedding", size, 3 * patch * patch),
        plain_vectors(size + patches * size + 2 * size),
        matrix("projector.0", text, 4 * size, part="projector"),
        matrix("projector.2", text, text, part="projector"),
        plain_vectors(4 * text),
    ]
    return weights, VisionShape(size, wide, count, _DEEPSEEK_VL2_TILES * patches)


def step3(vision: ConfigFields, text: int) -> Built:
    """Step-3: a transformer, two convolutions that join patches, and a projection (vLLM 0.32.0, step3_vl.py)."""
    size, wide, count, patch, patches = usual_sizes(vision)
    out = vision.integer("output_hidden_size", 4096)
    weights = blocks(size, wide, count, biases=True, norms=4)
    weights += [
        matrix("patch_embedding", size, 3 * patch * patch),
        plain_vectors((patches + 2) * size + size + 2 * out + out),
        matrix("downsampler1", out, 4 * size),
        matrix("downsampler2", 2 * out, 9 * out),
        matrix("projector", text, 2 * out, part="projector"),
    ]
    return weights, VisionShape(size, wide, count, patches + 1)


def dots3(vision: ConfigFields, text: int) -> Built:
    """Dots3: gated, with norms of heads; later layers have as many experts as `pyramid_num_routed` says."""
    size, wide = vision.integer("hidden_size"), vision.integer("intermediate_size")
    count, patch = vision.integer("num_hidden_layers"), vision.integer("patch_size")
    experts = [each for each in vision.sequence("pyramid_num_routed") or [] if each > 0]
    head = size // max(1, vision.integer("num_attention_heads"))
    joined = size * vision.integer("spatial_merge_size", 2) ** 2
    weights = [
        matrix("qkv", 3 * size, size, count),
        matrix("proj", size, size, count),
        matrix("mlp", wide, size, 3 * max(0, count - len(experts))),
        matrix("experts", vision.integer("moe_intermediate_size"), size, 3 * sum(experts)),
        plain_vectors(2 * size + 2 * head, count),
        plain_vectors(size * sum(experts)),
        matrix("patch_embed", size, 3 * patch * patch),
        plain_vectors(2 * size + size + 2 * size + joined + text),
        matrix("merger.0", joined, joined, part="projector"),
        matrix("merger.2", text, joined, part="projector"),
    ]
    return weights, VisionShape(size, wide, count, QWEN_MAX_PATCHES)
