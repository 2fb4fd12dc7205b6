"""How far a fetch is, in words."""

from __future__ import annotations

import pytest

from exo_inference.controller.model_fetch import format_size


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
