"""Imports PyTorch without what an engine does not use, which is a quarter of the time it takes.

`torch._meta_registrations` describes, in Python, the shapes that operations give, for `torch.compile` and
for computing on the device `meta`; the engine only makes tensors there. `cuda.bindings` words a few errors
of CUDA, where it is installed. Nothing else of PyTorch asks for them while it is imported, and who
imports them later gets them.
"""

from __future__ import annotations

import sys
from types import ModuleType

_EMPTY = "torch._meta_registrations"
_MISSING = "cuda.bindings"


def import_torch() -> None:
    """Import PyTorch, unless it is there."""
    if "torch" in sys.modules:
        return
    sys.modules[_EMPTY] = ModuleType(_EMPTY)
    sys.modules[_MISSING] = None  # type: ignore[assignment]  # how Python says that there is none
    try:
        import torch
    finally:
        del sys.modules[_EMPTY], sys.modules[_MISSING]
    vars(torch).pop(_EMPTY.rpartition(".")[2], None)
