"""Check a vLLM argument vector against one release: everything that is wrong, all at once. Pure.

`vllm.py` calls this with the flags the platform owns. What needs to know the model or the GPU is
in `model_rules.py`. Each problem names the flag, what was found, what is expected and one next step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from exo_inference.engines.argument_vector import BOOLEAN_WORDS, Use, Value, Vector, is_flag, split
from exo_inference.engines.catalogue import Flag, ReleaseFlags, lifetime
from exo_inference.engines.parameters import ParameterProblem
from exo_inference.engines.successors import SUCCESSORS, rewrite_removed
from exo_inference.engines.suggestions import suggest
from exo_inference.engines.values import Wrong, expected, judge, judge_key

_SHOWN = 80
"""Characters of a value that a message repeats."""


def check_vector(
    items: Sequence[str], release: ReleaseFlags, owned: Mapping[str, str]
) -> list[ParameterProblem]:
    """Return everything that is wrong with an argument vector, in the order of its items.

    Args:
        items: the argument vector.
        release: the flags that exist.
        owned: names of flags that belong to the platform, each with the reason or the field to use.
    """
    vector = split(items, release)
    problems = [_stray(items, index, vector) for index in vector.strays]
    first: dict[str, Use] = {}
    for use in vector.uses:
        found = list(_check_use(use, items, release, owned))
        if not found and use.flag is not None:
            found = list(_check_repetition(use, first))
        problems += found
    problems += _control_characters(items, {problem.index for problem in problems})
    return sorted(problems, key=lambda problem: problem.index)


def _check_use(
    use: Use, items: Sequence[str], release: ReleaseFlags, owned: Mapping[str, str]
) -> Iterator[ParameterProblem]:
    flag = use.flag
    if flag is None:
        yield _unknown(use, items[use.index], release, owned)
    elif flag.name in owned:
        text = f"{use.spelling} is set by the platform: {owned[flag.name]}; leave it out"
        yield _problem(use, "owned", text)
    elif use.path:
        yield from _check_key(use, flag, release.listed)
    elif flag.type == "boolean":
        yield from _check_boolean(use, flag)
    elif not use.values:
        text = (
            f"{use.spelling} has no value, expected {expected(flag)}; write {_example(use, flag)}"
        )
        yield _problem(use, "missing", text)
    else:
        for value in use.values:
            for wrong in judge(value.text, flag, release.listed):
                yield _wrong(use, value, wrong)


def _problem(use: Use, reason: str, detail: str, index: int | None = None) -> ParameterProblem:
    return ParameterProblem(use.index if index is None else index, detail, use.spelling, reason)


def _wrong(use: Use, value: Value, wrong: Wrong) -> ParameterProblem:
    name = ".".join([use.spelling, *use.path])
    found = f"in {name}, {wrong.what}" if wrong.what else f"{name} is {_shorten(value.text)}"
    step = wrong.hint or f"change it, or leave {use.spelling} out"
    text = f"{found}, expected {wrong.expected}; {step}"
    return _problem(use, wrong.reason, text, value.index)


def _check_boolean(use: Use, flag: Flag) -> Iterator[ParameterProblem]:
    if use.values or use.attached:
        text = use.values[0].text if use.values else ""
        is_on = (text.lower() in ("true", "1", "yes", "on")) != use.negated
        on, off = flag.spellings[0], flag.no_form
        step = f"write {on}" if is_on else (f"write {off}" if off else "leave it out")
        if text.lower() not in BOOLEAN_WORDS:
            step = f"write {on} or {off}" if off else f"write {on} or leave it out"
        detail = f"{use.spelling} is {_shorten(text)}, expected no value; {step}"
        yield _problem(use, "boolean", detail)


def _check_key(use: Use, flag: Flag, listed: str) -> Iterator[ParameterProblem]:
    name = ".".join([use.spelling, *use.path])
    if not use.values:
        detail = f"{name} has no value, expected one for that key; write {name}=<value>"
        yield _problem(use, "missing", detail)
        return
    wrong = judge_key(use.path, use.values[0].text, flag, listed)
    if wrong is not None:
        yield _wrong(use, use.values[0], wrong)


def _check_repetition(use: Use, first: dict[str, Use]) -> Iterator[ParameterProblem]:
    """One flag may be given once; keys of one object once each."""
    assert use.flag is not None
    name = ".".join([use.flag.name, *use.path])
    earlier = first.setdefault(name, use)
    whole = first.get(use.flag.name)
    if earlier is use and use.path and whole is not None:
        earlier = whole  # the object is there already, and keys would replace it
    if earlier is use or use.flag.repeatable:
        return
    detail = (
        f"{use.spelling} sets {use.flag.name} a second time, expected once; item {earlier.index} "
        f"({earlier.spelling}) does so already, so leave one of them out"
    )
    yield _problem(use, "duplicate", detail)


def _unknown(
    use: Use, item: str, release: ReleaseFlags, owned: Mapping[str, str]
) -> ParameterProblem:
    """Say why a flag is none in this release: another release has it, or none has."""
    if " " in item.partition("=")[0]:
        return _blank(use, item)
    known = lifetime(use.spelling)
    if known is None and use.spelling.startswith("--no-"):
        positive = "--" + use.spelling.removeprefix("--no-")
        if (flag := release.by_spelling.get(positive)) is not None:
            return _no_form(use, flag)
    if known is None:
        is_long = use.spelling.startswith("--")
        meant = suggest(use.spelling, release.spellings() if is_long else [*release.by_spelling])
        step = f"did you mean {meant}?" if meant else "search for it in the parameter help"
        text = f"{use.spelling} is not a flag of {release.named}, expected one that it has; {step}"
        return _problem(use, "unknown", text)
    name = known.name
    if name in owned:
        text = f"{use.spelling} is set by the platform: {owned[name]}; leave it out"
        return _problem(use, "owned", text)
    if name in release.by_name:
        text = f"{use.spelling} came with vLLM {known.since}, this is {release.named}"
        return _problem(use, "not-yet", f"{text}; write {release.by_name[name].spellings[0]}")
    if known.until is not None and release.is_after(known.until):
        return _removed(use, name, known.until, release)
    text = (
        f"{use.spelling} came with vLLM {known.since}, this is {release.named}; leave it out, or "
        f"ask for version {known.since} or later"
    )
    return _problem(use, "not-yet", text)


def _removed(use: Use, name: str, until: str, release: ReleaseFlags) -> ParameterProblem:
    successor = SUCCESSORS.get(name)
    written = rewrite_removed(name, tuple(value.text for value in use.values), release)
    step = f"write {' '.join(written)} instead" if written else "leave it out"
    note = f" ({successor.note})" if successor and successor.note else ""
    text = f"{use.spelling} was last in vLLM {until}, this is {release.named}{note}; {step}"
    return _problem(use, "removed", text)


def _no_form(use: Use, flag: Flag) -> ParameterProblem:
    what = "is on only when given" if flag.type == "boolean" else f"takes {expected(flag)}"
    step = f"leave {flag.spellings[0]} out to have it off"
    text = f"{use.spelling} does not exist: {flag.spellings[0]} {what}; {step}"
    return _problem(use, "no-form", text)


def _blank(use: Use, item: str) -> ParameterProblem:
    flag, _, value = item.partition(" ")
    text = (
        f"{_shorten(item)} is one item with a blank, expected flag and value as separate items; "
        f"write {flag}={value.strip()}"
    )
    return _problem(use, "stray", text)


def _stray(items: Sequence[str], index: int, vector: Vector) -> ParameterProblem:
    item = items[index]
    before = next((use for use in reversed(vector.uses) if use.index < index), None)
    if " --" in item:
        step = "give each flag and each value as an item of its own"
    elif before is not None and before.index + before.items == index and before.flag is not None:
        takes = "no value" if before.flag.type == "boolean" else "one value"
        step = f"{before.spelling} before it takes {takes}, so leave it out"
    else:
        step = "flags begin with --"
    detail = f"{_shorten(item)} belongs to no flag, expected a flag; {step}"
    return ParameterProblem(index, detail, "", "stray")


def _control_characters(items: Sequence[str], reported: set[int]) -> Iterator[ParameterProblem]:
    for index, item in enumerate(items):
        bad = next((c for c in item if c == "\x7f" or (ord(c) < 32 and c not in "\n\t")), None)
        if bad is not None and index not in reported:
            detail = f"{_shorten(item)} holds a control character, expected text; leave it out"
            flag = item.partition("=")[0] if is_flag(item) else ""
            yield ParameterProblem(index, detail, flag, "type")


def _example(use: Use, flag: Flag) -> str:
    if flag.choices:
        return f"{use.spelling} {flag.choices[0]}"
    values = {"json": "'{…}'", "integer": "<number>", "number": "<number>"}
    return f"{use.spelling} {values.get(flag.type, '<text>')}"


def _shorten(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN else repr(text[:_SHOWN]) + "…"
