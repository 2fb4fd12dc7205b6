"""The table of what sets model types apart in SGLang, by release."""

from __future__ import annotations

import pytest

from exo_inference.planner.releases.sglang_families import SGLANG_FAMILIES, Span, types_with
from exo_inference.planner.static.prompt_graphs import prompt_graphs
from exo_inference.planner.static.share import static_share


def test_a_span_begins_with_its_first_release_and_ends_before_its_last() -> None:
    span = Span((0, 5, 8), (0, 5, 10))
    has = [span.has((0, 5, patch)) for patch in (7, 8, 9, 10)]
    assert has == [False, True, True, False]
    assert Span().has((0, 4, 0))


@pytest.mark.parametrize(
    ("patch", "windowed"),
    [
        (7, set()),
        (8, {"gpt_oss", "llama4", "llama4_text"}),
        (9, {"gpt_oss", "llama4", "llama4_text", "mimo_v2_flash", "step3p5"}),
        (12, {"gemma4", "gemma4_text", "laguna"}),
        (15, {"step3p7"}),
    ],
)
def test_which_layers_with_windows_have_a_pool(patch: int, windowed: set[str]) -> None:
    found = static_share((0, 5, patch)).windowed
    assert found >= windowed
    assert bool(found) == bool(windowed)
    assert not windowed or not static_share((0, 5, patch - 1)).windowed >= windowed


def test_which_prompts_are_captured() -> None:
    assert prompt_graphs((0, 5, 9)) is None
    first, compiled, newest = (prompt_graphs((0, 5, patch)) for patch in (10, 16, 18))
    assert first is not None
    assert first.never == {"deepseek_v32", "glm_moe_dsa", "qwen3_next"}
    assert compiled is not None
    assert compiled.compiled == {"kimi_k25", "minimax_m3"}
    assert newest is not None
    assert newest.compiled == {"minimax_m3"}
    assert newest.with_images == compiled.with_images | {"kimi_k3", "muse_glimmer"}


def test_rows_are_in_order_and_say_something() -> None:
    assert list(SGLANG_FAMILIES) == sorted(SGLANG_FAMILIES)
    assert types_with("stateful", (0, 5, 14)) > types_with("buffered", (0, 5, 14))
