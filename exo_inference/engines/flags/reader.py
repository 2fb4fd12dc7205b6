"""Read an argument vector once: what it sets, and everything that is wrong with it, all at once. Pure.

Engines call this with their flags of one release and the flags that the platform owns, and hand the
`Reading` on; nobody looks for a flag in the text again. What rewrites a vector for people to paste (`migration.py`, `merge`)
splits it by the same rules. What needs to know the model or the GPU is in `model_rules.py`.
Each problem names the flag, what was found, what is expected and one next step; where the words depend on
whether releases are known, they are those of `vllm_words.py` or of `plain_words.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from exo_inference.engines.flags import plain_words, vllm_words
from exo_inference.engines.flags.argument_vector import (
    BOOLEAN_WORDS,
    TRUE_WORDS,
    Use,
    Value,
    is_flag,
    split,
)
from exo_inference.engines.flags.catalogue import Flag, ReleaseFlags
from exo_inference.engines.flags.problems import ParameterProblem, problem_of, shorten
from exo_inference.engines.flags.values import Wrong, read_key, read_value

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffe\uffff\ud800-\udfff]")
"""What no process takes as an argument, or no YAML holds."""


@dataclass(frozen=True, slots=True)
class Reading:
    """An argument vector that was read. It is shared and does not change.

    Attributes:
        release: the flags it was read by.
        uses: every flag that was written, in order.
        problems: everything that is wrong, in the order of the items.
        items: the argument vector.
        values: what is set, by the names of flags: numbers, texts, booleans, what JSON says, and tuples
            of these for flags that take several. A flag that was given again has its last value, as in
            the engines; one whose value is wrong, or as if it had not been given, is left out.
    """

    release: ReleaseFlags = field(repr=False)
    uses: tuple[Use, ...]
    problems: tuple[ParameterProblem, ...]
    items: tuple[str, ...]
    values: Mapping[str, Any]

    def find(self, name: str) -> Use | None:
        """Return the last use of a flag, by its name."""
        named = (use for use in reversed(self.uses) if use.flag is not None)
        return next((use for use in named if use.flag and use.flag.name == name), None)


def read_vector(items: Sequence[str], release: ReleaseFlags, owned: Mapping[str, str]) -> Reading:
    """Read an argument vector.

    Args:
        items: the argument vector: `--flag=value`, or flag and value as two items.
        release: the flags that exist.
        owned: names of flags that belong to the platform, each with the reason or the field to use.
    """
    vector = split(items, release)
    words = vllm_words if release.dialect.has_releases else plain_words
    problems = [words.stray(items, index, vector) for index in vector.strays]
    values: dict[str, Any] = {}
    first: dict[str, Use] = {}
    for use in vector.uses:
        value, found = _read_use(use, items, release, owned)
        if use.flag is not None and not found:
            found = _check_repetition(use, use.flag, first)
            _keep(values, use, use.flag, value)
        problems += found
    problems += _control_characters(items, release, {problem.index for problem in problems})
    problems.sort(key=lambda problem: problem.index)
    return Reading(release, vector.uses, tuple(problems), tuple(items), values)


def _read_use(
    use: Use, items: Sequence[str], release: ReleaseFlags, owned: Mapping[str, str]
) -> tuple[Any, list[ParameterProblem]]:
    """Return what one use sets, and what is wrong with it."""
    flag, dialect = use.flag, release.dialect
    words = vllm_words if dialect.has_releases else plain_words
    name = use.spelling.removeprefix("--") if flag is None else flag.name
    if name in owned:
        text = f"{use.spelling} is set by the platform: {owned[name]}; leave it out"
        return None, [problem_of(use, "owned", text)]
    if flag is None:
        return None, [words.unknown(use, items[use.index], release, owned)]
    if use.path:
        return _read_member(use, flag, release)
    if flag.type == "boolean":
        is_on = _read_boolean(use, flag, release)
        return is_on, [words.boolean(use, flag, release)] if is_on is None else []
    if use.attached and not dialect.attached:
        return None, [plain_words.attached(use, release)]
    if len(use.values) < (flag.num_values or 1):
        return None, [words.missing(use, flag, release)]
    read = [(value, *read_value(value.text, flag, release)) for value in use.values]
    found = [_wrong(use, value, each) for value, _, wrong in read for each in wrong]
    if not dialect.has_releases:
        found = found[:1]
    several = tuple(each for _, each, _ in read)
    return several if flag.num_values != 1 else several[0], found


def _read_boolean(use: Use, flag: Flag, release: ReleaseFlags) -> bool | None:
    """Return what a boolean is set to; None for a value that it does not take."""
    if not use.values:
        return not use.negated
    word = use.values[0].text.lower()
    if not release.dialect.boolean_words or use.negated or word not in BOOLEAN_WORDS:
        return None
    is_on = word in TRUE_WORDS
    return is_on if is_on or flag.no_form else None


def _read_member(use: Use, flag: Flag, release: ReleaseFlags) -> tuple[Any, list[ParameterProblem]]:
    """Return what one key of a JSON object is set to."""
    if not use.values:
        name = ".".join([use.spelling, *use.path])
        detail = f"{name} has no value, expected one for that key; write {name}=<value>"
        return None, [problem_of(use, "missing", detail)]
    value, wrong = read_key(use.path, use.values[0].text, flag, release)
    return value, [] if wrong is None else [_wrong(use, use.values[0], wrong)]


def _keep(values: dict[str, Any], use: Use, flag: Flag, value: Any) -> None:
    """Add what a use sets; a key goes into the object that is there, or into a new one."""
    if not use.path and value is None:
        values.pop(flag.name, None)
        return
    for key in reversed(use.path):
        value = {key: value}
    present = values.get(flag.name)
    is_member = bool(use.path) and isinstance(present, dict)
    values[flag.name] = _merge(present, value) if is_member else value


def _merge(old: Any, new: Any) -> Any:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    return {**old, **{key: _merge(old.get(key), value) for key, value in new.items()}}


def _wrong(use: Use, value: Value, wrong: Wrong) -> ParameterProblem:
    name = ".".join([use.spelling, *use.path])
    found = f"in {name}, {wrong.what}" if wrong.what else f"{name} is {shorten(value.text)}"
    step = wrong.hint or f"change it, or leave {use.spelling} out"
    text = f"{found}, expected {wrong.expected}; {step}"
    return ParameterProblem(value.index, text, use.spelling, wrong.reason)


def _check_repetition(use: Use, flag: Flag, first: dict[str, Use]) -> list[ParameterProblem]:
    """One flag may be given once; keys of one object once each."""
    earlier = first.setdefault(".".join([flag.name, *use.path]), use)
    whole = first.get(flag.name)
    if earlier is use and use.path and whole is not None:
        earlier = whole  # the object is there already, and keys would replace it
    if earlier is use or flag.repeatable:
        return []
    detail = (
        f"{use.spelling} sets {flag.name} a second time, expected once; item {earlier.index} "
        f"({earlier.spelling}) does so already, so leave one of them out"
    )
    return [problem_of(use, "duplicate", detail)]


def _control_characters(
    items: Sequence[str], release: ReleaseFlags, reported: set[int]
) -> Iterator[ParameterProblem]:
    for index, item in enumerate(items):
        if _CONTROL.search(item) and index not in reported:
            detail = f"{shorten(item)} holds a control character, expected text; leave it out"
            flag = item.partition("=")[0] if is_flag(item, release) else ""
            yield ParameterProblem(index, detail, flag, "type")
