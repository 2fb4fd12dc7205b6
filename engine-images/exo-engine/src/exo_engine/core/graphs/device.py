"""What the runner needs of a device beyond arithmetic: graphs, and copies that nobody waits for.

A GPU works by itself once it was told; the host waits for it in one place, when it asks for the tokens of a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol

import torch
from torch import Tensor

from exo_engine import pulse

_LOOK_SECONDS = 0.05
"""How often it is asked how far the device has got."""

Outputs = tuple[Tensor, ...]
Fetched = Callable[[], list[int]]
"""Called once: waits for the copy, returns the numbers."""


@dataclass(frozen=True, slots=True)
class Captured:
    """Work that the device repeats by itself."""

    replay: Callable[[], None]
    outputs: Outputs
    """What it gives; each repetition overwrites it."""


class DeviceOps(Protocol):
    """One device, or a double of one."""

    can_capture: bool
    """Whether it has graphs."""

    def upload(self, numbers: Tensor, target: Tensor) -> None:
        """Copy numbers (n,) from the host to the beginning of `target`, behind what was told before."""

    def fetch(self, numbers: Tensor) -> Fetched:
        """Begin to copy (n,) to the host as it is after what was told up to now."""

    def note_layer(self) -> None:
        """Have it noted (`exo_engine.pulse`) when the layer told last is computed."""

    def capture(self, run: Callable[[], Outputs]) -> Captured:
        """Return what `run` tells the device now, to be repeated; nothing of the host is asked again."""

    def used_bytes(self) -> int:
        """Return how much of the device's memory is in use, by anybody, that of graphs included; it is waited for."""


class PlainOps:
    """A device that computes while it is told, as a CPU does."""

    can_capture = False

    def upload(self, numbers: Tensor, target: Tensor) -> None:
        """See `DeviceOps.upload`."""
        target[: len(numbers)].copy_(numbers)

    def fetch(self, numbers: Tensor) -> Fetched:
        """See `DeviceOps.fetch`."""
        return numbers.clone().tolist

    def note_layer(self) -> None:
        """See `DeviceOps.note_layer`."""
        pulse.OWN.count_layer()

    def capture(self, run: Callable[[], Outputs]) -> Captured:
        """See `DeviceOps.capture`."""
        raise NotImplementedError("no graphs here: see can_capture")

    def used_bytes(self) -> int:
        """See `DeviceOps.used_bytes`; nothing is captured whose memory could be asked for."""
        return 0


class Mark(Protocol):
    """A place in what the device was told."""

    def query(self) -> bool:
        """Whether the device has got there."""


class Marks:
    """Notes from a thread of its own how far the device has got, while the host only waits for the step."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[Mark] = SimpleQueue()
        self._thread: Thread | None = None

    def add(self, mark: Mark) -> None:
        """Watch for a mark; they come in the device's order."""
        self._waiting.put(mark)
        if self._thread is None:
            self._thread = Thread(target=self._watch, name="device-marks", daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        while True:
            mark = self._waiting.get()
            with suppress(RuntimeError):  # the device has failed, as who waits for the step is told
                while not mark.query():
                    time.sleep(_LOOK_SECONDS)
                pulse.OWN.count_layer()


class CudaOps:
    """A CUDA GPU: graphs of one pool of memory, and a stream for copies to the host."""

    can_capture = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool: Any = None
        self._marks = Marks()

    def upload(self, numbers: Tensor, target: Tensor) -> None:
        """See `DeviceOps.upload`; the allocator keeps pinned memory until the copy is done."""
        target[: len(numbers)].copy_(numbers.pin_memory(), non_blocking=True)

    def fetch(self, numbers: Tensor) -> Fetched:
        """See `DeviceOps.fetch`: a step that is told afterwards is not waited for."""
        held = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        self._copies.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._copies):
            held.copy_(numbers, non_blocking=True)
            numbers.record_stream(self._copies)
            is_done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            is_done.record(self._copies)

        def wait() -> list[int]:
            is_done.synchronize()
            found: list[int] = held.tolist()
            return found

        return wait

    def note_layer(self) -> None:
        """See `DeviceOps.note_layer`; the layers of a graph are not noted, only its step."""
        if not torch.cuda.is_current_stream_capturing():
            mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
            mark.record(torch.cuda.current_stream(self._device))
            self._marks.add(mark)

    def capture(self, run: Callable[[], Outputs]) -> Captured:
        """See `DeviceOps.capture`: once to compile what is not compiled, then to be captured."""
        aside = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(aside):
            run()
        torch.cuda.current_stream(self._device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # The thread of the marks asks meanwhile how far the device is, which would end a capture of mode "global".
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            outputs = run()
        self._pool = graph.pool()
        return Captured(graph.replay, outputs)

    def used_bytes(self) -> int:
        """See `DeviceOps.used_bytes`; graphs take memory of the driver's, too, which the allocator does not know."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free


def device_ops(device: torch.device) -> DeviceOps:
    """Return what a device can do."""
    return CudaOps(device) if device.type == "cuda" else PlainOps()
