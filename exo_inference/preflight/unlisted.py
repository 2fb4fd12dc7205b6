"""Releases whose flags are not listed: their memory is planned, their flags are not checked. Pure.

`judgement.py` asks for `deployment plan`; a deployment of such a release is refused elsewhere. Of vLLM the flags of many
releases are listed, of another engine that is planned by its own rules those of one.
"""

from __future__ import annotations

from exo_inference.engine_names import facts_of
from exo_inference.engines.base import Engine
from exo_inference.engines.cluster_engine import ClusterEngine
from exo_inference.engines.flags.catalogue import UnknownRelease, is_listed, listed_releases
from exo_inference.engines.flags.problems import ParameterProblem
from exo_inference.engines.flags.reader import Reading
from exo_inference.engines.registry import releases_of
from exo_inference.planner.engine_rules import PLANNED, parse_version, rules_for
from exo_inference.planner.parameters import SETTINGS

_OF_A_VALUE = frozenset({"missing", "boolean", "type", "range", "json"})


def is_unlisted(engine: str, version: str | None) -> bool:
    """Whether the memory of a release is planned though its flags are not listed.

    Raises:
        UnknownRelease: its rules were not read either.
    """
    facts = facts_of(engine)
    if facts.is_ours or engine not in PLANNED or version is None:
        return False
    if parse_version(version) is None:
        return False  # it is no release at all, which whoever reads the flags says
    if is_listed(version) if facts.takes_vllm_flags else version in releases_of(engine):
        return False
    rules = rules_for(engine, version)
    if rules.version < rules.oldest:
        oldest = ".".join(str(part) for part in rules.oldest)
        raise UnknownRelease(
            f"the rules of {rules.title} {version[:64]} were not read; those here begin at {oldest}",
            hint=f"Name a release from {oldest} on.",
        )
    return True


def unlisted_problems(reading: Reading, engine: Engine) -> tuple[ParameterProblem, ...]:
    """Return what is wrong with values that the plan hangs on; what flags that release has is not known."""
    planned = {name.replace("_", "-") for name in SETTINGS}
    if isinstance(engine, ClusterEngine):
        planned = set(engine.meaning.settings) if engine.meaning is not None else set()
    spellings = {
        use.spelling for use in reading.uses if use.flag is not None and use.flag.name in planned
    }
    return tuple(
        each for each in reading.problems if each.reason in _OF_A_VALUE and each.flag in spellings
    )


def unlisted_note(engine: str, version: str) -> str:
    """Return what a plan of such a release says."""
    rules = rules_for(engine, version)
    read = "the rules of that release"
    if rules.version > rules.newest:
        newest = ".".join(map(str, rules.newest))
        read = f"those of {newest}, the last that were read"
    known = releases_of(engine)
    listed = f"those of {known[0]} alone are known"
    if facts_of(engine).takes_vllm_flags:
        listed = f"those of {listed_releases()[0]} to {listed_releases()[-1]} are known"
    return f"the flags of {rules.title} {version} were not checked: {listed}; memory is planned by {read}"
