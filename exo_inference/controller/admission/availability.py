"""Whether the platform offers what a deployment asks for: the engine, and the GPUs of one replica. Pure.

`deployment.py` asks here, once the GPU family is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from exo_inference.controller.admission.problems import (
    Issue,
    choice_issue,
    field_issue,
    short_number,
)
from exo_inference.engine_names import OWN_ENGINE, facts_of
from exo_inference.engines import ENGINES, get_engine, releases_of
from exo_inference.platforms.base import InstanceTypeInfo
from exo_inference.resources import DeploymentSpec


def check_capacity(
    count: int | None,
    family: InstanceTypeInfo | None,
    engine: str | None,
    issues: list[Issue],
) -> None:
    """Refuse more GPUs for one replica than it can have: those of one node, or of several together."""
    if family is None or count is None or count <= family.gpus_of_one_node:
        return
    if family.room is not None and family.gpu is not None and family.gpu.vendor == "cpu":
        text = (
            f"is {short_number(count)}, and a replica on the CPU has 1, which is its share of all "
            "cores; ask for 1, and for more replicas where one is not enough"
        )
        # What the engine says of so many is the same once more.
        issues[:] = [each for each in issues if each.location != "$['gpu-count']"]
        issues.append(field_issue("gpu-count", text, status=412))
    elif family.largest_node is None:
        text = (
            f"asks for {short_number(count)} of {family.family}, found {family.total_gpus} on the "
            "largest machine"
        )
        issues.append(field_issue("gpu-count", text, status=412))
    elif (refusal := _refuse_span(count, family, engine)) is not None:
        issues.append(Issue(refusal, "$['gpu-count']", refusal, 412))


def _refuse_span(count: int, family: InstanceTypeInfo, engine: str | None) -> str | None:
    """Return why no replica can have the GPUs of several nodes, or None where it can."""
    largest = family.gpus_of_one_node
    text = f"no node has {short_number(count)} {family.family}; the largest has {largest}"
    spanning = [name for name in ENGINES if get_engine(name).spans_nodes]
    if count > family.total_gpus:
        return f"{text}, all together {family.total_gpus}; ask for fewer, or add nodes"
    if family.family == "cpu" or not largest:
        return f"{text}; ask for fewer, or add a larger node"
    if not family.spans_nodes:
        return f"{text}; switch features.leaderWorkerSet on for models that span nodes"
    if engine is not None and engine not in spanning:
        return f"{text}; {engine} cannot span nodes, {' and '.join(spanning)} can"
    if count % largest:
        return f"{text}; a replica that spans nodes has all their GPUs: a multiple of {largest}"
    return None


def refuse_other_nodes(
    before: DeploymentSpec, after: DeploymentSpec, families: Sequence[InstanceTypeInfo]
) -> str:
    """Return why a replica cannot come to have another number of nodes; empty if it has as many.

    Replicas that span nodes are kept by another kind of object, which cannot take the place of the one
    that is there without a gap.
    """
    old, new = _num_nodes(before, families), _num_nodes(after, families)
    if old == new:
        return ""
    return (
        f"would make a replica have {_count_nodes(new)} where it has {_count_nodes(old)} now, which cannot "
        "be done in place; create another deployment with it, and delete this one when that is ready"
    )


def _num_nodes(spec: DeploymentSpec, families: Sequence[InstanceTypeInfo]) -> int:
    family = next((each for each in families if each.family == spec.gpu_type), None)
    largest = None if family is None else family.largest_node
    return 1 if not largest or spec.gpu_type == "cpu" else -(-spec.gpu_count // largest)


def _count_nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"


def check_engine(
    name: str | None, family: InstanceTypeInfo | None, issues: list[Issue]
) -> str | None:
    """Return the engine, the family's own where none is asked for; one that does not run adds an issue."""
    choices = ENGINES if family is None else family.possible_engines
    if not name:
        return OWN_ENGINE if family is None else family.engine
    if name in choices:
        return name
    issue = choice_issue("inference-engine", name[:64], choices)
    if family is not None and name in ENGINES:
        here = f"{name} does not run on {family.family} of this platform"
        issue = replace(issue, sentence=f"{here}; possible: {', '.join(choices)}")
    issues.append(issue)
    return None


def can_judge(engine: str, version: str | None) -> bool:
    """Whether flags can be judged; those of exo-engine are the same for every version."""
    return facts_of(engine).is_ours or version is None or version in releases_of(engine)
