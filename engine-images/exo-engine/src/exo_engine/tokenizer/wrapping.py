"""What a tokenizer puts around one text, and between two: found out from what it does to two short ones.

So texts are tokenized bare and can be cut to a length before marks come around them, as `transformers` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from exo_engine.errors import ModelUnusable

Side = Literal["left", "right"]
Marks = tuple[int, ...]
_MOST_PARTS = 64
"""Of a template, and ids of one of its marks; those in use have 5 and 1."""


@dataclass(frozen=True, slots=True)
class Wrapping:
    """Token ids around bare texts."""

    single: tuple[Marks, Marks]
    """Before and behind one text."""
    pair: tuple[Marks, Marks, Marks]
    """Before, between and behind two."""
    num_first: int | None = None
    """How many of those between belong to the first text, for a model that is told; None: it is not."""

    def one(self, text: Sequence[int], most: int | None = None, side: Side = "right") -> list[int]:
        """Return one text with its marks, cut so that all have at most `most` tokens."""
        before, behind = self.single
        if most is not None:
            text = cut(text, most - len(before) - len(behind), side)
        return [*before, *text, *behind]

    def two(
        self,
        first: Sequence[int],
        second: Sequence[int],
        most: int | None = None,
        side: Side = "right",
    ) -> tuple[list[int], int | None]:
        """Return two texts with their marks, and from where on the second is; the longer is cut first."""
        before, between, behind = self.pair
        if most is not None:
            room = most - len(before) - len(between) - len(behind)
            sizes = shares(len(first), len(second), room)
            first, second = cut(first, sizes[0], side), cut(second, sizes[1], side)
        tokens = [*before, *first, *between, *second, *behind]
        if self.num_first is None:
            return tokens, None
        return tokens, len(before) + len(first) + self.num_first

    @property
    def num_marks(self) -> int:
        """Most tokens that are added."""
        return max(sum(map(len, self.single)), sum(map(len, self.pair)))


def check_wrapping(post_processor: Any, path: Path) -> None:
    """Refuse what puts more around texts than any tokenizer in use.

    Args:
        post_processor: of tokenizer.json.
        path: of that file, for messages.

    Raises:
        ModelUnusable: it does.
    """
    waiting = [post_processor]
    while waiting:
        each = waiting.pop()
        if not isinstance(each, dict):
            continue
        listed = each.get("processors")
        waiting += listed if isinstance(listed, list) else []
        marks = each.get("special_tokens") or {}  # of the form that the library took
        parts = [each.get("single"), each.get("pair"), *(mark["ids"] for mark in marks.values())]
        if any(isinstance(part, list) and len(part) > _MOST_PARTS for part in parts):
            raise ModelUnusable(
                f"cannot use {path}: it puts more than {_MOST_PARTS} tokens around a text",
                hint="Choose another model.",
            )


def cut(text: Sequence[int], most: int, side: Side) -> Sequence[int]:
    """Return at most so many tokens: the first ones, or with `left` the last ones."""
    if len(text) <= most:
        return text
    most = max(most, 0)
    return text[:most] if side == "right" else text[len(text) - most :]


def shares(first: int, second: int, room: int) -> tuple[int, int]:
    """Return to how many tokens each of two texts is cut: the longer one first, then both alike."""
    short, long = sorted((first, second))
    if short + long > room:
        long = max(short, room - short)
    if short + long > room:
        short = max(room, 0) // 2
        long = max(room, 0) - short
    return (short, long) if first <= second else (long, short)


def wrapping_of(backend: Any) -> Wrapping:
    """Find out what a `tokenizers.Tokenizer` puts around texts."""
    one, two = backend.encode("a"), backend.encode("a", "a")
    before, _, behind = _around(one.ids, one.sequence_ids, 1)
    pair = _around(two.ids, two.sequence_ids, 2)
    if not any(two.type_ids):
        return Wrapping((before, behind), pair)
    start = len(pair[0]) + two.sequence_ids.count(0)
    between = two.type_ids[start : start + len(pair[1])]
    return Wrapping((before, behind), pair, between.count(0))


def _around(ids: list[int], owners: list[int | None], num_texts: int) -> tuple[Marks, Marks, Marks]:
    """Return the ids before, between and behind texts, whose tokens `owners` numbers."""
    first = [at for at, owner in enumerate(owners) if owner == 0]
    last = [at for at, owner in enumerate(owners) if owner == num_texts - 1]
    if not first or not last:  # a text of no tokens: all marks are before it
        return tuple(ids), (), ()
    between = ids[first[-1] + 1 : last[0]] if num_texts == 2 else []
    return tuple(ids[: first[0]]), tuple(between), tuple(ids[last[-1] + 1 :])
