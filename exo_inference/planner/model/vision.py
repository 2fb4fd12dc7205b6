"""Image encoders: their weights, and the size of the largest image that is encoded while profiling.

`architecture.py` calls `build_vision`. Each encoder has its own builder; one that is not known is
sized as an ordinary vision transformer, which the caller marks as approximate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from exo_inference.planner.model.config_fields import ConfigFields, whole_number
from exo_inference.planner.model.shapes import Shard, VisionShape, Weight

Built = tuple[list[Weight], VisionShape]


def build_vision(fields: ConfigFields) -> tuple[list[Weight], VisionShape, bool] | None:
    """Return weights, shape and whether the encoder is a known one; None for a text model.

    Raises:
        FieldProblem: a size is missing.
    """
    fixed = _FIXED.get(fields.model_type)
    if fixed is not None and (fixed.always or fields.vision is None):
        return fixed.build(fields.integer("hidden_size"))
    if fields.vision is None:
        return None
    inner = {
        "scale_factor": fields.outer.get("scale_factor"),
        "merges_patches": fields.model_type not in _PLAIN_PROJECTORS,
        **fields.vision,
    }
    vision = ConfigFields(inner)
    kind = fields.model_type
    hidden_text = fields.integer("hidden_size")
    for names, build in _BUILDERS:
        if kind in names or vision.model_type in names:
            weights, shape = build(vision, hidden_text)
            return weights + _gemma4_audio(fields, hidden_text), shape, True
    weights, shape = _plain(vision, hidden_text)
    return weights, shape, False


def _matrix(name: str, rows: int, columns: int, copies: int = 1, part: str = "vision") -> Weight:
    return Weight(f"vision_tower.{name}", part, rows, columns, copies)


def _vectors(size: int, copies: int = 1) -> Weight:
    return Weight("vision_tower.vectors", "vision", size, 1, copies, Shard.REPLICATED)


def _blocks(
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
        _matrix("qkv", 3 * size, size, count),
        _matrix("proj", size, size, count),
        _matrix("mlp", wide, size, count * mats),
        _vectors(vector, count),
    ]


def _usual_sizes(vision: ConfigFields) -> tuple[int, int, int, int, int]:
    """Return hidden size, width of the feed-forward, layers, edge of a patch, and patches of an image."""
    size, wide = vision.integer("hidden_size"), vision.integer("intermediate_size")
    count, patch = vision.integer("num_hidden_layers"), vision.integer("patch_size")
    return size, wide, count, patch, (vision.integer("image_size") // patch) ** 2


def _siglip(vision: ConfigFields, text: int) -> Built:
    """SigLIP with Gemma 3's projector."""
    size, wide, count, patch, patches = _usual_sizes(vision)
    weights = _blocks(size, wide, count, biases=True, norms=4)
    weights += [
        _matrix("patch_embedding", size, 3 * patch * patch),
        _vectors(size + patches * size + 2 * size),
        _matrix("projector", text, size, part="projector"),
        _vectors(size),
    ]
    return weights, VisionShape(size, wide, count, patches)


def _clip(vision: ConfigFields, text: int) -> Built:
    """CLIP with the two-layer projector of LLaVA 1.5."""
    size, wide, count, patch, patches = _usual_sizes(vision)
    positions = patches + 1  # a class token
    weights = _blocks(size, wide, count, biases=True, norms=4)
    weights += [
        _matrix("patch_embedding", size, 3 * patch * patch),
        _vectors(size + positions * size + 4 * size),
        _matrix("linear_1", text, size, part="projector"),
        _matrix("linear_2", text, text, part="projector"),
        _vectors(2 * text),
    ]
    return weights, VisionShape(size, wide, count, positions)


_LLAVA_NEXT_TILES = 5
"""The image and a grid of up to four tiles (`image_grid_pinpoints` of the published models)."""


def _llava_next(vision: ConfigFields, text: int) -> Built:
    """LLaVA-NeXT: LLaVA 1.5's encoder over several tiles, and a learned end of line."""
    weights, shape = _clip(vision, text)
    weights.append(_vectors(text))
    return weights, replace(shape, max_tokens=_LLAVA_NEXT_TILES * shape.max_tokens)


