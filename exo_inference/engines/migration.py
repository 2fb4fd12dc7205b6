"""Take an argument vector from one vLLM release to another: what changes, and the new flags. Pure.

The command `params migrate` and updates with another version call this. Works in both directions;
what the flags say is kept, and where that is not possible it is said.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from exo_inference.engines.flags.argument_vector import Use, split
from exo_inference.engines.flags.catalogue import ReleaseFlags, flags_of
from exo_inference.engines.flags.json_keys import RENAMED_KEYS
from exo_inference.engines.flags.problems import ParameterProblem
from exo_inference.engines.flags.reader import read_vector
from exo_inference.engines.flags.successors import SUCCESSORS, rewrite_removed
from exo_inference.engines.vllm import PLATFORM_OWNED

_ENABLE_LOGS = ("--enable-log-requests",)


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is different in the other release.

    Attributes:
        kind: `removed` (left out), `renamed` (written otherwise), `default` (not set here, and its
            default is another one) or `refused` (kept, and the other release does not take it).
        flag: as it was written; for defaults as it could be.
        detail: for people.
    """

    kind: str
    flag: str
    detail: str


@dataclass(frozen=True, slots=True)
class Migration:
    """The rewritten flags with everything that changes.

    Attributes:
        flags: the argument vector for the other release.
        changes: in the order of the flags, then the defaults.
    """

    flags: tuple[str, ...]
    changes: tuple[Change, ...]

    @property
    def is_clean(self) -> bool:
        """Whether the other release takes the rewritten flags."""
        return all(change.kind != "refused" for change in self.changes)


def migrate(flags: Sequence[str], from_version: str, to_version: str) -> Migration:
    """Rewrite flags of one release for another one.

    Args:
        flags: an argument vector for the first release.
        from_version: the release whose flags they are.
        to_version: the other release, older or newer.

    Raises:
        UnknownRelease
    """
    old, new = flags_of(from_version), flags_of(to_version)
    vector = split(flags, old)
    written: dict[int, tuple[str, ...]] = {index: (flags[index],) for index in vector.strays}
    changes: list[Change] = []
    for use in vector.uses:
        items = tuple(flags[use.index : use.index + use.items])
        rewritten, change = _rewrite(use, items, new)
        written[use.index] = rewritten
        changes += [change] if change is not None else []
    result = tuple(item for index in sorted(written) for item in written[index])
    changes += _refusals(result, flags, old, new)
    changes += _defaults(split(result, new).uses, old, new)
    return Migration(result, tuple(changes))


def _rewrite(
    use: Use, items: tuple[str, ...], new: ReleaseFlags
) -> tuple[tuple[str, ...], Change | None]:
    """Return the items for the new release, and what changed if anything did."""
    flag = use.flag
    if flag is None or flag.name in new.by_name:
        return _respell(use, items, new)
    successor = SUCCESSORS.get(flag.name)
    written = rewrite_removed(flag.name, tuple(value.text for value in use.values), new)
    if use.negated:
        written = _ENABLE_LOGS if flag.name == "disable-log-requests" else None
    note = f": {successor.note}" if successor is not None and successor.note else ""
    if written:
        text = f"{use.spelling} becomes {' '.join(written)}{note}"
        return written, Change("renamed", use.spelling, text)
    text = f"{use.spelling} is not in {new.named} and is left out{note}"
    return (), Change("removed", use.spelling, text)


def _respell(
    use: Use, items: tuple[str, ...], new: ReleaseFlags
) -> tuple[tuple[str, ...], Change | None]:
    """Keep a flag that the new release has, under a spelling that it has."""
    known = use.spelling in new.by_spelling or use.spelling in new.by_no_form
    if use.flag is None:
        return items, None
    if use.spelling == "-O" and use.path:  # keys of compilation, which -cc takes now
        items = (items[0].replace("-O", "-cc", 1), *items[1:])
        renamed = _rename_keys(use, items, new) or items
        text = f"{use.spelling}.{'.'.join(use.path)} becomes {renamed[0].partition('=')[0]}"
        return renamed, Change("renamed", "-O", text)
    if known:
        rewritten = _rename_keys(use, items, new)
        if rewritten is None:
            return items, None
        text = f"{' '.join(items)} becomes {' '.join(rewritten)}: a key has a new name"
        return rewritten, Change("renamed", use.spelling, text)
    flag = new.by_name[use.flag.name].spellings[0]
    first = items[0].replace(use.spelling, flag, 1)
    return (first, *items[1:]), Change("renamed", use.spelling, f"{use.spelling} becomes {flag}")


def _rename_keys(use: Use, items: tuple[str, ...], new: ReleaseFlags) -> tuple[str, ...] | None:
    """Return the items with the keys of a JSON object that are called otherwise now; None if none."""
    assert use.flag is not None, "only flags have keys"
    keys = new.by_name[use.flag.name].keys
    names = {
        old: later
        for (flag, old), later in RENAMED_KEYS.items()
        if flag == use.flag.name and old not in keys and later in keys
    }
    if use.path and use.path[0] in names:
        first = items[0].replace(f".{use.path[0]}", f".{names[use.path[0]]}", 1)
        return (first, *items[1:])
    if use.path or not use.values or not names:
        return None
    text = use.values[0].text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None  # the check says what is wrong with it
    if not isinstance(value, dict) or names.keys().isdisjoint(value):
        return None
    written = json.dumps({names.get(key, key): each for key, each in value.items()})
    return tuple(item.replace(text, written) for item in items)


def _refusals(
    result: Sequence[str], flags: Sequence[str], old: ReleaseFlags, new: ReleaseFlags
) -> Iterator[Change]:
    """Yield what the new release does not take; what was wrong before is said as such."""
    before = {_key(p, flags) for p in read_vector(flags, old, PLATFORM_OWNED).problems}
    for problem in read_vector(result, new, PLATFORM_OWNED).problems:
        earlier = f"in {old.named} already: " if _key(problem, result) in before else ""
        yield Change("refused", problem.flag or result[problem.index], earlier + problem.detail)


def _key(problem: ParameterProblem, items: Sequence[str]) -> tuple[str, str, str]:
    return problem.flag, problem.reason, items[problem.index]


def _defaults(uses: Sequence[Use], old: ReleaseFlags, new: ReleaseFlags) -> Iterator[Change]:
    """Yield flags that are not set and mean something else in the new release."""
    is_set = {use.flag.name for use in uses if use.flag is not None}
    for flag in new.flags:
        was = old.by_name.get(flag.name)
        if was is None or flag.name in is_set or flag.name in PLATFORM_OWNED:
            continue
        if was.default != flag.default:
            text = f"{flag.spellings[0]} is not set; its default was {_say(was.default)} and is {_say(flag.default)}"
            yield Change("default", flag.spellings[0], text)


def _say(default: str) -> str:
    return {"None": "left to the engine", "": "empty"}.get(default, default)
