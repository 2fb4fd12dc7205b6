"""Check engine flags against a catalogue, without starting anything. Pure.

The flags come as an argument vector: `--flag=value`, `--flag value` as two items, `--flag`. What an
engine's own parser takes beside that is its `Dialect`. vLLM, of which many releases are known, has a
check of its own (`checking.py`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from exo_inference.engines.suggestions import suggest
from exo_inference.wire import EngineParameter

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{1,9})?[kmgtKMGT]?")
"""As vLLM reads them: 4096, 32k (32,000), 32K (32,768). Which flags take suffixes, the engine says."""

_PLAIN_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")

_BOOLEAN_WORDS = frozenset({"true", "false", "1", "0", "yes", "no", "on", "off"})


REASONS = (
    "unknown",  # no release has such a flag
    "not-yet",  # a later release has it
    "removed",  # an earlier release had it
    "owned",  # the platform sets it
    "missing",  # needs a value and has none
    "boolean",  # takes no value and has one
    "no-form",  # has no --no- form
    "type",
    "range",
    "choice",
    "json",
    "key",  # of a JSON object
    "duplicate",
    "stray",  # an item that is neither flag nor value
    "policy",  # allowed only under a condition that is not met
    "model",  # does not go with the model, the GPU or their number
)
"""Why a parameter is refused, for programs."""


@dataclass(frozen=True, slots=True)
class ParameterProblem:
    """One thing that is wrong with an argument vector.

    Attributes:
        index: of the item, from 0.
        detail: for people: the flag, what was found, what is expected, and one next step.
        flag: the flag that is meant, as the engine reads it; empty for an item that is none.
        reason: one of `REASONS`.
    """

    index: int
    detail: str
    flag: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How an engine reads an argument vector. The defaults are exo-engine's.

    Attributes:
        engine: its name and release for messages; empty leaves them out.
        underscores: `_` stands for `-` in the names of flags.
        attached: `--flag=value` is read, not only two items.
        boolean_words: booleans may be given `true` and `false`.
        suffixes: whole numbers may be `auto`, 32k or 32K.
        values: of flags that take another number of values than one; None is one or more.
        repeatable: names of flags that may be given again, each use adding a value.
    """

    engine: str = ""
    underscores: bool = True
    attached: bool = True
    boolean_words: bool = True
    suffixes: bool = True
    values: Mapping[str, int | None] = field(default_factory=dict)
    repeatable: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a use is refused: one of `REASONS`, and the words."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class _Use:
    """One flag as it was written, with its values."""

    index: int
    flag: str
    values: tuple[str, ...] = ()
    attached: bool = False


@dataclass(frozen=True, slots=True)
class _Catalogue:
    """What exists, what belongs to the platform, and how it is written."""

    known: Mapping[str, EngineParameter]
    owned: Mapping[str, str]
    dialect: Dialect

    def find(self, item: str) -> str | None:
        """Return the flag that an item names, as the engine reads it; None for a value."""
        name = item.partition("=")[0]
        if not item.startswith("--") and name not in self.known and name not in self.owned:
            return None
        return name.replace("_", "-") if self.dialect.underscores else name

    def count(self, flag: str) -> int | None:
        """Return how many values a flag takes; None for one or more."""
        parameter = self.known.get(flag)
        if parameter is None:
            return 1  # whatever it is, what follows is more likely its value than astray
        if parameter.type == "boolean":
            return 0
        return self.dialect.values.get(parameter.name, 1)


_EXO_ENGINE = Dialect()


def check_parameters(
    items: Sequence[str],
    catalogue: Sequence[EngineParameter],
    owned: Mapping[str, str],
    dialect: Dialect = _EXO_ENGINE,
) -> list[ParameterProblem]:
    """Return everything that is wrong, in the order of the items.

    Args:
        items: the argument vector.
        catalogue: the flags that exist.
        owned: flags that belong to the platform, each with the reason or the field to use.
        dialect: how the engine reads them.
    """
    known = {flag: parameter for parameter in catalogue for flag in parameter.flags}
    spoken = _Catalogue(known, owned, dialect)
    problems: list[ParameterProblem] = []
    seen: dict[str, int] = {}
    for use in _split(items, spoken, problems):
        refusal = _check_use(use, spoken) or _check_repetition(use, spoken, seen, items)
        if refusal is not None:
            problems.append(ParameterProblem(use.index, refusal.detail, use.flag, refusal.reason))
    return sorted(problems, key=lambda problem: problem.index)


def read_parameters(
    items: Sequence[str], catalogue: Sequence[EngineParameter], dialect: Dialect
) -> dict[str, tuple[str, ...]]:
    """Return what an argument vector that was found good sets: values by the flags' names.

    A flag that was given again has the values of its last use, as in the engines.
    """
    known = {flag: parameter for parameter in catalogue for flag in parameter.flags}
    uses = _split(items, _Catalogue(known, {}, dialect), [])
    return {known[use.flag].name: use.values for use in uses if use.flag in known}


