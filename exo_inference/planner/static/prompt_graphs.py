"""Which models SGLang captures pieces of prompts of, as CUDA graphs, and what its formula leaves them.

`share.py` asks. To 0.5.14 a model was compiled in pieces; since 0.5.15 it is captured between breaks, but for a few models
with images (srt/server_args.py, `_disable_tc_piecewise_cudagraph_if_incompatible` and
`_disable_breakable_cudagraph_if_incompatible`; srt/configs/model_config.py). Read in 0.5.10 to 0.5.23.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from exo_inference.planner.model.shapes import KvKind
from exo_inference.planner.releases.sglang_families import types_with

if TYPE_CHECKING:
    from exo_inference.planner.model.architecture import Architecture

Version = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptGraphs:
    """What a release captures.

    Attributes:
        never, with_images, compiled: model types, as in `SglangFamily` (releases/sglang_families.py): that are left out; that are
            captured though images are encoded beside them; of those, that are compiled in pieces.
        in_stages: stages are captured, too.
        latents: models with latents that are.
    """

    never: frozenset[str] = frozenset()
    with_images: frozenset[str] = frozenset()
    compiled: frozenset[str] = frozenset()
    in_stages: bool = False
    latents: Literal["none", "sparse", "all"] = "all"

    def size(
        self, model: Architecture, stages: int, step_tokens: int, *, sees_images: bool
    ) -> float:
        """Return the MiB that are left to them; 0 where there are none."""
        kind, is_compiled = model.model_type, model.model_type in self.compiled
        if kind in self.never or (sees_images and kind not in self.with_images):
            return 0.0
        if stages > 1 and (is_compiled or not self.in_stages):
            return 0.0
        latents = [layer.kv for layer, _ in model.layer_counts if layer.kv is not None]
        latents = [spec for spec in latents if spec.kind is KvKind.LATENT]
        if not latents:
            return 8.0 * num_prompt_graphs(step_tokens)
        is_sparse = any(spec.is_sparse for spec in latents)
        is_captured = self.latents == "all" or (self.latents == "sparse" and is_sparse)
        return 1536.0 if is_compiled or is_captured else 0.0


def num_prompt_graphs(step_tokens: int) -> int:
    """Return how many sizes of prompts are captured, up to so many tokens."""
    steps = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256))
    sizes = [size for step in steps for size in range(*step)]
    sizes += range(4608, min(step_tokens, 2**20) + 1, 512)
    return sum(1 for size in sizes if size <= step_tokens)


def prompt_graphs(version: Version) -> PromptGraphs | None:
    """Return what a release captures by default; None where that is nothing."""
    if version < (0, 5, 10):
        return None
    latents: Literal["none", "sparse", "all"] = "all"
    if (0, 5, 15) <= version < (0, 5, 18):
        latents = "sparse" if version >= (0, 5, 17) else "none"
    return PromptGraphs(
        never=types_with("without_prompt_graphs", version),
        with_images=types_with("graphs_with_images", version),
        compiled=types_with("compiled", version),
        in_stages=(0, 5, 15) <= version < (0, 5, 20),
        latents=latents,
    )
