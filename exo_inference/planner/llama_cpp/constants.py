"""What no source of llama.cpp says: CUDA's own memory, and how far sizes were off on real starts.

`catalog/llama_cpp_overheads.json` has what the calibration half gave; `scripts/llama_cpp_starts/calibrate.py` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from exo_inference.planner.gpu_catalog import MIB
from exo_inference.planner.memory import Component
from exo_inference.planner.overheads import Measured

CONTEXT = "CUDA context, MiB"
WEIGHTS = "printed weights to predicted"
COMPUTE = "printed compute buffers to predicted"


@cache
def load_constants() -> Mapping[str, Measured]:
    """Return the constants by name."""
    path = files("exo_inference.planner").joinpath("catalog", "llama_cpp_overheads.json")
    loaded = json.loads(path.read_text(encoding="utf-8"))
    return {name: Measured(**entry) for name, entry in loaded.items()}


def context_component(shared: int = 0) -> Component:
    """Return what CUDA takes of a GPU before llama.cpp has a buffer there.

    Args:
        shared: bytes of main memory, where that is the GPU's too.
    """
    found = load_constants()[CONTEXT]
    value, low, high = (int(size * MIB) for size in (found.value, found.low, found.high))
    source = "CUDA's context, measured on real starts"
    source += ", and all of main memory" if shared else ""
    return Component("non_torch", shared + value, shared + low, shared + high, source)


def banded(name: str, size: int, constant: str, source: str, maybe: int = 0) -> Component:
    """Return a component with the band that starts of the calibration half had around such sizes.

    Args:
        name: of the component.
        size: what is predicted.
        constant: how far printed sizes were off.
        source: where the prediction is from.
        maybe: what may come on top.
    """
    found = load_constants()[constant]
    low, high = min(1.0, found.low), max(1.0, found.high)
    return Component(name, size, int(size * low), int(size * high) + maybe, source)