def _split(
    items: Sequence[str], spoken: _Catalogue, problems: list[ParameterProblem]
) -> list[_Use]:
    """Pair flags with their values; what is neither goes to `problems`."""
    uses: list[_Use] = []
    index = 0
    while index < len(items):
        item = items[index]
        flag = spoken.find(item)
        if any(ord(character) < 32 or character == "\x7f" for character in item):
            text = f"{item!r} holds a control character; leave it out"
            problems.append(ParameterProblem(index, text, "", "type"))
        elif flag is None:
            problems.append(ParameterProblem(index, _explain_stray(items, index), "", "stray"))
        elif "=" in item:
            uses.append(_Use(index, flag, (item.partition("=")[2],), attached=True))
        else:
            values = _following(items, index, spoken, spoken.count(flag))
            uses.append(_Use(index, flag, values))
            index += len(values)
        index += 1
    return uses


def _following(
    items: Sequence[str], index: int, spoken: _Catalogue, count: int | None
) -> tuple[str, ...]:
    last = len(items) if count is None else min(len(items), index + 1 + count)
    end = index + 1
    while end < last and spoken.find(items[end]) is None:
        end += 1
    return tuple(items[index + 1 : end])


def _explain_stray(items: Sequence[str], index: int) -> str:
    item = items[index]
    if " " in item.strip():
        return f"{item!r} is not a flag: give flags and values as separate items"
    if index and items[index - 1].startswith("--"):
        return f"{item!r} is not a flag, and {items[index - 1]!r} before it takes no value here"
    return f"{item!r} is not a flag: flags start with --"


def _check_use(use: _Use, spoken: _Catalogue) -> _Refusal | None:
    if use.flag in spoken.owned:
        text = f"{use.flag} is set by the platform: {spoken.owned[use.flag]}; leave it out"
        return _Refusal("owned", text)
    parameter, dialect = spoken.known.get(use.flag), spoken.dialect
    if parameter is None:
        of = f" of {dialect.engine}" if dialect.engine else ""
        text = f"there is no parameter {use.flag}{of}{_suggest(use.flag, spoken.known)}"
        return _Refusal("unknown", text)
    if parameter.type == "boolean":
        is_word = not use.values or (dialect.boolean_words and _is_word(use.values[0]))
        return None if is_word else _Refusal("boolean", _explain_boolean(use, parameter, dialect))
    if use.attached and not dialect.attached:
        text = f"{use.flag} and its value are one item, which {dialect.engine} does not read"
        return _Refusal("stray", f"{text}; give them as two items")
    expected = dialect.values.get(parameter.name, 1) or 1
    if len(use.values) < expected:
        text = f"{use.flag} needs {_needs(expected)} ({_expected(parameter)}); write {_example(use, expected, dialect)}"
        return _Refusal("missing", text)
    refusals = (_check_value(use.flag, value, parameter, dialect) for value in use.values)
    return next((each for each in refusals if each is not None), None)


def _check_repetition(
    use: _Use, spoken: _Catalogue, seen: dict[str, int], items: Sequence[str]
) -> _Refusal | None:
    name = spoken.known[use.flag].name
    earlier = seen.setdefault(name, use.index)
    if earlier == use.index or name in spoken.dialect.repeatable:
        return None
    text = f"{use.flag} sets {name} a second time; {items[earlier]!r} did so before"
    return _Refusal("duplicate", f"{text}, so leave one of them out")


def _suggest(flag: str, known: Mapping[str, EngineParameter]) -> str:
    meant = suggest(flag, known)
    return f"; did you mean {meant}?" if meant else "; search for it in the parameter help"


def _is_word(value: str) -> bool:
    return value.lower() in _BOOLEAN_WORDS


def _explain_boolean(use: _Use, parameter: EngineParameter, dialect: Dialect) -> str:
    off = next((flag for flag in parameter.flags if flag.startswith("--no-")), None)
    write = f"write {parameter.flags[0]}" + (f" or {off}" if off else " or leave it out")
    expected = "true or false" if dialect.boolean_words else "no value"
    return f"{use.flag} is {use.values[0]!r}, expected {expected}: {write}"


def _needs(count: int) -> str:
    return "a value" if count == 1 else f"{count} values"


def _example(use: _Use, count: int, dialect: Dialect) -> str:
    if dialect.attached and count == 1:
        return f"{use.flag}=<value>"
    return " ".join([use.flag, *["<value>"] * count])


def _check_value(
    flag: str, value: str, parameter: EngineParameter, dialect: Dialect
) -> _Refusal | None:
    reason = "json" if parameter.type == "json" else "type"
    if parameter.allowed_values:
        reason = "choice"
    if value in parameter.allowed_values or (
        not parameter.allowed_values and _has_type(value, parameter.type, dialect)
    ):
        return None
    text = f"{flag} is {value[:80]!r}, expected {_expected(parameter)}"
    return _Refusal(reason, f"{text}; change it, or leave {flag} out")


def _has_type(value: str, kind: str, dialect: Dialect) -> bool:
    try:
        if kind == "integer" and not dialect.suffixes:
            return _PLAIN_INTEGER.fullmatch(value) is not None
        if kind == "integer":
            return value == "auto" or _INTEGER.fullmatch(value) is not None
        if kind in ("float", "number"):
            return math.isfinite(float(value))
        if kind == "json":
            json.loads(value)
    except (ValueError, RecursionError):
        return False
    return True


def _expected(parameter: EngineParameter) -> str:
    if parameter.allowed_values:
        return f"one of: {', '.join(parameter.allowed_values)}"
    names = {"integer": "a whole number", "float": "a number", "number": "a number"}
    names["json"] = "a JSON value"
    return names.get(parameter.type, "text")
