"""What comes out of the machines."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Content:
    """What the model says to the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What it thought before."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool."""

    name: str
    arguments: str
    """JSON; only its beginning where `Arguments` follow."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the last call's arguments."""

    text: str


Piece = Content | Reasoning | Call | Arguments


class AnswerParser(Protocol):
    """One answer, growing."""

    is_reasoning: bool
    """Whether what comes next is, as far as is known, thought rather than said."""

    def feed(self, text: str) -> list[Piece]:
        """Add text; return what is sure."""

    def finish(self) -> list[Piece]:
        """Return what was held back, when no more text will come."""


def join(pieces: Iterable[Piece]) -> list[Piece]:
    """Put neighbours of one kind together: content, reasoning, and a call with what follows of its arguments."""
    joined: list[Piece] = []
    for _, group in itertools.groupby(pieces, _Runs()):
        first, *more = group
        if more:
            field = "arguments" if isinstance(first, Call) else "text"
            text = getattr(first, field) + "".join(
                each.text for each in more if not isinstance(each, Call)
            )
            first = replace(first, **{field: text})
        joined.append(first)
    return joined


class _Runs:
    """Numbers pieces; neighbours that belong together have the same number."""

    def __init__(self) -> None:
        self._number = 0
        self._last: type | None = None

    def __call__(self, piece: Piece) -> int:
        continues = isinstance(piece, Arguments) or (
            type(piece) is self._last and not isinstance(piece, Call)
        )
        self._number += not continues
        self._last = type(piece)
        return self._number
