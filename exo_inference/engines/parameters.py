"""Check engine flags against a catalogue, without starting anything. Pure.

The flags come as an argument vector, as argparse would take them: `--flag=value`, `--flag value`
as two items, `--flag`, `--no-flag` and `--flag=false` for booleans, `_` for `-` in names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exo_inference.engines.suggestions import suggest
from exo_inference.wire import EngineParameter

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{1,9})?[kmgtKMGT]?")
"""As vLLM reads them: 4096, 32k (32,000), 32K (32,768). Which flags take suffixes, the engine says."""

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
class _Refusal:
    """Why a use is refused: one of `REASONS`, and the words."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class _Use:
    """One flag as it was written, with its value, if it got one."""

    index: int
    flag: str
    value: str | None


def check_parameters(
    items: Sequence[str], catalogue: Sequence[EngineParameter], owned: Mapping[str, str]
) -> list[ParameterProblem]:
    """Return everything that is wrong, in the order of the items.

    Args:
        items: the argument vector.
        catalogue: the flags that exist.
        owned: flags that belong to the platform, each with the reason or the field to use.
    """
    known = {flag: parameter for parameter in catalogue for flag in parameter.flags}
    problems: list[ParameterProblem] = []
    seen: dict[str, int] = {}
    for use in _split(items, known, owned, problems):
        refusal = _check_use(use, known, owned)
        if refusal is None and use.flag in known:
            name = known[use.flag].name
            if name in seen:
                first = items[seen[name]]
                text = f"{use.flag} sets {name} a second time; {first!r} did so before"
                refusal = _Refusal("duplicate", f"{text}, so leave one of them out")
            seen.setdefault(name, use.index)
        if refusal is not None:
            problems.append(ParameterProblem(use.index, refusal.detail, use.flag, refusal.reason))
    return sorted(problems, key=lambda problem: problem.index)


def _split(
    items: Sequence[str],
    known: Mapping[str, EngineParameter],
    owned: Mapping[str, str],
    problems: list[ParameterProblem],
) -> list[_Use]:
    """Pair flags with their values; what is neither goes to `problems`."""
    uses: list[_Use] = []
    index = 0
    while index < len(items):
        item = items[index]
        if any(ord(character) < 32 or character == "\x7f" for character in item):
            text = f"{item!r} holds a control character; leave it out"
            problems.append(ParameterProblem(index, text, "", "type"))
        elif not _is_flag(item, known, owned):
            text = _explain_stray(items, index)
            problems.append(ParameterProblem(index, text, "", "stray"))
        else:
            flag, equals, value = item.partition("=")
            flag = _normalise(flag)
            parameter = known.get(flag)
            takes_value = flag in owned or (parameter is not None and parameter.type != "boolean")
            following = items[index + 1] if index + 1 < len(items) else None
            if equals:
                uses.append(_Use(index, flag, value))
            elif takes_value and following is not None and not _is_flag(following, known, owned):
                uses.append(_Use(index, flag, following))
                index += 1
            else:
                uses.append(_Use(index, flag, None))
        index += 1
    return uses


def _is_flag(item: str, *known: Mapping[str, object]) -> bool:
    name = item.partition("=")[0]
    return item.startswith("--") or any(name in flags for flags in known)


def _normalise(flag: str) -> str:
    return flag.replace("_", "-")


def _explain_stray(items: Sequence[str], index: int) -> str:
    item = items[index]
    if " " in item.strip():
        return f"{item!r} is not a flag: give flags and values as separate items"
    if index and items[index - 1].startswith("--"):
        return f"{item!r} is not a flag, and {items[index - 1]!r} before it takes no value here"
    return f"{item!r} is not a flag: flags start with --"


def _check_use(
    use: _Use, known: Mapping[str, EngineParameter], owned: Mapping[str, str]
) -> _Refusal | None:
    if use.flag in owned:
        text = f"{use.flag} is set by the platform: {owned[use.flag]}; leave it out"
        return _Refusal("owned", text)
    parameter = known.get(use.flag)
    if parameter is None:
        text = f"there is no parameter {use.flag}{_suggest(use.flag, known)}"
        return _Refusal("unknown", text)
    if parameter.type == "boolean":
        is_word = use.value is None or use.value.lower() in _BOOLEAN_WORDS
        return None if is_word else _Refusal("boolean", _explain_boolean(use, parameter))
    if use.value is None:
        text = f"{use.flag} needs a value ({_expected(parameter)}); write {use.flag}=<value>"
        return _Refusal("missing", text)
    return _check_value(use, parameter)


def _suggest(flag: str, known: Mapping[str, EngineParameter]) -> str:
    meant = suggest(flag, known)
    return f"; did you mean {meant}?" if meant else "; search for it in the parameter help"


def _explain_boolean(use: _Use, parameter: EngineParameter) -> str:
    off = next((flag for flag in parameter.flags if flag.startswith("--no-")), None)
    write = f"write {parameter.flags[0]}" + (f" or {off}" if off else " or leave it out")
    return f"{use.flag} is {use.value!r}, expected true or false: {write}"


def _check_value(use: _Use, parameter: EngineParameter) -> _Refusal | None:
    value = use.value or ""
    reason = "json" if parameter.type == "json" else "type"
    if parameter.allowed_values:
        reason = "choice"
    if value in parameter.allowed_values or (
        not parameter.allowed_values and _has_type(value, parameter.type)
    ):
        return None
    text = f"{use.flag} is {value[:80]!r}, expected {_expected(parameter)}"
    return _Refusal(reason, f"{text}; change it, or leave {use.flag} out")


def _has_type(value: str, kind: str) -> bool:
    try:
        if kind == "integer":
            return value == "auto" or _INTEGER.fullmatch(value) is not None
        if kind in ("float", "number"):
            float(value)
        elif kind == "json":
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
