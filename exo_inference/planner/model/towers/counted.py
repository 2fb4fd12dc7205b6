"""Encoders that no config describes in full: their parameters as one number, each with where it is from. `vision.py` calls them."""

from __future__ import annotations

from exo_inference.planner.model.shapes import Shard, VisionShape, Weight

_SO400M = 413_274_800
"""SigLIP so400m without its pooling head: 27 layers of 1,152 with 1,024 positions."""

_ENCODERS = {
    # DINOv2 L/14, SigLIP so400m and three projections: what https://huggingface.co/openvla/openvla-7b has beside its text model
    "openvla": (802_297_280, VisionShape(1152, 4304, 27, 256)),
    # Emu3VQVAE, instantiated (transformers 5.23.0)
    "emu3": (270_740_287, VisionShape(1024, 1024, 4, 4096)),
    # the encoder and its projector, instantiated (transformers 5.23.0)
    "cosmos3_edge": (489_342_704, VisionShape(1152, 4304, 27, 1024)),
    # so400m of 980 pixels with 26 layers, and two projections
    "bagel": (421_000_000, VisionShape(1152, 4304, 26, 4900)),
}
_BEHIND_SO400M = {"eagle_2_5_vl": 4, "llama_nemotron_vl": 4, "phi4-siglip": 1}
"""Model types with that encoder, and how many patches their two projections take as one."""

FIXED = (*_ENCODERS, *_BEHIND_SO400M)


def counted(kind: str, text: int) -> tuple[list[Weight], VisionShape, bool]:
    """Return the encoder of a model type of `FIXED`, its shape, and that it is a known one."""
    if kind in _ENCODERS:
        number, shape = _ENCODERS[kind]
    else:
        joined = 1152 * _BEHIND_SO400M[kind]
        number = _SO400M + 2 * joined + text * (joined + 1) + text * (text + 1)
        shape = VisionShape(1152, 4304, 27, 13 * 1024)
    return [Weight("vision_tower", "vision", number, 1, shard=Shard.REPLICATED)], shape, True
