"""What the tests of models that embed or score share."""

from __future__ import annotations

import random

import pytest


@pytest.fixture
def texts() -> list[tuple[int, ...]]:
    """Random texts of very different lengths, two of them of one length."""
    numbers = random.Random(7)
    return [
        tuple(numbers.randrange(5, 95) for _ in range(length)) for length in (17, 1, 60, 33, 17, 4)
    ]
