"""A step of a plan's arithmetic, and the words that all steps have. Pure text.

`explain.py`, `speed/explain.py` and `llama_cpp/explain.py` yield them; the command line's `--explain` prints them.
"""

from __future__ import annotations

from dataclasses import dataclass

from exo_inference.planner.gpu_catalog import GIB, MIB
from exo_inference.planner.model.shapes import KvKind


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the arithmetic.

    Attributes:
        title: what is worked out.
        formula: how, with the numbers put in.
        result: the figure with its unit.
        source: where the formula or the numbers come from.
    """

    title: str
    formula: str
    result: str
    source: str


PARTS = {
    "attention": "attention", "mlp": "feed-forward", "routed_experts": "routed experts",
    "expert_bias": "biases of the experts", "shared_experts": "shared experts", "router": "routers",
    "norm": "norms and biases", "embedding": "embedding table", "lm_head": "output head",
    "per_layer_embedding": "per-layer embeddings", "vision": "image encoder", "projector": "image projector",
}  # fmt: skip
"""Parts of a model, as steps name them."""

KINDS = {
    KvKind.FULL: "full attention", KvKind.SLIDING: "sliding-window attention",
    KvKind.CHUNKED: "chunked attention", KvKind.LATENT: "latent attention (MLA)",
    KvKind.STATE: "states (Mamba or linear attention)",
    KvKind.COMPRESSED: "compressed attention", KvKind.CROSS: "attention to the encoder",
}  # fmt: skip
"""What layers keep, as steps name it."""


def part_name(part: str) -> str:
    """Return the words of a part of a model."""
    return PARTS.get(part, part.replace("_", " "))


def gib(size: float) -> str:
    """Return a size in GiB, a small one in MiB."""
    return f"{size / GIB:.2f} GiB" if abs(size) >= GIB / 20 else f"{size / MIB:.2f} MiB"


def left(size: float) -> str:
    """Return what is left, or how much is missing."""
    return gib(size) if size >= 0 else f"{gib(-size)} too little"


def with_bytes(size: int) -> str:
    """Return a size with its bytes."""
    return f"{gib(size)} ({size:,} bytes)"


def with_band(size: int, low: int, high: int) -> str:
    """Return a size with its bytes, and the band around it where there is one."""
    return with_bytes(size) + (f" ({gib(low)} to {gib(high)})" if high > low else "")


def per_token(size: float) -> str:
    """Return what a token adds."""
    return f"{size:,.10g} bytes per token"
