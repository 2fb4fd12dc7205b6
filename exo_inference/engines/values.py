"""Judge one value of a flag: type, range, choice, JSON and its keys. Pure.

Called by `checking.py` for every value. An answer is `Wrong`, with what was expected in words, or
None. Nothing here knows argument vectors.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from exo_inference.engines.catalogue import (
    Flag,
    Key,
    Lifetime,
    choice_lifetime,
    is_at_least,
    key_lifetime,
)
from exo_inference.engines.members import RENAMED_KEYS, Limits, limits_of

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_LONG_INTEGER = re.compile(r"[+-]?[0-9]{19,}")
_SUFFIXED = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)([kmgtKMGT])")
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
_STRING_OR_NUMBER = re.compile(r'("(?:[^"\\]|\\.)*")|\b([0-9]+(?:\.[0-9]+)?[kmgtKMGT])\b')

JSON_SUFFIXES_SINCE = "0.20.0"
"""First listed release that reads 80m in JSON objects of configuration classes."""

_LIMITS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
_KINDS = {"integer": "a whole number", "number": "a number", "boolean": "true or false"}
_KINDS |= {"string": "text", "any": "a value"}


@dataclass(frozen=True, slots=True)
class Wrong:
    """What is wrong with a value.

    Attributes:
        reason: `type`, `range`, `choice`, `json` or `key`.
        expected: what would be right, to follow "expected".
        hint: one next step, to follow a semicolon; empty where `expected` says it.
        what: the part of the value that is meant, where it is not all of it.
    """

    reason: str
    expected: str
    hint: str = ""
    what: str = ""


def judge(text: str, flag: Flag, listed: str) -> list[Wrong]:
    """Return what is wrong with a value of a flag; several things only in a JSON object.

    Args:
        text: the value as it was written.
        flag: the flag it belongs to; not a boolean.
        listed: the release, for what only later ones read.
    """
    if text in ("", "None") and flag.default == "None":
        return []  # as if the flag had not been given
    if flag.type == "json":
        return _judge_json(text, flag, listed)
    wrong = None
    if flag.choices:
        wrong = _judge_choice(text, flag, listed)
    elif flag.type in ("integer", "number"):
        wrong = _judge_number(text, flag)
    return [wrong] if wrong is not None else []


def judge_key(path: tuple[str, ...], text: str, flag: Flag, listed: str) -> Wrong | None:
    """Return what is wrong with one key of a flag's JSON object, given as `--flag.key value`."""
    if flag.type != "json":
        return Wrong("key", f"no keys: {flag.spellings[0]} takes {expected(flag)}")
    if flag.keys and path[0] not in flag.keys:
        return _unknown_key(path[0], flag, listed)
    if flag.keys and len(path) == 1:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text
        return _judge_member(value, flag.keys[path[0]], flag, listed)
    return None


def expected(flag: Flag) -> str:
    """Return what a flag takes, in words."""
    if flag.choices:
        return f"one of: {', '.join(flag.choices)}"
    words = {"integer": "a whole number", "number": "a number", "json": "a JSON value"}
    if flag.type == "json" and flag.default != '["*"]':
        words["json"] = "a JSON object"
    text = words.get(flag.type, "text")
    return _with_limits(text, flag.bounds)


def _with_limits(text: str, bounds: Mapping[str, float]) -> str:
    limits = [f"{_LIMITS[name]} {_short(limit)}" for name, limit in bounds.items()]
    return ", ".join([text, " and ".join(limits)]) if limits else text


def _judge_choice(text: str, flag: Flag, listed: str) -> Wrong | None:
    parts = text.split(",") if flag.several else [text]
    bad = next((part for part in parts if _fold(part, flag) not in flag.choices), None)
    if bad is None:
        return None
    known = choice_lifetime(flag.name, _fold(bad, flag))
    hint = _explain_release(known, listed) if known is not None else _nearest(bad, flag.choices)
    return Wrong("choice", expected(flag), hint)


