"""How refusals are worded for engines of which one release is known. Pure; `reader.py` calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from exo_inference.engines.flags.argument_vector import Use, Vector
from exo_inference.engines.flags.catalogue import Flag, ReleaseFlags
from exo_inference.engines.flags.problems import ParameterProblem, problem_of
from exo_inference.engines.flags.suggestions import suggest
from exo_inference.engines.flags.values import expected_type


def unknown(
    use: Use, item: str, release: ReleaseFlags, owned: Mapping[str, str]
) -> ParameterProblem:
    """Say that there is no such flag, and which was meant."""
    offered = [flag for flag in release.flags if flag.name not in owned]
    known = [s for flag in offered for s in (*flag.spellings, flag.no_form) if s is not None]
    meant = suggest(use.spelling, known)
    step = f"; did you mean {meant}?" if meant else "; search for it in the parameter help"
    of = f" of {release.named}" if release.engine else ""
    return problem_of(use, "unknown", f"there is no parameter {use.spelling}{of}{step}")


def boolean(use: Use, flag: Flag, release: ReleaseFlags) -> ParameterProblem:
    """Say that a boolean has a value that it does not take."""
    expected = "no value"
    if release.dialect.boolean_words and not use.negated:
        expected = "true or false" if flag.no_form else "true"
    write = f"write {flag.spellings[0]} or {flag.no_form or 'leave it out'}"
    text = f"{use.spelling} is {use.values[0].text!r}, expected {expected}: {write}"
    return problem_of(use, "boolean", text)


def attached(use: Use, release: ReleaseFlags) -> ParameterProblem:
    """Say that flag and value are one item where the engine reads two."""
    text = f"{use.spelling} and its value are one item, which {release.named} does not read"
    return problem_of(use, "stray", f"{text}; give them as two items")


def missing(use: Use, flag: Flag, release: ReleaseFlags) -> ParameterProblem:
    """Say that a flag needs a value, or more."""
    count = flag.num_values or 1
    needs = "a value" if count == 1 else f"{count} values"
    example = " ".join([use.spelling, *["<value>"] * count])
    if release.dialect.attached and count == 1:
        example = f"{use.spelling}=<value>"
    text = f"{use.spelling} needs {needs} ({expected_type(flag, release)}); write {example}"
    return problem_of(use, "missing", text)


def stray(items: Sequence[str], index: int, vector: Vector) -> ParameterProblem:
    """Say that an item is neither flag nor value."""
    item = items[index]
    text = f"{item!r} is not a flag: flags start with --"
    if " " in item.strip():
        text = f"{item!r} is not a flag: give flags and values as separate items"
    elif index and items[index - 1].startswith("--"):
        text = f"{item!r} is not a flag, and {items[index - 1]!r} before it takes no value here"
    return ParameterProblem(index, text, "", "stray")
