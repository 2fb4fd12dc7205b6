"""Where a part of `gpu_check.py` runs, and how it takes the time of what runs there."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a part runs."""

    device: torch.device
    is_small: bool

    def wait(self) -> None:
        """Wait for what the device was told."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object], *, times: int = 10) -> float:
        """Return the median time of some work; on a GPU without what the host takes to tell it, from a cold cache."""
        if self.device.type == "cuda":
            room = torch.empty(2**28, dtype=torch.uint8, device=self.device)
            both = (self._replayed([room.zero_, *found], times) for found in ([work], []))
            return next(both) - next(both)
        found = []
        for _ in range(times + 2):
            self.wait()
            begun = time.perf_counter()
            work()
            self.wait()
            found.append(time.perf_counter() - begun)
        return statistics.median(found[2:])

    def _replayed(self, works: list[Callable[[], object]], times: int) -> float:
        """Return the median time of all of these after one another, on a GPU that repeats them by itself."""
        for work in works:
            work()  # compiles
        graph, spans = torch.cuda.CUDAGraph(), []
        with torch.cuda.graph(graph):
            for _ in range(times):
                for work in works:
                    work()
        for _ in range(5):
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begun.record()
            graph.replay()
            ended.record()
            ended.synchronize()
            spans.append(begun.elapsed_time(ended) / 1000 / times)
        return statistics.median(spans[1:])