def _nearest(text: str, choices: Collection[str]) -> str:
    by_folded = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(text.lower(), by_folded, n=1, cutoff=0.6)
    return f"did you mean {by_folded[near[0]]}?" if near else ""


def _explain_release(known: Lifetime, listed: str) -> str:
    """Say in which releases something exists that this one does not have."""
    if known.until is not None and is_at_least(listed, known.until):
        return f"{known.spelling} was last in vLLM {known.until}, use another"
    return f"{known.spelling} came with vLLM {known.since}, ask for that release or use another"


def _fold(text: str, flag: Flag) -> str:
    return text.lower().replace("-", "_") if flag.folded else text


def _judge_number(text: str, flag: Flag) -> Wrong | None:
    number = _read_number(text, flag)
    if number is None and flag.type == "integer" and _LONG_INTEGER.fullmatch(text.strip()):
        return Wrong("range", f"{expected(flag)}, of at most 18 digits")
    if number is None:
        return Wrong("type", expected(flag), _explain_number(text, flag))
    if not _is_within(number, flag.bounds):
        return Wrong("range", expected(flag))
    if flag.name == "max-model-len" and number == 0:
        return Wrong("range", "a whole number above 0, or -1 for the longest that fits")
    return None


def _read_number(text: str, flag: Flag) -> float | None:
    text = text.strip()
    if flag.type == "number":
        try:
            number = float(text)
        except ValueError:
            return None
        return number if math.isfinite(number) else None
    if flag.takes_auto and text.lower() == "auto":
        return -1
    if _INTEGER.fullmatch(text):
        return int(text)
    return expand_suffix(text) if flag.suffixed else None


def expand_suffix(text: str) -> int | None:
    """Return 32k as 32,000 and 32K as 32,768; None if it is not of that form."""
    found = _SUFFIXED.fullmatch(text)
    if found is None:
        return None
    digits, suffix = found.groups()
    if suffix.islower():
        return round(float(digits) * 10.0 ** (3 * _POWERS[suffix]))
    return None if "." in digits else int(digits) << (10 * _POWERS[suffix.lower()])


def _explain_number(text: str, flag: Flag) -> str:
    if expand_suffix(text.strip()) is not None:
        return f"write it out: {expand_suffix(text.strip())}"
    bare = text.strip().replace(",", "").replace("_", "").replace("'", "")
    if bare != text.strip() and _INTEGER.fullmatch(bare):
        return f"write {bare}"
    if flag.suffixed and re.fullmatch(r"[0-9.]+ ?([kmgtKMGT])i?[bB]", text.strip()):
        return "leave the B out: k, m, g are powers of 1000, K, M, G powers of 1024"
    return ""


def _is_within(number: float, bounds: Mapping[str, float]) -> bool:
    checks = {
        "gt": number > bounds.get("gt", -math.inf),
        "ge": number >= bounds.get("ge", -math.inf),
        "lt": number < bounds.get("lt", math.inf),
        "le": number <= bounds.get("le", math.inf),
    }
    return all(checks[name] for name in bounds)


def _judge_json(text: str, flag: Flag, listed: str) -> list[Wrong]:
    if flag.keys and is_at_least(listed, JSON_SUFFIXES_SINCE):
        text = _STRING_OR_NUMBER.sub(_expand_in_json, text)
    try:
        value: Any = json.loads(text)
    except RecursionError:
        return [Wrong("json", expected(flag), "it is nested too deeply")]
    except ValueError as exc:
        return [Wrong("json", expected(flag), _explain_json(text, exc))]
    is_array = flag.default in ('["*"]', "[]")
    if not isinstance(value, list if is_array else dict):
        kind = "a JSON array" if is_array else "a JSON object"
        example = '["https://example.org"]' if is_array else '{"key": "value"}'
        return [Wrong("json", kind, f"write it as {example}")]
    if not isinstance(value, dict) or not flag.keys:
        return []
    judged = (_judge_named(name, member, flag, listed) for name, member in value.items())
    return [wrong for wrong in judged if wrong is not None]


