"""Read one value of a flag, and judge it: type, range, choice, JSON and its keys. Pure.

Called by `reader.py` for every value. An answer is what the text means, and `Wrong`, with what was
expected in words, for each thing that is wrong with it. Nothing here knows argument vectors.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeGuard

from exo_inference.engines.flags.catalogue import (
    Flag,
    Key,
    Lifetime,
    ReleaseFlags,
    choice_lifetime,
    is_at_least,
    key_lifetime,
)
from exo_inference.engines.flags.forms import FORMS
from exo_inference.engines.flags.json_keys import RENAMED_KEYS, Limits, limits_of

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_MOST_DIGITS = 18
"""Of an integer, written out: no engine has use for more, and 64 bits hold them."""
_LONG_INTEGER = re.compile(r"[+-]?[0-9]{19,}")
_SUFFIXED = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)([kmgtKMGT])")
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
_IEC = re.compile(r"([0-9]{1,18})([KMGT])i|([0-9]{1,18}(?:\.[0-9]{1,9})?)([kMGT])")
_STRING_OR_NUMBER = re.compile(r'("(?:[^"\\]|\\.)*")|\b([0-9]+(?:\.[0-9]+)?[kmgtKMGT])\b')

JSON_SUFFIXES_SINCE = "0.20.0"
"""First listed release that reads 80m in JSON objects of configuration classes."""

_LIMITS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
_NUMBERS = {"integer": "a whole number", "number": "a number", "float": "a number"}
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


def read_value(text: str, flag: Flag, release: ReleaseFlags) -> tuple[Any, list[Wrong]]:
    """Return what a value of a flag means, and what is wrong with it; several things only in JSON.

    Args:
        text: the value as it was written.
        flag: the flag it belongs to; not a boolean.
        release: how its engine reads, for what only later releases read.

    Returns:
        A number, a text, what JSON says, what the flag's form says, or None where it is as if the flag had not been given.
    """
    if release.dialect.none_words and text in ("", "None") and flag.default == "None":
        if (
            not text and flag.name == "max-model-len"
        ):  # it would be the model's own, which nobody asked for
            return None, [Wrong("type", expected(flag, release))]
        return None, []
    if flag.form:
        meant = FORMS[flag.form].read(text)
        reason = "range" if _INTEGER.fullmatch(text) else "type"
        return meant, [Wrong(reason, expected(flag, release))] if meant is None else []
    if flag.type == "json":
        return _read_json(text, flag, release)
    value: Any = text
    wrong = None
    if flag.choices:
        wrong = _check_choice(text, flag, release)
        value = int(text) if text.isdecimal() else text
    elif flag.type in _NUMBERS:
        value = "auto" if _is_auto(text, flag, release) else _read_number(text, flag, release)
        wrong = _check_number(text, value, flag, release)
    return value, [wrong] if wrong is not None else []


def read_key(
    path: tuple[str, ...], text: str, flag: Flag, release: ReleaseFlags
) -> tuple[Any, Wrong | None]:
    """Return what one key of a flag's JSON object is, given as `--flag.key value`, and what is wrong."""
    if flag.type != "json":
        return None, Wrong("key", f"no keys: {flag.spellings[0]} takes {expected(flag, release)}")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    wrong = None
    if flag.keys and path[0] not in flag.keys:
        wrong = _unknown_key(path[0], flag, release.listed)
    elif flag.keys and len(path) == 1:
        wrong = _check_member(value, flag.keys[path[0]], flag, release.listed)
    return value, wrong


def expected(flag: Flag, release: ReleaseFlags) -> str:
    """Return what a flag takes, in words."""
    return _with_limits(expected_type(flag, release), {} if flag.choices else flag.bounds)


def expected_type(flag: Flag, release: ReleaseFlags) -> str:
    """Return what a flag takes, in words, without its limits."""
    if flag.form:
        return FORMS[flag.form].expected
    if flag.choices:
        return f"one of: {', '.join(flag.choices)}"
    if flag.type == "json" and release.dialect.json_objects and flag.default != '["*"]':
        return "a JSON object"
    return {**_NUMBERS, "json": "a JSON value"}.get(flag.type, "text")


def _with_limits(text: str, bounds: Mapping[str, float]) -> str:
    limits = [f"{_LIMITS[name]} {_short(limit)}" for name, limit in bounds.items()]
    return ", ".join([text, " and ".join(limits)]) if limits else text


def _check_choice(text: str, flag: Flag, release: ReleaseFlags) -> Wrong | None:
    parts = text.split(",") if flag.num_values is None else [text]
    bad = next((part for part in parts if _fold(part, flag) not in flag.choices), None)
    if bad is None:
        return None
    hint = ""
    if release.dialect.has_releases:
        known = choice_lifetime(flag.name, _fold(bad, flag))
        hint = (
            _nearest(bad, flag.choices)
            if known is None
            else _explain_release(known, release.listed)
        )
    return Wrong("choice", expected(flag, release), hint)


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


