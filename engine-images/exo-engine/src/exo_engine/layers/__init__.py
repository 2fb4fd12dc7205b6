"""What models are written over: layers that know their weights, and nothing of checkpoints' files.

`linear`, `embedding`, `rms_norm`, `layer_norm` and `experts` own weights, in a format that they are given
(`exo_engine.weight_formats`); `mlp` is two linear layers;
`attention` joins heads, norms, rotary embedding and the attention backend. A model file makes layers in a
`Context` and calls them; loading walks the context's list.
"""

from __future__ import annotations

from exo_engine.layers.attention import Attention
from exo_engine.layers.base import Context, Layer, Slot
from exo_engine.layers.embedding import Embedding, make_head
from exo_engine.layers.experts import Experts
from exo_engine.layers.linear import Linear
from exo_engine.layers.mlp import GatedMLP
from exo_engine.layers.rms_norm import RMSNorm

__all__ = [
    "Attention",
    "Context",
    "Embedding",
    "Experts",
    "GatedMLP",
    "Layer",
    "Linear",
    "RMSNorm",
    "Slot",
    "make_head",
]
