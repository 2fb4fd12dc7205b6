"""What ranks of one model exchange on one machine: numbers in shared memory, and who has written them.

Each layer is cut among the ranks, which compute their parts from the same frames; twice per layer
their results are added up. `executor_process` makes memory and sockets and gives each rank its own.

Who calls writes its part, tells the others with a byte, and waits for theirs. There are two sides that
take turns: nobody writes to a side again before all have said of the other one that they got that far.
"""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Sequence

import torch
from torch import Tensor

from exo_engine.frames import ConnectionEnded

_PIECE_BYTES = 2**20
"""Of one rank in one exchange; more goes in several. Memory is taken as it is touched."""


def open_memory(num_ranks: int) -> int:
    """Return a descriptor of memory that so many ranks can exchange through."""
    memory = os.memfd_create("exo-engine-ranks")
    os.ftruncate(memory, 2 * num_ranks * _PIECE_BYTES)
    return memory


def open_sockets(num_ranks: int) -> list[list[socket.socket]]:
    """Return the sockets of each rank: one to every other, in the order of the ranks."""
    sockets: list[list[socket.socket]] = [[] for _ in range(num_ranks)]
    for rank in range(num_ranks):
        for other in range(rank + 1, num_ranks):
            ours, theirs = socket.socketpair()
            sockets[rank].append(ours)
            sockets[other].append(theirs)
    return sockets


class RankGroup:
    """One rank's end. All ranks call the same methods in the same order, with parts of the same shape.

    Args:
        rank: this one.
        memory: what `open_memory` gave.
        sockets: to each other rank.
    """

    def __init__(self, rank: int, memory: int, sockets: Sequence[socket.socket]) -> None:
        self.rank = rank
        self.size = len(sockets) + 1
        self._sockets = sockets
        shared = mmap.mmap(memory, 2 * self.size * _PIECE_BYTES)
        self._sides = torch.frombuffer(shared, dtype=torch.uint8).view(2, self.size, _PIECE_BYTES)
        self._turn = 0

    def add_up(self, part: Tensor) -> Tensor:
        """Return the sum of every rank's part, with the same bits on each.

        Raises:
            ConnectionEnded: another rank is gone.
        """
        numbers = part.flatten()
        step = _PIECE_BYTES // part.dtype.itemsize
        total = torch.empty_like(numbers)
        for first in range(0, len(numbers), step):
            piece = slice(first, first + step)
            total[piece] = self._exchange(numbers[piece]).sum(dim=0, dtype=torch.float32)
        return total.view(part.shape)

    def from_first(self, numbers: Tensor) -> Tensor:
        """Return what the first rank has in place of these few numbers; raises as `add_up` does."""
        return self._exchange(numbers.flatten())[0].clone().view(numbers.shape)

    def least(self, number: int) -> int:
        """Return the least of the ranks' numbers; raises as `add_up` does."""
        return int(self._exchange(torch.tensor([number])).min())

    def close(self) -> None:
        """Leave; the others notice with their next call."""
        for each in self._sockets:
            each.close()

    def _exchange(self, numbers: Tensor) -> Tensor:
        """Return every rank's numbers (ranks, n), until the call after the next."""
        side = self._sides[self._turn][:, : numbers.nbytes].view(numbers.dtype)
        self._turn = 1 - self._turn
        side[self.rank] = numbers
        try:
            for other in self._sockets:
                other.sendall(b"\0")
            has_all = all(other.recv(1) for other in self._sockets)
        except OSError as exc:
            raise ConnectionEnded from exc
        if not has_all:
            raise ConnectionEnded
        return side
