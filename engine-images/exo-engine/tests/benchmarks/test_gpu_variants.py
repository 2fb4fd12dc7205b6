"""Guesses are verified from graphs on a device that has such, as the part of `make gpu-check` asks for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from exo_engine.core import runner

from ..fake_gpu import FakeGpu

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from gpu import variants
from random_models import FAMILIES, write_model


@pytest.mark.slow
def test_guesses_are_verified_from_graphs_of_four_tokens(tmp_path, monkeypatch):
    gpu, make = FakeGpu(), variants._make
    monkeypatch.setattr(runner, "device_ops", lambda device: gpu)

    def make_with_graphs(model, device, options):
        is_guessing = options.get("async_scheduling") is False and device == "fake"
        own = {"attention_backend": "triton", "max_model_len": 32} if is_guessing else {}
        return make(model, "cpu", {**options, **own})

    monkeypatch.setattr(variants, "_make", make_with_graphs)
    monkeypatch.setattr(variants, "_NUM_TOKENS", 6)
    config = {**FAMILIES["llama"], "num_hidden_layers": 1}
    model = write_model(tmp_path, config, seed=5)
    rows = list(variants._compare_guesses(model, "fake", [[5, 6, 7, 8]]))
    assert all(row["ok"] and row["graphs"] for row in rows), rows
    assert gpu.num_replayed > 0
