"""How refusals are worded for vLLM, whose flags came and went with releases. Pure; `reader.py` calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from exo_inference.engines.flags.argument_vector import BOOLEAN_WORDS, TRUE_WORDS, Use, Vector
from exo_inference.engines.flags.catalogue import Flag, ReleaseFlags, lifetime
from exo_inference.engines.flags.problems import ParameterProblem, problem_of, shorten
from exo_inference.engines.flags.successors import SUCCESSORS, rewrite_removed
from exo_inference.engines.flags.suggestions import suggest
from exo_inference.engines.flags.values import expected


def unknown(
    use: Use, item: str, release: ReleaseFlags, owned: Mapping[str, str]
) -> ParameterProblem:
    """Say why a flag is none in this release: another release has it, or none has."""
    if " " in item.partition("=")[0]:
        return _blank(use, item)
    known = lifetime(use.spelling)
    if known is None and use.spelling.startswith("--no-"):
        positive = "--" + use.spelling.removeprefix("--no-")
        if (flag := release.by_spelling.get(positive)) is not None:
            return _no_form(use, flag, release)
    if known is None:
        is_long = use.spelling.startswith("--")
        meant = suggest(use.spelling, release.spellings() if is_long else [*release.by_spelling])
        step = f"did you mean {meant}?" if meant else "search for it in the parameter help"
        text = f"{use.spelling} is not a flag of {release.named}, expected one that it has; {step}"
        return problem_of(use, "unknown", text)
    name = known.name
    if name in owned:
        text = f"{use.spelling} is set by the platform: {owned[name]}; leave it out"
        return problem_of(use, "owned", text)
    if name in release.by_name:
        text = f"{use.spelling} came with vLLM {known.since}, this is {release.named}"
        return problem_of(use, "not-yet", f"{text}; write {release.by_name[name].spellings[0]}")
    if known.until is not None and release.is_after(known.until):
        return _removed(use, name, known.until, release)
    text = (
        f"{use.spelling} came with vLLM {known.since}, this is {release.named}; leave it out, or "
        f"ask for version {known.since} or later"
    )
    return problem_of(use, "not-yet", text)


def _removed(use: Use, name: str, until: str, release: ReleaseFlags) -> ParameterProblem:
    successor = SUCCESSORS.get(name)
    written = rewrite_removed(name, tuple(value.text for value in use.values), release)
    step = f"write {' '.join(written)} instead" if written else "leave it out"
    note = f" ({successor.note})" if successor and successor.note else ""
    text = f"{use.spelling} was last in vLLM {until}, this is {release.named}{note}; {step}"
    return problem_of(use, "removed", text)


def _no_form(use: Use, flag: Flag, release: ReleaseFlags) -> ParameterProblem:
    what = "is on only when given" if flag.type == "boolean" else f"takes {expected(flag, release)}"
    step = f"leave {flag.spellings[0]} out to have it off"
    text = f"{use.spelling} does not exist: {flag.spellings[0]} {what}; {step}"
    return problem_of(use, "no-form", text)


def _blank(use: Use, item: str) -> ParameterProblem:
    flag, _, value = item.partition(" ")
    text = (
        f"{shorten(item)} is one item with a blank, expected flag and value as separate items; "
        f"write {flag}={value.strip()}"
    )
    return problem_of(use, "stray", text)


def boolean(use: Use, flag: Flag, release: ReleaseFlags) -> ParameterProblem:
    """Say that a boolean has a value, and how to write what was meant."""
    text = use.values[0].text
    is_on = (text.lower() in TRUE_WORDS) != use.negated
    on, off = flag.spellings[0], flag.no_form
    step = f"write {on}" if is_on else (f"write {off}" if off else "leave it out")
    if text.lower() not in BOOLEAN_WORDS:
        step = f"write {on} or {off}" if off else f"write {on} or leave it out"
    return problem_of(
        use, "boolean", f"{use.spelling} is {shorten(text)}, expected no value; {step}"
    )


def missing(use: Use, flag: Flag, release: ReleaseFlags) -> ParameterProblem:
    """Say that a flag has no value."""
    values = {"json": "'{…}'", "integer": "<number>", "number": "<number>"}
    example = flag.choices[0] if flag.choices else values.get(flag.type, "<text>")
    text = (
        f"{use.spelling} has no value, expected {expected(flag, release)}; "
        f"write {use.spelling} {example}"
    )
    return problem_of(use, "missing", text)


def stray(items: Sequence[str], index: int, vector: Vector) -> ParameterProblem:
    """Say that an item belongs to no flag."""
    item = items[index]
    before = next((use for use in reversed(vector.uses) if use.index < index), None)
    if " --" in item:
        step = "give each flag and each value as an item of its own"
    elif before is not None and before.index + before.items == index and before.flag is not None:
        takes = "no value" if before.flag.type == "boolean" else "one value"
        step = f"{before.spelling} before it takes {takes}, so leave it out"
    else:
        step = "flags begin with --"
    detail = f"{shorten(item)} belongs to no flag, expected a flag; {step}"
    return ParameterProblem(index, detail, "", "stray")
