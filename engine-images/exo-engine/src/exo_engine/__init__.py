"""exo-engine: a compact paged-attention inference server with an OpenAI-compatible API.

`LLM` runs a model in this process; `exo-engine serve` runs the server. Importing the package imports
no torch: the names below are looked up when they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from exo_engine.openmp import shorten_spinning

if TYPE_CHECKING:
    from exo_engine.llm import LLM, Completion
    from exo_engine.sampling_params import SamplingParams

__version__ = "0.1.0"

__all__ = ["LLM", "Completion", "SamplingParams", "__version__"]

_MODULES = {
    "LLM": "exo_engine.llm",
    "Completion": "exo_engine.llm",
    "SamplingParams": "exo_engine.sampling_params",
}


shorten_spinning()  # before PyTorch is imported


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
