"""What a device has computed is noted when it has, not when it was told."""

from __future__ import annotations

import threading

from exo_engine import pulse
from exo_engine.core.graphs.device import Marks


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
