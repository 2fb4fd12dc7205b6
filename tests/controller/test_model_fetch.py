"""How far a fetch is, and why it failed, in words."""

from __future__ import annotations

import pytest

from exo_inference.controller.reconcile.model_fetch import failure_of, format_size
from exo_inference.hub.base import SourceUnreachable
from exo_inference.resources import find_condition


@pytest.mark.parametrize(
    ("present", "total", "words"),
    [
        (int(1.2 * 1024**3), 15 * 1024**3, "1.2 of 15.0 GiB (7 %)"),
        (0, 3 * 1024**2, "0.0 of 3.0 MiB (0 %)"),
        (2048, 2048, "2.0 of 2.0 KiB (100 %)"),
        (5, 100, "5 of 100 B (5 %)"),
        (0, 0, "0 of 0 B (100 %)"),
        (200, 100, "200 of 100 B (100 %)"),
    ],
)
def test_sizes_are_said_in_the_unit_of_the_whole(present: int, total: int, words: str) -> None:
    assert format_size(present, total) == words


@pytest.mark.parametrize(("is_resolved", "delay"), [(False, 5.0), (True, 5.0), (False, None)])
def test_the_condition_that_tools_look_at_says_why_a_model_is_not_there(
    is_resolved: bool, delay: float | None
) -> None:
    error = SourceUnreachable("the Hub cannot be reached")
    found = failure_of(error, is_resolved=is_resolved, delay=delay)
    ready = find_condition(found, "Ready")
    assert ready is not None
    assert "the Hub cannot be reached" in ready.message
    assert ("trying again in 5 s" in ready.message) == (delay is not None)
