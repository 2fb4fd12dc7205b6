"""The flags of the engines as data: what exists in a release, with its types and defaults.

Those of vLLM are loaded once from `catalog/vllm.json` (made by `scripts/vllm_catalogue/build.py`). The
checks, the search and the migration ask for one release with `flags_of` and get `ReleaseFlags`. A release
between two listed ones is judged as the nearest lower one. The other engines have one release each, which
`single_release` makes of their catalogues. Nothing is checked here.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from exo_inference.engines.flags.dialects import VLLM, Dialect
from exo_inference.errors import UsageError

_VERSION = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})(?:\.([0-9]{1,4}))?(?:\.post[0-9]+)?")


class UnknownRelease(UsageError):
    """That is no release of vLLM, or none that the catalogue can judge."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a flag's JSON object; `type` is `any` where the value is not simple."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag in one release.

    Attributes:
        name: without dashes, as in the reference of the engine.
        spellings: with dashes, the longest form first; without the `--no-` form.
        no_form: the spelling that turns a boolean off, if there is one; without it, it is never off.
        type: boolean, integer, number, string, enum or json; of each value where `several`.
        default: as text; "None" means that the engine decides at start.
        choices: values that exist; empty where any is taken.
        bounds: `gt`, `ge`, `lt`, `le` with their numbers.
        keys: keys of a JSON object; empty where any are taken.
        num_values: values in a row; None is one or more.
        repeatable: may be given again, each use adding a value.
        suffixed: integers may end in k, m, g, t or K, M, G, T, or as the dialect says.
        auto_words: what an integer may be instead: `auto`.
        folded: choices are compared in lower case, with `_` for `-`.
        form: of `forms.FORMS`, where a value is more than `type` says; else empty.
    """

    name: str
    spellings: tuple[str, ...]
    no_form: str | None
    section: str
    type: str
    default: str
    choices: tuple[str, ...]
    bounds: Mapping[str, float]
    keys: Mapping[str, Key]
    num_values: int | None
    repeatable: bool
    suffixed: bool
    auto_words: tuple[str, ...]
    folded: bool
    description: str
    form: str = ""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """When a spelling, a choice or a key existed: `since` the first listed release, `until` the last (None: still)."""

    name: str
    spelling: str
    since: str
    until: str | None


@dataclass(frozen=True, slots=True)
class ReleaseFlags:
    """Everything one release of an engine takes.

    Attributes:
        engine: its name for messages; empty leaves it out.
        dialect: how the engine's parser reads.
        version: the release that was asked for.
        listed: the release whose data is used: the same, or the nearest lower one.
        by_spelling: every way to write a flag, without `--no-` forms.
        by_no_form: the `--no-` forms of booleans.
        by_name: by their names without dashes.
    """

    engine: str
    dialect: Dialect
    version: str
    listed: str
    flags: tuple[Flag, ...]
    by_spelling: Mapping[str, Flag] = field(repr=False)
    by_no_form: Mapping[str, Flag] = field(repr=False)
    by_name: Mapping[str, Flag] = field(repr=False)

    def is_after(self, version: str) -> bool:
        """Say whether the release used is later than this one."""
        return _key(self.listed) > _key(version)

    @property
    def named(self) -> str:
        """The release for people, with the one it is judged as where that differs."""
        if self.version == self.listed:
            return f"{self.engine} {self.version}"
        return f"{self.engine} {self.version} (judged as {self.listed}, the nearest release listed)"

    def spellings(self) -> list[str]:
        """Return every long way to write a flag, the `--no-` forms included."""
        every = [*self.by_spelling, *self.by_no_form]
        return [spelling for spelling in every if spelling.startswith("--")]


def listed_releases() -> tuple[str, ...]:
    """Return the releases the catalogue has data for, oldest first."""
    return tuple(_load()["versions"])


@functools.lru_cache(maxsize=64)
def nearest_release(version: str) -> str:
    """Return the listed release that a version is judged as: itself, or the nearest lower one.

    Raises:
        UnknownRelease: it is no version, older than the first or newer than the last one listed.
    """
    listed = listed_releases()
    if not _VERSION.fullmatch(version):
        raise UnknownRelease(
            f"{version[:64]!r} is not a release of vLLM, expected a number such as {listed[-1]}",
            hint=f"Name one from {listed[0]} to {listed[-1]}.",
        )
    if not _key(listed[0]) <= _key(version) <= _key(listed[-1]):
        raise UnknownRelease(
            f"the flags of vLLM {version} are not known, only those of {listed[0]} to {listed[-1]}",
            hint=f"Name one from {listed[0]} to {listed[-1]}.",
        )
    return max((v for v in listed if _key(v) <= _key(version)), key=_key)


def judging_release(version: str) -> str:
    """Return the listed release that stands for a version whose flags are not listed: the first, or the last one.

    Raises:
        UnknownRelease: it is no version.
    """
    listed = listed_releases()
    if _VERSION.fullmatch(version) and not is_listed(version):
        return listed[0] if _key(version) < _key(listed[0]) else listed[-1]
    return nearest_release(version)


def is_listed(version: str) -> bool:
    """Say whether the flags of a version are known; of what is no version they are not."""
    try:
        nearest_release(version)
    except UnknownRelease:
        return False
    return True


def flags_of(version: str) -> ReleaseFlags:
    """Return what a release takes. The result is shared and does not change.

    Raises:
        UnknownRelease
    """
    return _flags_of(version.removeprefix("v"), nearest_release(version))


def lifetime(spelling: str) -> Lifetime | None:
    """Return when a flag existed, in whatever release; None if it never did."""
    return _lifetimes().get(spelling)


def choices_of(name: str, listed: str) -> tuple[str, ...]:
    """Return the choices of a flag; of all releases together where it did not exist yet."""
    changes = _changes_of_choices(name)
    present = _latest(changes, listed)
    every = present if present is not None else [c for each in changes.values() for c in each]
    return tuple(dict.fromkeys(every))


def choice_lifetime(name: str, choice: str) -> Lifetime | None:
    """Return when a flag had a choice, in whatever release; None if it never did."""
    changes = _changes_of_choices(name)
    had = [v for v in listed_releases() if choice in (_latest(changes, v) or ())]
    if not had:
        return None
    return Lifetime(name, choice, had[0], None if had[-1] == listed_releases()[-1] else had[-1])


def key_lifetime(name: str, key: str) -> Lifetime | None:
    """Return when the JSON object of a flag had a key; None if it never did."""
    keys: Mapping[str, Any] = next(
        (r.get("keys", {}) for r in _load()["flags"] if r["name"] == name), {}
    )
    return Lifetime(name, key, keys[key][1], keys[key][2]) if key in keys else None


def is_at_least(version: str, other: str) -> bool:
    """Say whether a release is the other one or a later one."""
    return _key(version) >= _key(other)


def _key(version: str) -> tuple[int, int, int]:
    found = _VERSION.fullmatch(version)
    assert found is not None, f"{version!r} was checked before"
    major, minor, patch = found.groups()
    return int(major), int(minor), int(patch or 0)


@functools.cache
def _load() -> dict[str, Any]:
    path = resources.files("exo_inference.engines") / "catalog" / "vllm.json"
    loaded: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return loaded


def _changes_of_choices(name: str) -> Mapping[str, list[str]]:
    """Return the choices of a flag by the release that brought them."""
    record: Mapping[str, Any] = next((r for r in _load()["flags"] if r["name"] == name), {})
    changes: Mapping[str, list[str]] = record.get("choices", {})
    return changes


@functools.lru_cache(maxsize=64)
def _flags_of(version: str, listed: str) -> ReleaseFlags:
    records = (r for r in _load()["flags"] if _exists(r["since"], r.get("until"), listed))
    flags = tuple(_resolve(record, listed) for record in records)
    return _index("vLLM", VLLM, version, listed, flags)


def single_release(
    engine: str, version: str, records: Iterable[Mapping[str, Any]], dialect: Dialect
) -> ReleaseFlags:
    """Return what an engine takes of which one release is known."""
    return _index(engine, dialect, version, version, tuple(_read_record(r) for r in records))


def _index(
    engine: str, dialect: Dialect, version: str, listed: str, flags: tuple[Flag, ...]
) -> ReleaseFlags:
    return ReleaseFlags(
        engine=engine,
        dialect=dialect,
        version=version,
        listed=listed,
        flags=flags,
        by_spelling={spelling: flag for flag in flags for spelling in flag.spellings},
        by_no_form={flag.no_form: flag for flag in flags if flag.no_form},
        by_name={flag.name: flag for flag in flags},
    )


def _read_record(record: Mapping[str, Any]) -> Flag:
    spellings: list[str] = record["flags"]
    negative = [f"--no-{each.removeprefix('--')}" for each in spellings if each.startswith("--")]
    no_form = next((each for each in negative if each in spellings), None)
    return Flag(
        name=record["name"],
        spellings=tuple(each for each in spellings if each != no_form),
        no_form=no_form,
        section=record["section"],
        type=record["type"],
        default=record.get("default", ""),
        choices=tuple(record.get("allowed-values", ())),
        bounds=record.get("bounds", {}),
        keys={},
        num_values=record.get("values", 1),
        repeatable=record.get("repeatable", False),
        suffixed=record.get("suffixed", False),
        auto_words=tuple(record.get("auto", ())),
        folded=False,
        description=record.get("description", ""),
        form=record.get("form", ""),
    )


@functools.cache
def _lifetimes() -> dict[str, Lifetime]:
    known: dict[str, Lifetime] = {}
    for record in _load()["flags"]:
        until = record.get("until")
        for spelling in _with_no_form(record):
            since = record.get("later", {}).get(spelling, record["since"])
            known[spelling] = Lifetime(record["name"], spelling, since, until)
    return known


def _with_no_form(record: Mapping[str, Any]) -> Iterable[str]:
    return [*record["flags"], record["no"]] if "no" in record else record["flags"]


def _exists(since: str, until: str | None, listed: str) -> bool:
    return _key(since) <= _key(listed) and (until is None or _key(listed) <= _key(until))


def _resolve(record: Mapping[str, Any], listed: str) -> Flag:
    later = record.get("later", {})
    choices = tuple(_latest(record.get("choices", {}), listed) or ())
    kind = record["type"]
    return Flag(
        name=record["name"],
        spellings=tuple(
            s for s in record["flags"] if s not in later or _exists(later[s], None, listed)
        ),
        no_form=record.get("no"),
        section=record["section"],
        type="string" if kind == "enum" and not choices else kind,
        default=_latest(record.get("defaults", {}), listed) or "",
        choices=choices,
        bounds={name: float(number) for name, number in record.get("bounds", {}).items()},
        keys={
            name: Key(name, kind)
            for name, (kind, since, until) in record.get("keys", {}).items()
            if _exists(since, until, listed)
        },
        num_values=None if record.get("several") else 1,
        repeatable=record.get("repeatable", False),
        suffixed=record.get("suffixed", False),
        auto_words=("auto",) if "auto" in record and _exists(record["auto"], None, listed) else (),
        folded=record.get("folded", False),
        description=record["description"],
    )


def _latest(changes: Mapping[str, Any], listed: str) -> Any:
    """Return the value that the newest release up to this one brought."""
    known = [version for version in changes if _key(version) <= _key(listed)]
    return changes[max(known, key=_key)] if known else None
