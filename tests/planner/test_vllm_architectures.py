"""How many of vLLM's architectures are planned offline: 40 of its registry, drawn by hash.

`vllm_architectures.json` has the names of one release's registry, and for each the checkpoint that vLLM's own tests
take, or the published one where they name none that can be had. Not among them: heads that draft for another model, classes that wrap any model of transformers, and what vLLM
had once or has from plugins.
"""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

from exo_inference.errors import UsageError
from exo_inference.planner import EngineParameters, find_gpu, find_model, plan

REGISTRY: dict[str, Any] = json.loads(
    Path(__file__).with_name("vllm_architectures.json").read_text(encoding="utf-8")
)
NAMES = sorted({name for table in REGISTRY["tables"].values() for name in table})
DRAWN = sorted(NAMES, key=lambda name: sha256(name.encode()).hexdigest())[:40]
NOT_PLANNED = {"GraniteMoeSharedForCausalLM", "InternS1ProForConditionalGeneration"}


def _is_planned(checkpoint: str) -> bool:
    """Whether the checkpoint, named alone, has a plan with its own parameter count."""
    try:
        model = find_model(checkpoint)
    except UsageError:
        return False
    result = plan(model, find_gpu("B300"), 8, EngineParameters(tensor_parallel_size=8))
    return model.cannot_size is None and result.verdict != "unknown"


def test_what_is_drawn_is_planned_offline_but_for_those_that_are_named() -> None:
    planned = {name for name in DRAWN if _is_planned(REGISTRY["checkpoints"][name])}
    assert set(DRAWN) - planned == NOT_PLANNED


def test_every_drawn_architecture_has_a_checkpoint() -> None:
    assert len(DRAWN) == 40
    assert REGISTRY["checkpoints"].keys() >= set(DRAWN)


def test_the_page_says_how_many() -> None:
    page = Path(__file__).parents[2].joinpath("docs/concepts/planning.md").read_text("utf-8")
    said = re.search(r"(\d+) of 40 architectures", page)
    assert said is not None
    assert int(said[1]) == len(DRAWN) - len(NOT_PLANNED)
    for name in NOT_PLANNED:
        assert f"`{name}`" in page
