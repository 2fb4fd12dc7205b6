"""The flag that was probably meant is the one that `difflib` finds, which compares with all of them."""

from __future__ import annotations

import difflib
import random

import pytest

from exo_inference.engines import ENGINES, get_engine
from exo_inference.engines.flags.suggestions import _FAR, _nearest


def _plain(bare: str, names: tuple[str, ...]) -> tuple[str, float]:
    found = next(iter(difflib.get_close_matches(bare, names, n=1, cutoff=_FAR)), "")
    return found, difflib.SequenceMatcher(None, found, bare).ratio() if found else 0.0


def _misspelt(name: str, numbers: random.Random) -> str:
    """Return a name with some letters dropped, changed or doubled, or half of another before it."""
    letters = list(name)
    for _ in range(numbers.randrange(1, 5)):
        at = numbers.randrange(len(letters))
        letters[at] = numbers.choice(["", "-", "x", letters[at] * 2])
    return "".join(letters)[numbers.choice([0, 0, len(name) // 3]) :]


@pytest.mark.parametrize("engine", ENGINES)
def test_nearest_name_is_that_of_difflib(engine: str) -> None:
    numbers = random.Random(engine)
    names = tuple(parameter.name for parameter in get_engine(engine).parameters())
    for _ in range(60):
        bare = _misspelt(numbers.choice(names), numbers)
        assert _nearest(bare, names) == _plain(bare, names)


@pytest.mark.parametrize("names", [("ab", "ba"), ("ba", "ab"), ("xyz",), ("abcde", "abcdf"), ()])
def test_ties_and_no_name_at_all(names: tuple[str, ...]) -> None:
    for bare in ("ab", "ba", "aab", "abcd", "abcdg", "q"):
        assert _nearest(bare, names) == _plain(bare, names)
