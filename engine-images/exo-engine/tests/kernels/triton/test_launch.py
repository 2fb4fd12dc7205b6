"""What launches are planned by: a GPU, and tiles."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import pytest
import torch
from exo_engine.kernels.triton import launch
from exo_engine.kernels.triton.launch import Target, tile_of
from triton import next_power_of_2

pytestmark = pytest.mark.gpu_kernels


def test_a_gpu_is_asked_once_what_it_is(monkeypatch):
    asked = []

    def properties(index: int) -> SimpleNamespace:
        asked.append(index)
        return SimpleNamespace(major=8 + index, minor=0, multi_processor_count=100)

    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    launch._of_gpu.cache_clear()
    devices = [torch.device(name) for name in ("cuda:0", "cuda:1", "cuda", "cuda:0", "cuda:1")]
    found = [Target.of(device) for device in devices]
    launch._of_gpu.cache_clear()
    assert [each.capability for each in found] == [80, 90, 90, 80, 90]
    assert asked == [0, 1]


def test_tiles_are_powers_of_two():
    for size, least in product((*range(130), 4095, 4096, 4097), (1, 2, 16, 128)):
        assert tile_of(size, least) == max(next_power_of_2(size), least)
