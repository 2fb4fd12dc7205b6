"""The generator gives Random123's known answers and behaves as uniform numbers should."""

from __future__ import annotations

import numpy as np
import pytest
from exo_engine.sampling.random_numbers import philox, uniform


def words(*values: int):
    return tuple(np.array([value], dtype=np.uint64) for value in values)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        pytest.param(
            (0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8), id="zeros"
        ),
        pytest.param(
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
            id="ones",
        ),
        pytest.param(
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
            id="pi",
        ),
    ],
)
def test_known_answers_of_random123(counter, key, expected):
    assert tuple(int(word[0]) for word in philox(words(*counter), words(*key))) == expected


def test_numbers_are_uniform_and_depend_on_nothing_but_key_and_counter():
    counters = np.arange(20000, dtype=np.uint64)
    numbers = uniform(np.full(20000, 2**63 + 5, dtype=np.uint64), counters)
    assert 0 <= numbers.min() < 0.001
    assert 0.999 < numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.01
    alone = uniform(np.array([2**63 + 5], dtype=np.uint64), counters[777:778])
    assert alone[0] == numbers[777]
    assert len(np.unique(numbers)) == 20000