_IDEFICS3_TILES = 17
"""The image and a grid of up to four by four tiles."""


def _idefics3(vision: ConfigFields, text: int) -> Built:
    """SigLIP with one projection of neighbouring patches (Idefics 3, SmolVLM)."""
    size, wide, count, patch, patches = _usual_sizes(vision)
    joined = vision.integer("scale_factor") ** 2 * size
    weights = _blocks(size, wide, count, biases=True, norms=4)
    weights += [
        _matrix("patch_embedding", size, 3 * patch * patch),
        _vectors(size + patches * size + 2 * size),
        _matrix("projector", text, joined, part="projector"),
    ]
    return weights, VisionShape(size, wide, count, _IDEFICS3_TILES * patches)


def _pixtral(vision: ConfigFields, text: int) -> Built:
    """Pixtral: with LLaVA's projector, or the patch merger of Mistral Small 3.1 and Ministral 3."""
    size, wide, count, patch, patches = _usual_sizes(vision)
    merges = vision.flag("merges_patches", default=True)
    weights = _blocks(size, wide, count, biases=False, norms=2, gated=True)
    weights += [
        _matrix("patch_conv", size, 3 * patch * patch),
        _vectors(2 * size if merges else size + 2 * text),
        _matrix("linear_1", text, size, part="projector"),
        _matrix("linear_2", text, text, part="projector"),
    ]
    if merges:
        weights.append(_matrix("patch_merger", size, 4 * size, part="projector"))
    return weights, VisionShape(size, wide, count, patches)


_INTERNVL_TILES = 13
"""Twelve and the whole image (`max_dynamic_patch` of the published configs)."""


