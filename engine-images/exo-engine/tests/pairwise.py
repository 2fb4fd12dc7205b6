"""Chooses few of many combinations of settings, among which every pair of two settings' values still is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

Case = tuple[Any, ...]
"""A value of each setting, in one order."""


def combinations(case: Case, size: int) -> set[tuple[Any, ...]]:
    """Return what a case combines: single values of settings, or pairs of them, by their places."""
    return set(itertools.combinations(enumerate(case), size))


def few_with_every_combination(cases: Sequence[Case], size: int) -> list[Case]:
    """Return few of the cases, which combine all that all of them do."""
    return few_with_everything(cases, lambda case: combinations(case, size))


def few_with_everything(cases: Sequence[Case], held_by: Callable[[Case], set[Any]]) -> list[Case]:
    """Return few of the cases, which hold together all that all of them do."""
    held = {case: held_by(case) for case in cases}
    wanted, chosen = set().union(*held.values()), []
    while wanted:
        best = max(held, key=lambda case: len(wanted & held[case]))
        wanted -= held.pop(best)
        chosen.append(best)
    return chosen
