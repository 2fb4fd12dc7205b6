"""Memory for packed weights: one matrix after the other in large pieces, which the system may hold in huge pages.

A step of few tokens reads all weights once. In pages of 4 KiB a processor reads ahead to the end of a page only, and
looks addresses up some 60,000 times; most matrices alone are no multiple of the 2 MiB of a huge page.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import threading
from contextlib import suppress

import torch
from torch import Tensor

_HUGE_PAGE = 2**21
_PIECE_BYTES = 2**26
"""Asked of the system at a time; what is never written takes no memory."""
_ALIGNMENT = 64


class WeightMemory:
    """Hands out memory; a piece is given back when the last tensor in it has gone."""

    def __init__(self, piece_bytes: int = _PIECE_BYTES) -> None:
        self._piece_bytes = piece_bytes
        self._lock = threading.Lock()
        self._rest = torch.empty(0, dtype=torch.uint8)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a contiguous tensor on the CPU, whose numbers may be anything."""
        num_bytes = math.prod(shape) * dtype.itemsize
        whole = -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        with self._lock:
            if whole > len(self._rest):
                self._rest = _new_piece(max(whole, self._piece_bytes))
            taken, self._rest = self._rest[:num_bytes], self._rest[whole:]
        return taken.view(dtype).view(shape)


WEIGHTS = WeightMemory()
"""Of this process."""


def _new_piece(num_bytes: int) -> Tensor:
    """Return bytes that begin at a huge page, where the system has such."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None:
        return torch.empty(num_bytes, dtype=torch.uint8)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, num_bytes + _HUGE_PAGE, flags=flags)
    with suppress(OSError):  # a kernel that was built without huge pages
        memory.madvise(advice)
    first = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % _HUGE_PAGE
    return torch.frombuffer(memory, dtype=torch.uint8)[first : first + num_bytes]