def _internvl(vision: ConfigFields, text: int) -> Built:
    """InternViT with the projector of InternVL, over tiles."""
    size, wide = vision.integer("hidden_size"), vision.integer("intermediate_size")
    count = vision.integer("num_hidden_layers")
    patch, image = _edge(vision, "patch_size"), _edge(vision, "image_size")
    positions = (image // max(1, patch)) ** 2 + 1
    has_bias = vision.flag("attention_bias", default=vision.flag("qkv_bias"))
    has_norms = vision.flag("use_qk_norm", default=vision.flag("qk_normalization"))
    norms = 2 if vision.text("norm_type") == "rms_norm" else 4
    vectors = (norms + 4 + 3 * has_bias + 2 * has_norms) * size + wide
    weights = _blocks(size, wide, count, biases=False, norms=0)
    weights += [
        _vectors(vectors, count),
        _matrix("patch_embedding", size, 3 * patch * patch),
        _vectors(size + size + positions * size),
        _matrix("linear_1", text, 4 * size, part="projector"),
        _matrix("linear_2", text, text, part="projector"),
        _vectors(2 * 4 * size + 2 * text),
    ]
    return weights, VisionShape(size, wide, count, _INTERNVL_TILES * positions)


def _edge(vision: ConfigFields, name: str) -> int:
    """Return the edge of a square that a config gives as one number or as two."""
    given = vision.get(name)
    return (
        whole_number(name, given[0]) if isinstance(given, list) and given else vision.integer(name)
    )


_QWEN_MAX_PATCHES = 65536
"""Qwen's processors scale images to at most 16,384 merged tokens (12,845,056 pixels, 28x28 each)."""


def _qwen2_vl(vision: ConfigFields, text: int) -> Built:
    is_windowed = vision.get("window_size") is not None
    size = vision.integer("embed_dim", vision.integer("hidden_size", 1280))
    count, patch = vision.integer("depth", 32), vision.integer("patch_size", 14)
    wide = vision.integer("intermediate_size", size * vision.integer("mlp_ratio", 4))
    merged = size * vision.integer("spatial_merge_size", 2) ** 2
    weights = _blocks(
        size, wide, count, biases=True, norms=2 if is_windowed else 4, gated=is_windowed
    )
    weights += [
        _matrix("patch_embed", size, 3 * vision.integer("temporal_patch_size", 2) * patch * patch),
        _vectors(size * (1 if is_windowed else 2) + merged + text),
        _matrix("merger.0", merged, merged),
        _matrix("merger.2", text, merged),
    ]
    return weights, VisionShape(size, wide, count, _QWEN_MAX_PATCHES)


def _qwen3_vl(vision: ConfigFields, text: int) -> Built:
    size, wide = vision.integer("hidden_size"), vision.integer("intermediate_size")
    count, patch = vision.integer("depth"), vision.integer("patch_size", 16)
    out = vision.integer("out_hidden_size", text)
    merged = size * vision.integer("spatial_merge_size", 2) ** 2
    deep = len(vision.sequence("deepstack_visual_indexes") or [])
    positions = vision.integer("num_position_embeddings", 2304)
    weights = _blocks(size, wide, count, biases=True, norms=4)
    weights += [
        _matrix("patch_embed", size, 3 * vision.integer("temporal_patch_size", 2) * patch * patch),
        _matrix("merger.fc1", merged, merged, 1 + deep),
        _matrix("merger.fc2", out, merged, 1 + deep),
        _vectors(size + positions * size + 2 * size + (merged + out)),
        _vectors(2 * merged + merged + out, deep),
    ]
    return weights, VisionShape(size, wide, count, _QWEN_MAX_PATCHES)


def _llama4(vision: ConfigFields, text: int) -> Built:
    size, wide, count, patch, patches = _usual_sizes(vision)
    out = vision.integer("projector_output_dim", 4096)
    projector_in = vision.integer("projector_input_dim", 4096)
    positions = patches + 1
    weights = _blocks(size, wide, count, biases=True, norms=4)
    weights += [
        _matrix("patch_embedding", size, 3 * patch * patch),
        _vectors(size + positions * size + 4 * size),
        _matrix("adapter.fc1", projector_in, size * 4),
        _matrix("adapter.fc2", out, projector_in),
        _matrix("projector", text, out, part="projector"),
    ]
    return weights, VisionShape(size, wide, count, positions * 17)  # 16 tiles and the whole


def _moonvit(vision: ConfigFields, text: int) -> Built:
    """MoonViT of Kimi K2.5 and later."""
    size, wide = vision.integer("vt_hidden_size"), vision.integer("vt_intermediate_size")
    count, patch = vision.integer("vt_num_hidden_layers"), vision.integer("patch_size")
    grid = vision.integer("init_pos_emb_height", 64) * vision.integer("init_pos_emb_width", 64)
    inner = vision.integer("qkv_hidden_size", size)
    weights = _blocks(size, wide, count, biases=True, norms=4)
    weights += [_matrix("qkv_extra", 4 * (inner - size), size, count)] if inner > size else []
    weights += [
        _matrix("patch_embed", size, 3 * patch * patch),
        _vectors(size + grid * size + 2 * size),
        _matrix("in_proj", 4 * size, 4 * size),
        _matrix("out_proj", text, 4 * size),
        _vectors(2 * size + 4 * size + text),
    ]
    return weights, VisionShape(size, wide, count, grid)


def _gemma4(vision: ConfigFields, text: int) -> Built:
    size, wide = vision.integer("hidden_size"), vision.integer("intermediate_size")
    count, patch = vision.integer("num_hidden_layers"), vision.integer("patch_size")
    positions = vision.integer("position_embedding_size", 10240)
    head = vision.integer("head_dim", 72)
    weights = _blocks(size, wide, count, biases=False, norms=4, gated=True)
    weights += [
        _matrix("patch_embedder", size, 3 * patch * patch),
        _vectors(2 * positions * size + 2 * head * count),
        _matrix("embedding_projection", text, size),
    ]
    if vision.flag("standardize"):
        weights.append(_vectors(0))
    tokens = (
        vision.integer("default_output_length", 280) * vision.integer("pooling_kernel_size", 3) ** 2
    )
    return weights, VisionShape(size, wide, count, tokens)


_GEMMA4_AUDIO = 304_824_608
"""Of Gemma4AudioModel with the library's sizes, counted by instantiating it (transformers 5.23.0)."""


def _gemma4_audio(fields: ConfigFields, text: int) -> list[Weight]:
    """Return the audio encoder of Gemma 4 E2B and E4B, whose configs name no sizes of it."""
    if fields.model_type != "gemma4" or not isinstance(fields.outer.get("audio_config"), Mapping):
        return []
    return [
        Weight("audio_tower", "vision", _GEMMA4_AUDIO, 1, shard=Shard.REPLICATED),
        _matrix("embed_audio", text, 1536, part="projector"),
    ]


def _gemma3n(text: int) -> tuple[list[Weight], VisionShape, bool]:
    """Gemma 3n's encoders, whose sizes its config leaves to the libraries.

    The audio encoder was counted by instantiating it (transformers 5.23.0); the image encoder has about the
    300 million parameters of its name, mobilenetv5_300m_enc, and is marked as approximate.
    """
    weights = [
        Weight("audio_tower", "vision", 681_348_640, 1, shard=Shard.REPLICATED),
        Weight("vision_tower", "vision", 300_000_000, 1, shard=Shard.REPLICATED),
        _matrix("embed_vision", text, 2048 + 128, part="projector"),
        _matrix("embed_audio", text, 1536 + 128, part="projector"),
    ]
    return weights, VisionShape(2048, 4 * 2048, 1, 256), False


def _step_defaults(text: int) -> tuple[list[Weight], VisionShape, bool]:
    """Step-3.7's encoder, whose sizes its published config leaves to the library's defaults."""
    size, wide, count, positions = 1536, 8960, 47, 2704
    weights = _blocks(size, wide, count, biases=True, norms=6)
    weights += [
        _matrix("patch_embedding", size, 3 * 14 * 14),
        _vectors(positions * size + 2 * size),
        _matrix("downsampler1", 2 * size, size * 9),
        _matrix("downsampler2", 4 * size, 2 * size * 9),
        _vectors(6 * size),
        _matrix("projector", text, 4 * size, part="projector"),
    ]
    return weights, VisionShape(size, wide, count, positions), True


def _plain(vision: ConfigFields, text: int) -> Built:
    """A vision transformer with a two-layer projector, for encoders that are not known."""
    size = vision.integer("hidden_size", vision.integer("embed_dim", 1024))
    wide = vision.integer("intermediate_size", 4 * size)
    count = vision.integer("num_hidden_layers", vision.integer("depth", 24))
    weights = _blocks(size, wide, count, biases=True, norms=4)
    weights += [_matrix("linear_1", text, size), _matrix("linear_2", text, text)]
    patch = max(1, vision.integer("patch_size", 14))
    return weights, VisionShape(
        size, wide, count, (vision.integer("image_size", 896) // patch) ** 2
    )


_PLAIN_PROJECTORS = frozenset({"llava"})
"""Model types whose projector takes patches as they are."""

_BUILDERS: tuple[tuple[tuple[str, ...], Callable[[ConfigFields, int], Built]], ...] = (
    (("qwen2_vl", "qwen2_5_vl"), _qwen2_vl),
    (("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), _qwen3_vl),
    (("llava_next",), _llava_next),
    (("idefics3", "smolvlm"), _idefics3),
    (("gemma3", "siglip_vision_model"), _siglip),
    (("internvl", "internvl_chat"), _internvl),
    (("pixtral",), _pixtral),
    (("clip_vision_model",), _clip),
    (("llama4", "llama4_vision_model"), _llama4),
    (("kimi_k25", "kimi_k3"), _moonvit),
    (("gemma4", "gemma4_vision"), _gemma4),
)


@dataclass(frozen=True, slots=True)
class _Fixed:
    """An encoder whose sizes are those of the library, as the published configs have none.

    Attributes:
        build: from the hidden size of the text model to weights, shape and whether they are exact.
        always: also where the config describes an encoder.
    """

    build: Callable[[int], tuple[list[Weight], VisionShape, bool]]
    always: bool = False


_FIXED: Mapping[str, _Fixed] = {
    "gemma3n": _Fixed(_gemma3n, always=True),
    "step3p7": _Fixed(_step_defaults),
}
