"""What a way to compute a step's prompts must do, other than the kernels that compute every step.

`gathering.py` and `paged_flash.py` have ways; `TritonAttention` has its prompts computed by one of them where that
was chosen (`prompt_choice.py`) or asked for, and where it can be.

Legend: T tokens of the prompts, H heads, D head dim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from exo_engine.attention.kv_cache import KVCache
from exo_engine.attention.layer import AttentionLayer, Reach
from exo_engine.attention.layout import StepLayout

if TYPE_CHECKING:
    from exo_engine.kernels.triton.pages import Pages


class PlannedPrompts(Protocol):
    """The sequences of a step that have more than one token in it, of one cache group."""

    @property
    def rows(self) -> slice:
        """Their tokens in the step."""
        ...


class PromptWay(Protocol):
    """A way to compute prompts."""

    @property
    def name(self) -> str:
        """As logs call it."""
        ...

    def why_not(self, layer: AttentionLayer, cache: KVCache) -> str | None:
        """Return why a layer's prompts cannot be computed so over a cache; None: they can be."""
        ...

    def plan(
        self, layout: StepLayout, group: int, block_size: int, reach: Reach
    ) -> PlannedPrompts | None:
        """Return what all layers of a group share in a step; None: its prompts are too long for this way."""
        ...

    def attend(self, layer: AttentionLayer, queries: Tensor, pages: Pages, planned: Any) -> Tensor:
        """Return what queries (T, H, D) see, (T, H, D); keys and values are in their pages."""
        ...

    def scratch_bytes(self, layer: AttentionLayer, cache: KVCache) -> int:
        """Return the most bytes that a layer takes beside its result."""
        ...


def is_plain(layer: AttentionLayer) -> bool:
    """Whether a layer's scores are products alone, over all tokens before one or a window of them."""
    is_bare = layer.soft_cap is None and not layer.has_sinks and not layer.num_latent
    return is_bare and layer.reach.chunk is None
