"""Families that no bundled model has: their parameter counts equal those of the models instantiated.

`family_counts.json` holds configs (the library's defaults, and variants) and the parameters of the models that
transformers 5.23.0 builds from them on the meta device.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from exo_inference.planner import EngineParameters, explain, find_gpu, plan, read_architecture

COUNTS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("family_counts.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_a_family_is_counted_as_it_is_built(name: str) -> None:
    model = read_architecture(COUNTS[name]["config"], name=name)
    assert model.cannot_size is None
    assert model.num_parameters == COUNTS[name]["num_parameters"]


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_a_family_is_planned(name: str) -> None:
    model = read_architecture(COUNTS[name]["config"], name=name)
    result = plan(model, find_gpu("gpub300"), 1, EngineParameters(max_model_len=448))
    assert result.verdict == "fits"
    assert result.kv_bytes_per_token == model.kv_elements_per_token * 2


def test_every_request_to_whisper_holds_the_encoders_positions() -> None:
    model = read_architecture(COUNTS["whisper"]["config"], name="whisper")
    result = plan(model, find_gpu("L4"), 1, EngineParameters())
    assert result.max_model_len == 448
    block = 16 * 2 * 1280 * 2 * 32  # keys and values of 16 positions in 32 layers
    assert result.needed_kv_bytes_per_gpu == (448 // 16 + -(-1500 // 16)) * block
    assert any(step.title.endswith("attention to the encoder") for step in explain(result))


def test_layers_may_have_different_numbers_of_heads() -> None:
    name = next(name for name in COUNTS if name.startswith("laguna with"))
    model = read_architecture(COUNTS[name]["config"], name=name)
    rows = {
        w.out_features for layer in model.layers for w in layer.weights if w.path.endswith("q_proj")
    }
    assert rows == {48 * 128, 72 * 128}
