"""What a plan of llama.cpp was worked out from, so that `explain.py` can show the way to its figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exo_inference.planner.llama_cpp.room import Asked
    from exo_inference.planner.llama_cpp.setting import Context
    from exo_inference.planner.llama_cpp.sizes import Sizes


@dataclass(frozen=True, slots=True)
class LlamaBasis:
    """A start.

    Attributes:
        asked: as llama-server starts it, with layers moved.
        context: its contexts, shortened where `--fit` does.
        gpu: the index of the GPU with the least room.
    """

    asked: Asked
    context: Context
    sizes: Sizes
    gpu: int
