"""What a device has computed is noted when it has, not when it was told."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from exo_engine import pulse
from exo_engine.core.graphs import device
from exo_engine.core.graphs.device import CudaOps, Marks


class Layer:
    """A mark that a device has not got to until it is let there."""

    def __init__(self) -> None:
        self.was_asked, self.is_computed = threading.Event(), threading.Event()

    def query(self) -> bool:
        self.was_asked.set()
        return self.is_computed.wait(0)


def test_layers_are_noted_as_the_device_gets_to_them(monkeypatch):
    noted = threading.Semaphore(0)
    monkeypatch.setattr(pulse.OWN, "count_layer", noted.release)
    marks, layers = Marks(), [Layer(), Layer()]
    for layer in layers:
        marks.add(layer)
    for layer in layers:
        assert layer.was_asked.wait(30)
        assert not noted.acquire(blocking=False)
        layer.is_computed.set()
        assert noted.acquire(timeout=30)


def test_marks_of_a_device_that_has_failed_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failed:
        def query(self) -> bool:
            raise RuntimeError("an illegal memory access was encountered")

    noted = threading.Semaphore(0)
    monkeypatch.setattr(pulse.OWN, "count_layer", noted.release)
    marks, last = Marks(), Layer()
    last.is_computed.set()
    for mark in (Failed(), Failed(), last):
        marks.add(mark)
    assert noted.acquire(timeout=30)
    assert not noted.acquire(blocking=False)


def test_a_capture_bears_that_another_thread_asks_for_marks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of CUDA's modes "global", the default, fails where any thread queries an event meanwhile."""
    asked: list[dict[str, object]] = []
    stream = SimpleNamespace(wait_stream=lambda other: None)

    def graph(captured: object, **options: object) -> nullcontext[None]:
        asked.append(options)
        return nullcontext()

    cuda = SimpleNamespace(
        Stream=lambda on: stream,
        current_stream=lambda on: stream,
        stream=lambda other: nullcontext(),
        CUDAGraph=lambda: SimpleNamespace(pool=lambda: 1, replay=None),
        graph=graph,
    )
    monkeypatch.setattr(device, "torch", SimpleNamespace(cuda=cuda))
    ops = CudaOps(SimpleNamespace(type="cuda"))
    for _ in range(2):
        ops.capture(tuple)
    assert {each["capture_error_mode"] for each in asked} == {"thread_local"}
    assert [each["pool"] for each in asked] == [None, 1], "the second has the memory of the first"


def test_a_copy_to_the_host_waits_on_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what was told before it, and for nothing after; the host waits when it asks for the numbers."""
    told: list[str] = []

    class Side:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait_stream(self, other: Side) -> None:
            told.append(f"{self.name} waits for {other.name}")

    class Event:
        def record(self, stream: Side) -> None:
            told.append(f"{stream.name} has copied")

        def synchronize(self) -> None:
            told.append("the host waits")

    def told_on(stream: Side) -> nullcontext[None]:
        told.append(f"on {stream.name}")
        return nullcontext()

    cuda = SimpleNamespace(
        Stream=lambda on: Side("copies"),
        Event=Event,
        current_stream=lambda on: Side("steps"),
        stream=told_on,
    )
    held = SimpleNamespace(
        copy_=lambda numbers, non_blocking: told.append(f"copy, waiting: {not non_blocking}"),
        tolist=lambda: [7],
    )
    pinned: list[bool] = []
    double = SimpleNamespace(
        cuda=cuda, empty=lambda *_, dtype, pin_memory: pinned.append(pin_memory) or held
    )
    monkeypatch.setattr(device, "torch", double)
    numbers = SimpleNamespace(
        shape=(1,), dtype=None, record_stream=lambda stream: told.append(f"kept for {stream.name}")
    )
    fetched = CudaOps(SimpleNamespace(type="cuda")).fetch(numbers)
    assert pinned == [True]
    assert told == [
        "copies waits for steps", "on copies", "copy, waiting: False", "kept for copies", "copies has copied",
    ]  # fmt: skip
    assert fetched() == [7]
    assert told[5:] == ["the host waits"]