def _check_number(
    text: str, number: float | str | None, flag: Flag, release: ReleaseFlags
) -> Wrong | None:
    wanted = expected(flag, release)
    if number == "auto":
        return None
    is_long = number is None and _LONG_INTEGER.fullmatch(text.strip()) is not None
    if flag.type == "integer" and (is_long or _is_long(number)):
        return Wrong("range", f"{wanted}, of at most {_MOST_DIGITS} digits")
    if number is None or isinstance(number, str):
        return Wrong("type", wanted, _explain_number(text, flag, release))
    if not _is_within(number, flag.bounds):
        return Wrong("range", wanted)
    if flag.name == "max-model-len" and number == 0:
        return Wrong("range", "a whole number above 0, or -1 for the longest that fits")
    return None


def _is_long(number: float | str | None) -> bool:
    return isinstance(number, int) and abs(number) >= 10**_MOST_DIGITS


def _is_auto(text: str, flag: Flag, release: ReleaseFlags) -> bool:
    return (text.strip().lower() if release.dialect.strips else text) in flag.auto_words


def _read_number(text: str, flag: Flag, release: ReleaseFlags) -> float | None:
    """Return the number that a text is, an integer where the flag takes such; None if it is none."""
    text = text.strip() if release.dialect.strips else text
    if flag.type != "integer":
        try:
            number = float(text)
        except ValueError:
            return None
        return number if math.isfinite(number) else None
    if _INTEGER.fullmatch(text):
        return int(text)
    if not flag.suffixed:
        return None
    return _expand(text, release)


def _expand(text: str, release: ReleaseFlags) -> int | None:
    """Return what a number with a suffix means to this engine; None if it is not of that form."""
    return _expand_iec(text) if release.dialect.iec_suffixes else expand_suffix(text)


def expand_suffix(text: str) -> int | None:
    """Return 32k as 32,000 and 32K as 32,768; None if it is not of that form."""
    found = _SUFFIXED.fullmatch(text)
    if found is None:
        return None
    digits, suffix = found.groups()
    if suffix.islower():
        return round(float(digits) * 10.0 ** (3 * _POWERS[suffix]))
    return None if "." in digits else int(digits) << (10 * _POWERS[suffix.lower()])


def _expand_iec(text: str) -> int | None:
    """Return 32k as 32,000 and 32Ki as 32,768; None if it is not of that form."""
    found = _IEC.fullmatch(text.strip())
    if found is None:
        return None
    whole, binary, digits, decimal = found.groups()
    if binary:
        return int(whole) << (10 * _POWERS[binary.lower()])
    return int(Decimal(digits) * 1000 ** _POWERS[decimal.lower()])


def _explain_number(text: str, flag: Flag, release: ReleaseFlags) -> str:
    if meant := _expand(text.strip(), release) or expand_suffix(text.strip()):
        return f"write it out: {meant}"
    bare = text.strip().replace(",", "").replace("_", "").replace("'", "")
    if bare != text.strip() and _INTEGER.fullmatch(bare):
        return f"write {bare}"
    if flag.suffixed and re.fullmatch(r"[0-9.]+ ?([kmgtKMGT])i?[bB]", text.strip()):
        if release.dialect.iec_suffixes:
            return "leave the B out: k, M, G are powers of 1000, Ki, Mi, Gi powers of 1024"
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


def _read_json(text: str, flag: Flag, release: ReleaseFlags) -> tuple[Any, list[Wrong]]:
    listed = release.listed
    if flag.keys and is_at_least(listed, JSON_SUFFIXES_SINCE):
        text = _STRING_OR_NUMBER.sub(_expand_in_json, text)
    is_object = release.dialect.json_objects
    try:
        value: Any = json.loads(text)
    except RecursionError:
        return None, [Wrong("json", expected(flag, release), "it is nested too deeply")]
    except ValueError as exc:
        hint = _explain_json(text, exc) if is_object else ""
        return None, [Wrong("json", expected(flag, release), hint)]
    is_array = flag.default in ('["*"]', "[]")
    if is_object and not isinstance(value, list if is_array else dict):
        kind = "a JSON array" if is_array else "a JSON object"
        example = '["https://example.org"]' if is_array else '{"key": "value"}'
        return None, [Wrong("json", kind, f"write it as {example}")]
    if not isinstance(value, dict) or not flag.keys:
        return value, []
    problems = (_check_named(name, member, flag, listed) for name, member in value.items())
    return value, [wrong for wrong in problems if wrong is not None]


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


def _check_named(name: str, value: object, flag: Flag, listed: str) -> Wrong | None:
    if name not in flag.keys:
        return _unknown_key(name, flag, listed)
    return _check_member(value, flag.keys[name], flag, listed)


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


def _check_member(value: object, key: Key, flag: Flag, listed: str) -> Wrong | None:
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
    return None if limits is None else _check_limits(value, limits, key, what)


def _check_limits(value: object, limits: Limits, key: Key, what: str) -> Wrong | None:
    """Judge what a key says, once its type is right."""
    if limits.choices and isinstance(value, str) and not _is_number(value):
        if (value.upper() if limits.folded else value) in limits.choices:
            return None
        text = f"one of: {', '.join(limits.choices)}"
        return Wrong("choice", text, _nearest(value, limits.choices), what)
    if limits.choices and not limits.folded:
        return Wrong("choice", f"one of: {', '.join(limits.choices)}", what=what)
    listed = value.split(",") if isinstance(value, str) else [value]
    members = value if isinstance(value, list) else listed
    if limits.bounds and not all(
        _is_scalar(each) and _is_within(float(each), limits.bounds) for each in members
    ):
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
