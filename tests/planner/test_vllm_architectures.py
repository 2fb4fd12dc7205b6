"""How many of vLLM's architectures are planned offline: of its whole registry, and of 40 that were drawn by hash.

`vllm_architectures.json` has the names of one release's registry, and for each the checkpoint that vLLM's own tests
take, or the published one where they name none that can be had. Not among them: heads that draft for another model, classes that wrap any model of transformers, and what vLLM
had once or has from plugins.
"""

from __future__ import annotations

import re
from pathlib import Path

from scripts.vllm_catalogue.count_planned import FORTY, NAMES, REGISTRY, forties, why_not_planned

DRAWN = NAMES[:FORTY]
NOT_PLANNED = {"GraniteMoeSharedForCausalLM", "InternS1ProForConditionalGeneration"}
PAGE = Path(__file__).parents[2].joinpath("docs/concepts/planning.md").read_text("utf-8")


def test_what_is_drawn_is_planned_offline_but_for_those_that_are_named() -> None:
    assert {name for name in DRAWN if why_not_planned(name) is not None} == NOT_PLANNED


def test_every_architecture_has_a_checkpoint_or_none_is_known() -> None:
    assert len(DRAWN) == FORTY
    assert REGISTRY["checkpoints"].keys() == set(NAMES)


def test_the_page_says_how_many_of_the_registry_are_planned() -> None:
    counted = forties()
    said = re.search(r"(\d+) of (\d+) architectures", PAGE)
    assert said is not None
    assert (int(said[1]), int(said[2])) == (sum(planned for planned, _ in counted), len(NAMES))
    shares = ", ".join(f"{planned} of {size}" for planned, size in counted)
    assert shares in " ".join(PAGE.split())
    for name in NOT_PLANNED:
        assert f"`{name}`" in PAGE


def test_what_was_not_drawn_is_planned_nearly_as_often() -> None:
    for planned, size in forties()[1:]:
        assert planned / size > 0.6