def _expand_in_json(found: re.Match[str]) -> str:
    quoted, number = found.groups()
    return str(quoted or (expand_suffix(number) if expand_suffix(number) is not None else number))


def _explain_json(text: str, exc: ValueError) -> str:
    where = f" at character {exc.pos + 1}" if isinstance(exc, json.JSONDecodeError) else ""
    if "'" in text and '"' not in text:
        return "JSON takes double quotes around names and text"
    if re.search(r"\b(True|False|None)\b", text):
        return "JSON writes true, false and null"
    if re.fullmatch(r"\{?\s*[A-Za-z_]+\s*:.*", text, re.DOTALL):
        return "the shell took the double quotes: put single quotes around the whole value"
    if (pair := re.fullmatch(r"([A-Za-z_]+)=([0-9]+)", text.strip())) is not None:
        return f'write {{"{pair[1]}": {pair[2]}}}'
    said = exc.msg.lower() if isinstance(exc, json.JSONDecodeError) else "it cannot be read"
    return f'{said}{where}; write it as {{"key": "value"}}'


def _judge_named(name: str, value: object, flag: Flag, listed: str) -> Wrong | None:
    if name not in flag.keys:
        return _unknown_key(name, flag, listed)
    return _judge_member(value, flag.keys[name], flag, listed)


def _unknown_key(name: str, flag: Flag, listed: str) -> Wrong:
    spelled = name.replace("-", "_")
    known, renamed = key_lifetime(flag.name, spelled), RENAMED_KEYS.get((flag.name, spelled))
    if renamed in flag.keys:
        hint = f"{name} became {renamed}, write that"
    elif known is not None and spelled not in flag.keys:
        hint = _explain_release(known, listed)
    else:
        hint = _nearest(spelled, flag.keys) or f"it has: {', '.join(sorted(flag.keys))}"
    return Wrong("key", "only keys that it has", hint, what=f"the key {name[:64]!r}")


def _judge_member(value: object, key: Key, flag: Flag, listed: str) -> Wrong | None:
    fits = {
        "integer": isinstance(value, (int, str)) and _is_whole(value),
        "number": isinstance(value, (int, float, str)) and _is_number(value),
        "boolean": isinstance(value, bool) or str(value).lower() in ("true", "false", "0", "1"),
        "string": isinstance(value, str),
    }
    if value is None:
        return None
    what = f"the key {key.name!r} is {json.dumps(value)[:64]}"
    if not fits.get(key.type, True):
        return Wrong("key", _KINDS[key.type], what=what)
    limits = limits_of(flag.name, key.name, listed)
    return None if limits is None else _judge_limits(value, limits, key, what)


def _judge_limits(value: object, limits: Limits, key: Key, what: str) -> Wrong | None:
    """Judge what a key says, once its type is right."""
    if limits.choices and isinstance(value, str) and not _is_number(value):
        if (value.upper() if limits.folded else value) in limits.choices:
            return None
        text = f"one of: {', '.join(limits.choices)}"
        return Wrong("choice", text, _nearest(value, limits.choices), what)
    if limits.choices and not limits.folded:
        return Wrong("choice", f"one of: {', '.join(limits.choices)}", what=what)
    if limits.bounds and not (_is_scalar(value) and _is_within(float(value), limits.bounds)):
        kind = _KINDS["integer" if key.type == "any" else key.type]
        return Wrong("range", _with_limits(kind, limits.bounds), what=what)
    return None


def _is_scalar(value: object) -> TypeGuard[int | float | str]:
    return isinstance(value, (int, float, str)) and _is_number(value)


def _is_whole(value: int | str) -> bool:
    return not isinstance(value, bool) and _INTEGER.fullmatch(str(value)) is not None


def _is_number(value: float | str) -> bool:
    try:
        return not isinstance(value, bool) and math.isfinite(float(value))
    except ValueError:
        return False


def _short(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)
