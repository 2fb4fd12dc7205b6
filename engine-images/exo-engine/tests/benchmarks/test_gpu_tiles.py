"""The script that times tiles has each of them give the numbers of the one that is taken, here under the interpreter."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from exo_engine.kernels.triton import attention

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import gpu_tiles
from gpu.setting import Setting

pytestmark = pytest.mark.gpu_kernels


@pytest.fixture
def setting(monkeypatch) -> Setting:
    monkeypatch.setattr(Setting, "seconds", lambda self, work, **_: 1e-6)
    return Setting(torch.device("cpu"), is_small=True)


@pytest.mark.parametrize("name", list(gpu_tiles.WORKS))
def test_every_tile_gives_the_numbers_of_the_one_that_is_taken(name, setting):
    choose, rows = attention.choose_tiles, list(gpu_tiles.WORKS[name](setting))
    timed = [row for row in rows if row["tile"] != "PyTorch's"]
    assert all(row["off"] < 1e-2 for row in timed)
    works = list(dict.fromkeys(row["work"] for row in timed))
    assert [row["work"] for row in timed if row["taken"]] == works
    assert len(works) == {"attention": 6, "row": 1, "fp8": 2}[name]
    assert attention.choose_tiles is choose


def test_a_tile_that_fails_is_told(setting):
    def fail():
        raise RuntimeError("out of resource")

    row = gpu_tiles._Work(setting, "some work", torch.zeros(2)).time({"keys": 1}, fail)
    assert row["error"] == "RuntimeError: out of resource"
    assert "seconds" not in row
