"""When the engine last got on: written by whoever computes, read by the server, even while the core is stopped.

One page of memory that the processes of an engine share. The kernels write it, too (`csrc/threads.h`): all layers of a
step may be one call. Times are of the kernel's monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time

_WORDS = 3
_BEAT, _LAYERS, _COMMANDS = range(_WORDS)
_BYTES = 8 * _WORDS


class Pulse:
    """What one engine has done. Numbers are 64 bits, each written by one thread at a time.

    Attributes:
        fd: of the shared memory; None while it is this process's own.
    """

    def __init__(self, fd: int | None = None) -> None:
        self._map(fd)

    @classmethod
    def shared(cls) -> Pulse:
        """Return one that can be handed to a child, which calls `share` with its `fd`."""
        fd = os.memfd_create("exo-pulse")
        os.ftruncate(fd, _BYTES)
        return cls(fd)

    def share(self, fd: int) -> None:
        """Write to another process's memory from now on; before the kernels are loaded."""
        self._map(fd)

    def _map(self, fd: int | None) -> None:
        self.fd: int | None = fd
        self._page = mmap.mmap(-1 if fd is None else fd, _BYTES)
        self._words = memoryview(self._page).cast("q")

    @property
    def address(self) -> int:
        """Where the kernels write: the moment of the last beat in nanoseconds, then the layers."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._page))

    def beat(self) -> None:
        """Note that something was computed."""
        self._words[_BEAT] = time.monotonic_ns()

    def count_layer(self) -> None:
        """Note that a layer was computed."""
        self._words[_LAYERS] += 1
        self.beat()

    def count_commands(self, number: int) -> None:
        """Note that the core has taken commands of the server."""
        self._words[_COMMANDS] += number
        self.beat()

    @property
    def last_beat(self) -> float:
        """Seconds, as `time.monotonic` has them; 0 before anything was computed."""
        return self._words[_BEAT] / 1e9

    @property
    def num_layers(self) -> int:
        """Layers computed so far."""
        return self._words[_LAYERS]

    @property
    def num_commands(self) -> int:
        """Commands that the core has taken."""
        return self._words[_COMMANDS]


OWN = Pulse()
"""Of this process, or of the engine that it is a part of."""
