"""Image encoders: their weights, and the size of the largest image that is encoded while profiling.

`architecture.py` calls `build_vision`. Each encoder has its own builder; one that is not known is
sized as an ordinary vision transformer, which the caller marks as approximate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from exo_inference.planner.model import joined_vision
from exo_inference.planner.model.config_fields import ConfigFields
from exo_inference.planner.model.shapes import Shard, VisionShape, Weight
from exo_inference.planner.model.towers import clip, counted, internvit, merging, siglip
from exo_inference.planner.model.vision_parts import (
    QWEN_MAX_PATCHES,
    Built,
    blocks,
    matrix,
    plain_vectors,
    usual_sizes,
)


def build_vision(fields: ConfigFields) -> tuple[list[Weight], VisionShape, bool] | None:
    """Return weights, shape and whether the encoder is a known one; None for a text model.

    Raises:
        FieldProblem: a size is missing.
    """
    built = _build(fields)
    if built is None:
        return None
    weights, shape, is_known = built
    return weights, replace(shape, sizes_in_config=_sizes_in_config(fields)), is_known


def _sizes_in_config(fields: ConfigFields) -> tuple[int, int] | None:
    vision = fields.outer.get("vision_config")
    if not isinstance(vision, Mapping):
        return None
    sizes = []
    for names, otherwise in (
        (("num_hidden_layers", "vt_num_hidden_layers"), 24), (("hidden_size", "vt_hidden_size"), 1024),
    ):  # fmt: skip
        found = next(
            (vision[name] for name in names if isinstance(vision.get(name), int)), otherwise
        )
        sizes.append(min(max(found, 0), 2**20))
    return sizes[0], sizes[1]


_CLIP_LARGE = "clip-l-14-224"
"""What DeepSeek-OCR's config calls the tower that its second version has no more."""


