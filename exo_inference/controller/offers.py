"""Whether the platform offers what a deployment asks for: the engine, and the GPUs of one replica. Pure.

`admission.py` asks here, once the GPU family is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from exo_inference.controller.problems import Issue, choice_issue, field_issue, short_number
from exo_inference.engines import ENGINES, get_engine, releases_of
from exo_inference.platforms.base import InstanceTypeInfo


def check_capacity(
    values: Mapping[str, Any],
    family: InstanceTypeInfo | None,
    engine: str | None,
    issues: list[Issue],
) -> None:
    """Refuse more GPUs for one replica than it can have: those of one node, or of several together."""
    count = values.get("gpu_count")
    if family is None or not isinstance(count, int) or count <= family.gpus_of_one_node:
        return
    if family.largest_node is None:
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


def check_engine(
    values: Mapping[str, Any], family: InstanceTypeInfo | None, issues: list[Issue]
) -> str | None:
    """Return the engine, the family's own where none is asked for; one that does not run adds an issue."""
    name: str | None = values.get("inference_engine")
    choices = ENGINES if family is None else family.possible_engines
    if not name:
        return "exo" if family is None else family.engine
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
    return engine == "exo" or version is None or version in releases_of(engine)
