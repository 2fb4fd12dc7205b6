"""Split an argument vector into uses of flags, as the engine's own parser would. Pure.

Knows `--flag value`, `--flag=value`, `_` for `-`, short forms (`-tp 2`, `-O3`), `--no-flag`, several
values in a row, and keys of JSON objects one by one (`-cc.mode 3`, `--hf-overrides.a.b=1`, `+=` to
add to a list); which of these an engine knows, its dialect and its flags say. What is neither flag nor
value comes back as a stray item. Values are not judged here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from exo_inference.engines.flags.catalogue import Flag, ReleaseFlags

TRUE_WORDS = frozenset({"true", "1", "yes", "on"})
BOOLEAN_WORDS = TRUE_WORDS | {"false", "0", "no", "off"}

_NUMBER = re.compile(r"-[0-9]+(\.[0-9]*)?|-\.[0-9]+")
_OPTIMIZATION = "--optimization-level"


@dataclass(frozen=True, slots=True)
class Value:
    """One value, with the index of the item that holds it."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Use:
    """One flag as it was written.

    Attributes:
        index: of the item with the flag.
        spelling: as the engine reads it, with `-` for `_`, without value and path.
        flag: what it is in this release; None if it is no flag there.
        negated: written in its `--no-` form.
        values: what belongs to it.
        attached: the value stands in the same item, after `=`.
        path: keys after dots, for one key of a JSON object.
        items: how many items the use takes.
    """

    index: int
    spelling: str
    flag: Flag | None
    negated: bool = False
    values: tuple[Value, ...] = ()
    attached: bool = False
    path: tuple[str, ...] = ()
    items: int = 1


@dataclass(frozen=True, slots=True)
class Vector:
    """The whole vector: uses in order, and the indexes of items that belong to none."""

    uses: tuple[Use, ...]
    strays: tuple[int, ...]


def split(items: Sequence[str], release: ReleaseFlags) -> Vector:
    """Return the uses of flags in a vector."""
    uses: list[Use] = []
    strays: list[int] = []
    index = 0
    while index < len(items):
        if not is_flag(items[index], release):
            strays.append(index)
            index += 1
            continue
        use = _read(items, index, release)
        uses.append(use)
        index += use.items
    return Vector(tuple(uses), tuple(strays))


def merge(flags: Sequence[str], changes: Sequence[str], release: ReleaseFlags) -> tuple[str, ...]:
    """Return the flags with others set: each takes the place of its older value."""
    wanted = {_name(use) for use in split(changes, release).uses}
    kept: list[str] = []
    vector = split(flags, release)
    pieces = [(use.index, use.items, _name(use) in wanted) for use in vector.uses]
    pieces += [(index, 1, False) for index in vector.strays]
    for index, count, is_replaced in sorted(pieces):
        kept += [] if is_replaced else flags[index : index + count]
    return (*kept, *changes)


def _name(use: Use) -> str:
    return use.flag.name if use.flag is not None else use.spelling.removeprefix("--no-").strip("-")


def is_flag(item: str, release: ReleaseFlags) -> bool:
    """Say whether an item is read as a flag and not as a value; negative numbers are values."""
    if release.dialect.dashes:
        return len(item) > 1 and item[0] == "-" and not _NUMBER.fullmatch(item)
    return item.startswith("--") or item.partition("=")[0] in release.by_spelling


def normalise(head: str, release: ReleaseFlags) -> str:
    """Return a long flag with `-` for `_` where the engine reads it so; others as they are."""
    is_long = head.startswith("--")
    return head.replace("_", "-") if is_long and release.dialect.underscores else head


def _read(items: Sequence[str], index: int, release: ReleaseFlags) -> Use:
    item = items[index]
    if item.startswith("-O") and _OPTIMIZATION in release.by_spelling:
        return _read_level(items, index, release)
    head, equals, text = item.partition("=")
    base, dot, rest = head.partition(".") if release.dialect.keys else (head, "", "")
    spelling = normalise(base, release)
    path = tuple(key for key in rest.rstrip("+").split(".")) if dot else ()
    negative = release.by_no_form.get(spelling)
    flag = release.by_spelling.get(spelling) or negative
    if flag is None and _has_attached_value(item, release):
        flag, spelling, equals, text = release.by_spelling[item[:2]], item[:2], "=", item[2:]
    values = (
        (Value(index, text),)
        if equals
        else _following(items, index, release, flag, is_key=bool(path))
    )
    return Use(
        index=index,
        spelling=spelling,
        flag=flag,
        negated=negative is not None,
        values=values,
        attached=bool(equals),
        path=path,
        items=1 if equals else 1 + len(values),
    )


def _has_attached_value(item: str, release: ReleaseFlags) -> bool:
    """`-n2`: argparse takes the value of one-letter flags without anything between."""
    return (
        item[1] != "-" and len(item) > 2 and item[2].isdigit() and item[:2] in release.by_spelling
    )


def _following(
    items: Sequence[str], index: int, release: ReleaseFlags, flag: Flag | None, *, is_key: bool
) -> tuple[Value, ...]:
    """Return the values after a flag: none, so many as it takes, or all up to the next flag."""
    count: int | None = 1
    if (
        flag is not None and not is_key
    ):  # of no flag, the next item is more likely its value than astray
        count = 0 if flag.type == "boolean" else flag.num_values
    last = len(items) if count is None else min(len(items), index + 1 + count)
    end = index + 1
    if flag is not None and count == 0 and release.dialect.takes_word_after:
        last = end + (end < len(items) and items[end].lower() in BOOLEAN_WORDS)
    while end < last and not is_flag(items[end], release):
        end += 1
    return tuple(Value(i, items[i]) for i in range(index + 1, end))


def _read_level(items: Sequence[str], index: int, release: ReleaseFlags) -> Use:
    """Read `-O3`, `-O=3` and `-O 3`; `-O.key` set compilation in 0.12.0 and is gone."""
    item = items[index]
    rest = item[2:]
    flag = release.by_spelling.get(_OPTIMIZATION)
    if rest.startswith("."):
        key, equals, text = rest[1:].partition("=")
        values = (
            (Value(index, text),)
            if equals
            else _following(items, index, release, None, is_key=True)
        )
        compilation = release.by_spelling["-cc"] if release.listed == "0.12.0" else None
        path = tuple(key.split("."))
        size = 1 if equals else 1 + len(values)
        return Use(index, "-O", compilation, False, values, bool(equals), path, size)
    if rest:
        return Use(
            index,
            _OPTIMIZATION,
            flag,
            values=(Value(index, rest.removeprefix("=")),),
            attached=True,
        )
    after = items[index + 1] if index + 1 < len(items) else None
    if after is not None and after.isdigit():  # 9 is no level, and is meant as one
        return Use(index, _OPTIMIZATION, flag, values=(Value(index + 1, after),), items=2)
    return Use(index, _OPTIMIZATION, flag)