def _build(fields: ConfigFields) -> tuple[list[Weight], VisionShape, bool] | None:
    fixed = _FIXED.get(fields.model_type)
    if fixed is not None and (fixed.always or fields.vision is None):
        return fixed.build(fields.integer("hidden_size"))
    if fields.model_type in _MOLMO:
        return clip.molmo(fields.integer("hidden_size"), fields.integer("intermediate_size") // 2)
    if fields.vision is None:
        return None
    towers = fields.vision.get("width")
    if isinstance(towers, Mapping):
        join = merging.sam_and_clip if _CLIP_LARGE in towers else merging.sam_and_qwen
        return *join(fields.integer("hidden_size")), True
    inner = {
        **{name: fields.outer.get(name) for name in _OF_PROJECTORS},
        "merges_patches": fields.model_type not in _PLAIN_PROJECTORS,
        "text_intermediate_size": fields.raw.get("intermediate_size"),
        **fields.vision,
        **_backbone(fields.vision),
    }
    vision = ConfigFields(inner)
    kind = fields.model_type
    hidden_text = fields.integer("hidden_size")
    for names, build in _BUILDERS:
        if kind in names or vision.model_type in names:
            weights, shape = build(vision, hidden_text)
            return weights, shape, True
    weights, shape = _plain(vision, hidden_text)
    return weights, shape, False


def _backbone(vision: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the encoder within an object that has a tokenizer of images around it (Ovis)."""
    inner = vision.get("backbone_config")
    return (
        {k: v for k, v in inner.items() if k != "model_type"} if isinstance(inner, Mapping) else {}
    )


def _siglip(vision: ConfigFields, text: int) -> Built:
    """SigLIP with Gemma 3's projector."""
    size, wide, count, patch, patches = usual_sizes(vision)
    weights = blocks(size, wide, count, biases=True, norms=4)
    weights += [
        matrix("patch_embedding", size, 3 * patch * patch),
        plain_vectors(size + patches * size + 2 * size),
        matrix("projector", text, size, part="projector"),
        plain_vectors(size),
    ]
    return weights, VisionShape(size, wide, count, patches)


def _clip(vision: ConfigFields, text: int) -> Built:
    """CLIP with the two-layer projector of LLaVA 1.5."""
    size, wide, count, patch, patches = usual_sizes(vision)
    positions = patches + 1  # a class token
    weights = blocks(size, wide, count, biases=True, norms=4)
    weights += [
        matrix("patch_embedding", size, 3 * patch * patch),
        plain_vectors(size + positions * size + 4 * size),
        matrix("linear_1", text, size, part="projector"),
        matrix("linear_2", text, text, part="projector"),
        plain_vectors(2 * text),
    ]
    return weights, VisionShape(size, wide, count, positions)


_LLAVA_NEXT_TILES = 5
"""The image and a grid of up to four tiles (`image_grid_pinpoints` of the published models)."""


def _llava_next(vision: ConfigFields, text: int) -> Built:
    """LLaVA-NeXT: LLaVA 1.5's encoder over several tiles, and a learned end of line."""
    weights, shape = _clip(vision, text)
    weights.append(plain_vectors(text))
    return weights, replace(shape, max_tokens=_LLAVA_NEXT_TILES * shape.max_tokens)


_IDEFICS3_TILES = 17
"""The image and a grid of up to four by four tiles."""


def _idefics3(vision: ConfigFields, text: int) -> Built:
    """SigLIP with one projection of neighbouring patches (Idefics 3, SmolVLM)."""
    size, wide, count, patch, patches = usual_sizes(vision)
    joined = vision.integer("scale_factor") ** 2 * size
    weights = blocks(size, wide, count, biases=True, norms=4)
    weights += [
        matrix("patch_embedding", size, 3 * patch * patch),
        plain_vectors(size + patches * size + 2 * size),
        matrix("projector", text, joined, part="projector"),
    ]
    return weights, VisionShape(size, wide, count, _IDEFICS3_TILES * patches)


def _pixtral(vision: ConfigFields, text: int) -> Built:
    """Pixtral: with LLaVA's projector, or the patch merger of Mistral Small 3.1 and Ministral 3."""
    size, wide, count, patch, patches = usual_sizes(vision)
    merges = vision.flag("merges_patches", default=True)
    biases = 2 * text if vision.flag("multimodal_projector_bias", default=True) else 0
    weights = blocks(size, wide, count, biases=False, norms=2, gated=True)
    weights += [
        matrix("patch_conv", size, 3 * patch * patch),
        plain_vectors(2 * size if merges else size + biases),
        matrix("linear_1", text, size, part="projector"),
        matrix("linear_2", text, text, part="projector"),
    ]
    if merges:
        weights.append(matrix("patch_merger", size, 4 * size, part="projector"))
    return weights, VisionShape(size, wide, count, patches)


def _qwen2_vl(vision: ConfigFields, text: int) -> Built:
    is_windowed = vision.get("window_size") is not None
    size = vision.integer("embed_dim", vision.integer("hidden_size", 1280))
    count, patch = vision.integer("depth", 32), vision.integer("patch_size", 14)
    wide = vision.integer("intermediate_size", size * vision.integer("mlp_ratio", 4))
    merged = size * vision.integer("spatial_merge_size", 2) ** 2
    weights = blocks(
        size, wide, count, biases=True, norms=2 if is_windowed else 4, gated=is_windowed
    )
    weights += [
        matrix("patch_embed", size, 3 * vision.integer("temporal_patch_size", 2) * patch * patch),
        plain_vectors(size * (1 if is_windowed else 2) + merged + text),
        matrix("merger.0", merged, merged),
        matrix("merger.2", text, merged),
    ]
    return weights, VisionShape(size, wide, count, QWEN_MAX_PATCHES)


def _hyperclovax(vision: ConfigFields, text: int) -> Built:
    """HyperCLOVA X SEED Think 32B: Qwen2.5-VL's encoder and one projection more."""
    weights, shape = _qwen2_vl(vision, text)
    projection = matrix("mm_projector", text, text, part="projector")
    return [*weights, projection, plain_vectors(text)], shape


def _qwen3_vl(vision: ConfigFields, text: int) -> Built:
    size, wide = vision.integer("hidden_size"), vision.integer("intermediate_size")
    count, patch = vision.integer("depth"), vision.integer("patch_size", 16)
    out = vision.integer("out_hidden_size", text)
    merged = size * vision.integer("spatial_merge_size", 2) ** 2
    deep = len(vision.sequence("deepstack_visual_indexes") or [])
    positions = vision.integer("num_position_embeddings", 2304)
    weights = blocks(size, wide, count, biases=True, norms=4)
    weights += [
        matrix("patch_embed", size, 3 * vision.integer("temporal_patch_size", 2) * patch * patch),
        matrix("merger.fc1", merged, merged, 1 + deep),
        matrix("merger.fc2", out, merged, 1 + deep),
        plain_vectors(size + positions * size + 2 * size + (merged + out)),
        plain_vectors(2 * merged + merged + out, deep),
    ]
    return weights, VisionShape(size, wide, count, QWEN_MAX_PATCHES)


def _llama4(vision: ConfigFields, text: int) -> Built:
    size, wide, count, patch, patches = usual_sizes(vision)
    out = vision.integer("projector_output_dim", 4096)
    projector_in = vision.integer("projector_input_dim", 4096)
    positions = patches + 1
    weights = blocks(size, wide, count, biases=True, norms=4)
    weights += [
        matrix("patch_embedding", size, 3 * patch * patch),
        plain_vectors(size + positions * size + 4 * size),
        matrix("adapter.fc1", projector_in, size * 4),
        matrix("adapter.fc2", out, projector_in),
        matrix("projector", text, out, part="projector"),
    ]
    return weights, VisionShape(size, wide, count, positions * 17)  # 16 tiles and the whole


def _moonvit(vision: ConfigFields, text: int) -> Built:
    """MoonViT of Kimi-VL, and of Kimi K2.5 and later, whose fields begin with `vt_`."""
    start = "vt_" if vision.get("vt_hidden_size") else ""
    size, wide = vision.integer(f"{start}hidden_size"), vision.integer(f"{start}intermediate_size")
    count, patch = vision.integer(f"{start}num_hidden_layers"), vision.integer("patch_size")
    grid = vision.integer("init_pos_emb_height", 64) * vision.integer("init_pos_emb_width", 64)
    inner = vision.integer("qkv_hidden_size", size)
    weights = blocks(size, wide, count, biases=True, norms=4)
    weights += [matrix("qkv_extra", 4 * (inner - size), size, count)] if inner > size else []
    weights += [
        matrix("patch_embed", size, 3 * patch * patch),
        plain_vectors(size + grid * size + 2 * size),
        matrix("in_proj", 4 * size, 4 * size),
        matrix("out_proj", text, 4 * size),
        plain_vectors(2 * size + 4 * size + text),
    ]
    return weights, VisionShape(size, wide, count, grid)


def _gemma4(vision: ConfigFields, text: int) -> Built:
    size, wide = vision.integer("hidden_size"), vision.integer("intermediate_size")
    count, patch = vision.integer("num_hidden_layers"), vision.integer("patch_size")
    positions = vision.integer("position_embedding_size", 10240)
    head = vision.integer("head_dim", 72)
    weights = blocks(size, wide, count, biases=False, norms=4, gated=True)
    weights += [
        matrix("patch_embedder", size, 3 * patch * patch),
        plain_vectors(2 * positions * size + 2 * head * count),
        matrix("embedding_projection", text, size),
    ]
    if vision.flag("standardize"):
        weights.append(plain_vectors(0))
    tokens = (
        vision.integer("default_output_length", 280) * vision.integer("pooling_kernel_size", 3) ** 2
    )
    return weights, VisionShape(size, wide, count, tokens)


def _gemma3n(text: int) -> tuple[list[Weight], VisionShape, bool]:
    """Gemma 3n's encoders, whose sizes its config leaves to the libraries.

    The audio encoder was counted by instantiating it (transformers 5.23.0); the image encoder has about the
    300 million parameters of its name, mobilenetv5_300m_enc, and is marked as approximate.
    """
    weights = [
        Weight("audio_tower", "vision", 681_348_640, 1, shard=Shard.REPLICATED),
        Weight("vision_tower", "vision", 300_000_000, 1, shard=Shard.REPLICATED),
        matrix("embed_vision", text, 2048 + 128, part="projector"),
        matrix("embed_audio", text, 1536 + 128, part="projector"),
    ]
    return weights, VisionShape(2048, 4 * 2048, 1, 256), False


def _step_defaults(text: int) -> tuple[list[Weight], VisionShape, bool]:
    """Step-3.7's encoder, whose sizes its published config leaves to the library's defaults."""
    size, wide, count, positions = 1536, 8960, 47, 2704
    weights = blocks(size, wide, count, biases=True, norms=6)
    weights += [
        matrix("patch_embedding", size, 3 * 14 * 14),
        plain_vectors(positions * size + 2 * size),
        matrix("downsampler1", 2 * size, size * 9),
        matrix("downsampler2", 4 * size, 2 * size * 9),
        plain_vectors(6 * size),
        matrix("projector", text, 4 * size, part="projector"),
    ]
    return weights, VisionShape(size, wide, count, positions), True


def _phi3_v(text: int) -> tuple[list[Weight], VisionShape, bool]:
    """Phi-3-vision's CLIP ViT-L/14 of 336 pixels, which its config only names."""
    sizes = {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "image_size": 336,
    }
    weights, shape = _clip(ConfigFields({**sizes, "patch_size": 14}), text)
    weights = [each for each in weights if "linear_" not in each.path]
    weights += [
        matrix("img_projection.0", text, 4 * 1024, part="projector"),
        matrix("img_projection.2", text, text, part="projector"),
        plain_vectors(2 * 4 * 1024),  # what separates lines and images
    ]
    return weights, replace(shape, max_tokens=17 * shape.max_tokens), True


_PHI4MM = 857_650_624
"""Parameters of Phi-4-multimodal's SigLIP, its Conformer and their projections, instantiated (transformers 5.23.0)."""


def _phi4mm(text: int) -> tuple[list[Weight], VisionShape, bool]:
    """Phi-4-multimodal's encoders of images and speech, without the adapters that an engine loads when told to."""
    encoders = Weight("embed_tokens_extend", "vision", _PHI4MM, 1, shard=Shard.REPLICATED)
    return [encoders], VisionShape(1152, 4304, 27, 37 * 1024), True


def _plain(vision: ConfigFields, text: int) -> Built:
    """A vision transformer with a two-layer projector, for encoders that are not known."""
    size = vision.integer("hidden_size", vision.integer("embed_dim", 1024))
    wide = vision.integer("intermediate_size", 4 * size)
    count = vision.integer("num_hidden_layers", vision.integer("depth", 24))
    weights = blocks(size, wide, count, biases=True, norms=4)
    weights += [matrix("linear_1", text, size), matrix("linear_2", text, text)]
    patch = max(1, vision.integer("patch_size", 14))
    return weights, VisionShape(
        size, wide, count, (vision.integer("image_size", 896) // patch) ** 2
    )


_MOLMO = ("molmo",)
"""Model types whose encoder no config describes, and whose projection is as wide as the text's feed-forward."""

_PLAIN_PROJECTORS = frozenset({"llava"})
"""Model types whose projector takes patches as they are."""

_OF_PROJECTORS = (
    "scale_factor", "multimodal_projector_bias", "downsample_factor", "alignment_intermediate_size", "max_splits_per_img",
    "projector_use_layernorm", "max_tiles", "max_num_patches", "query_num",
    "drop_vision_last_layer", "ffn_hidden_size", "visual_vocab_size", "projector_hidden_size", "adapter_intermediate_size",
)  # fmt: skip
"""What a config says of its projector outside the object of its encoder."""

_BUILDERS: tuple[tuple[tuple[str, ...], Callable[[ConfigFields, int], Built]], ...] = (
    (("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni"), _qwen2_vl),
    (("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen3_omni_moe"), _qwen3_vl),
    (("llava_next", "llava_next_video"), _llava_next),
    (("llava_onevision",), siglip.two_layers),
    (("paligemma",), siglip.one_layer),
    (("aya_vision",), siglip.gated),
    (("cohere2_vision",), siglip.ungated_norm),
    (("lfm2_vl",), siglip.unshuffled),
    (("minicpmv4_6",), siglip.merged),
    (("minicpmv", "minicpmo"), siglip.resampled),
    (("glm4v", "glm4v_moe"), merging.glm),
    (("glm_ocr",), merging.glm_ocr),
    (("exaone4_5",), merging.exaone),
    (("dots_ocr",), merging.dots),
    (("ovis",), merging.ovis),
    (("r", "bee"), siglip.normed_two_layers),
    (("keye", "keyevl1_5"), siglip.keye),
    (("isaac",), siglip.isaac),
    (("moondream3",), siglip.doubled),
    (("clip",), clip.joint),
    (("siglip",), siglip.joint),
    (("modernvbert",), siglip.shuffled),
    (("ovis2_5", "ovis2_6_moe"), siglip.discrete),
    (("molmo2",), siglip.pooled),
    (("hunyuan_vl",), siglip.hunyuan),
    (("nemotronh_nano_vl_v2", "llama_nemotron_nano_vl"), merging.radio),
    (("chatglm",), clip.eva),
    (("vlm",), _hyperclovax),
    (("idefics3", "smolvlm"), _idefics3),
    (("gemma3", "siglip_vision_model"), _siglip),
    (("internvl", "internvl_chat", "interns1", "qianfan_ocr", "h2ovl_chat"), internvit.internvl),
    (("nvlm_d",), internvit.nvlm),
    (("pixtral",), _pixtral),
    (("clip_vision_model",), _clip),
    (("llama4", "llama4_vision_model"), _llama4),
    (("kimi_vl", "kimi_k25", "kimi_k3"), _moonvit),
    (("gemma4", "gemma4_vision"), _gemma4),
    (("muse_glimmer",), joined_vision.muse_glimmer),
    (("paddleocr_vl",), joined_vision.paddleocr),
    (("step3_vl",), joined_vision.step3),
    (("ernie4_5_vl_moe",), joined_vision.ernie),
    (("deepseek_vl_v2",), joined_vision.deepseek_vl2),
    (("dots3_note",), joined_vision.dots3),
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
    "step_robotics": _Fixed(_step_defaults, always=True),
    "phi4mm": _Fixed(_phi4mm, always=True),
    "phi3_v": _Fixed(_phi3_v),
    **{kind: _Fixed(partial(counted.counted, kind), always=True) for kind in counted.FIXED},
}
