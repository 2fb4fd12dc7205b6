"""Imports PyTorch without what an engine does not use, which is a quarter of the time it takes.

`torch._meta_registrations` describes, in Python, the shapes that operations give, for `torch.compile` and
for computing on the device `meta`; the engine only makes tensors there. `cuda.bindings` words a few errors
of CUDA, where it is installed. Nothing else of PyTorch asks for them while it is imported, and who
imports them later gets them. Code for a GPU does not stay in memory: what of it loading has touched is let go
before the rest of PyTorch is imported, or both together would be the most that a core ever takes.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType

_EMPTY = "torch._meta_registrations"
_MISSING = "cuda.bindings"
_GPU_LIBRARIES = ("/nvidia/", "libtorch_cuda", "libc10_cuda")
_DONT_NEED = 4
"""MADV_DONTNEED of Linux."""


def import_torch() -> None:
    """Import PyTorch, unless it is there."""
    if "torch" in sys.modules:
        return
    sys.modules[_EMPTY] = ModuleType(_EMPTY)
    sys.modules[_MISSING] = None  # type: ignore[assignment]  # how Python says that there is none
    after_libraries = _AfterLibraries()
    sys.meta_path.insert(0, after_libraries)
    try:
        import torch
    finally:
        sys.meta_path.remove(after_libraries)
        del sys.modules[_EMPTY], sys.modules[_MISSING]
    vars(torch).pop(_EMPTY.rpartition(".")[2], None)


class _AfterLibraries:
    """A finder that finds nothing: it is asked first, so it sees when PyTorch has loaded its libraries."""

    has_seen_it = False

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if not self.has_seen_it and "torch._C" in sys.modules:
            self.has_seen_it = True
            # Raised here, in the middle of it, an error would end the import, and any later one.
            with suppress(Exception):
                _let_go_of_gpu_code()


def _let_go_of_gpu_code() -> None:
    """Give back pages of code that only a GPU needs; the kernel maps them again for who runs it.

    The build of PyTorch for CUDA brings libraries whose loading alone has 100 MB of their code in RAM. Code
    is never changed, unlike data, so that nothing is lost with its pages.
    """
    give_back = ctypes.CDLL(None).madvise
    give_back.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    for line in maps.splitlines():
        span, permissions, *rest = line.split(maxsplit=5)
        path = rest[3] if len(rest) > 3 else ""
        if permissions == "r-xp" and any(name in path for name in _GPU_LIBRARIES):
            begin, end = (int(number, 16) for number in span.split("-"))
            give_back(begin, end - begin, _DONT_NEED)
