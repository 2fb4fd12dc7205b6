"""Releases of vLLM whose flags are not listed: their memory is planned, their flags are not checked. Pure.

`judgement.py` asks for `deployment plan`; a deployment of such a release is refused elsewhere.
"""

from __future__ import annotations

from exo_inference.engine_names import facts_of
from exo_inference.engines.flags.catalogue import (
    UnknownRelease,
    is_at_least,
    is_listed,
    listed_releases,
)
from exo_inference.engines.flags.problems import ParameterProblem
from exo_inference.engines.flags.reader import Reading
from exo_inference.planner.engine_rules import parse_version, rules_for
from exo_inference.planner.parameters import SETTINGS

_OF_A_VALUE = frozenset({"missing", "boolean", "type", "range", "json"})


def is_unlisted(engine: str, version: str | None) -> bool:
    """Whether the memory of a release is planned though its flags are not listed.

    Raises:
        UnknownRelease: its rules were not read either.
    """
    facts = facts_of(engine)
    if facts.is_ours or not facts.takes_vllm_flags or version is None or is_listed(version):
        return False
    if parse_version(version) is None:
        return False  # it is no release at all, which whoever reads the flags says
    rules = rules_for(engine, version)
    if rules.version < rules.oldest:
        oldest = ".".join(str(part) for part in rules.oldest)
        raise UnknownRelease(
            f"the rules of vLLM {version[:64]} were not read; those here begin at {oldest}",
            hint=f"Name a release from {oldest} on.",
        )
    return True


def unlisted_problems(reading: Reading) -> tuple[ParameterProblem, ...]:
    """Return what is wrong with values that the plan hangs on; what flags that release has is not known."""
    planned = {name.replace("_", "-") for name in SETTINGS}
    spellings = {
        use.spelling for use in reading.uses if use.flag is not None and use.flag.name in planned
    }
    return tuple(
        each for each in reading.problems if each.reason in _OF_A_VALUE and each.flag in spellings
    )


def unlisted_note(version: str) -> str:
    """Return what a plan of such a release says."""
    listed = listed_releases()
    is_later = not is_at_least(listed[-1], version)
    rules = (
        f"those of {listed[-1]}, the last that were read"
        if is_later
        else "the rules of that release"
    )
    return (
        f"the flags of vLLM {version} were not checked: those of {listed[0]} to {listed[-1]} are known; "
        f"memory is planned by {rules}"
    )
