"""Memory for packed weights: one matrix after the other in large pieces, which the system may hold in huge pages.

A step of few tokens reads all weights once. In pages of 4 KiB a processor reads ahead to the end of a page only, and
looks up an address for each; and few matrices are a multiple of a huge page, 2 MiB on x86.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import threading
import weakref
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
        self._piece: weakref.ref[mmap.mmap] | None = None
        self._at = 0
        """Where what is left of the piece begins."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a contiguous tensor on the CPU, whose numbers may be anything.

        Raises:
            MemoryError: the system has no room for it.
        """
        num_bytes = math.prod(shape) * dtype.itemsize
        if not hasattr(mmap, "MADV_HUGEPAGE") or num_bytes == 0:
            return torch.empty(shape, dtype=dtype)
        with self._lock:
            piece = None if self._piece is None else self._piece()
            if piece is None or self._at + num_bytes > len(piece):
                piece = _new_piece(max(num_bytes, self._piece_bytes))
                self._piece, self._at = weakref.ref(piece), _first_page(piece)
            taken = torch.frombuffer(piece, dtype=torch.uint8, count=num_bytes, offset=self._at)
            self._at += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        return taken.view(dtype).view(shape)


WEIGHTS = WeightMemory()
"""Of this process."""


def _new_piece(num_bytes: int) -> mmap.mmap:
    """Return memory with room for so many bytes from its first huge page on."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        memory = mmap.mmap(-1, num_bytes + _HUGE_PAGE, flags=flags)
    except OSError as exc:
        raise MemoryError(f"no room for {num_bytes} bytes of weights") from exc
    with suppress(OSError):  # a kernel that was built without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _first_page(memory: mmap.mmap) -> int:
    return -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % _HUGE_PAGE
