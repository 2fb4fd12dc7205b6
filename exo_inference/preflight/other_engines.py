"""What vLLM's arithmetic says of the memory that another engine needs. Pure.

`judgement.py` asks for the engines of `engines/cluster_engine.py`. Weights are the same bytes in every engine, and
the KV cache of one token too; what an engine needs beside them is not. So only weights that are more than
the GPU's memory refuse, and everything else is told and refuses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from exo_inference.engines.cluster_engine import ClusterEngine, VllmMeaning
from exo_inference.engines.flags.reader import Reading
from exo_inference.planner import Architecture, EngineParameters, Gpu, Plan, Verdict, plan
from exo_inference.planner.parameters import WrongSetting
from exo_inference.planner.problem import Problem

_GIB = 2**30


def translate(engine: ClusterEngine, found: Mapping[str, Any]) -> dict[str, Any] | str:
    """Return the planner's settings that mean the same for memory, or why there are none.

    Args:
        engine: whose flags they are.
        found: what flags set, by their names.
    """
    meaning = engine.meaning
    if meaning is None:
        return f"memory was not judged: what {engine.title} needs of it is not known"
    other = _find_other(found, meaning)
    if other:
        return f"memory was not judged: what {other} means for {engine.title}'s is not known"
    return {
        meaning.settings[name]: meaning.values.get(value, value)
        for name, value in found.items()
        if name in meaning.settings
    }


def plan_as_vllm(
    engine: ClusterEngine,
    flags: Sequence[str],
    reading: Reading,
    model: Architecture,
    gpu: Gpu,
    gpu_count: int,
    free_bytes: int | None,
) -> Plan | str:
    """Return what can be said of the memory of a replica, or why nothing can."""
    settings = translate(engine, reading.values)
    if isinstance(settings, str):
        return settings
    try:
        parameters = EngineParameters.of(settings)
    except WrongSetting as error:
        return f"memory was not judged: {error.text}"
    found = plan(model, gpu, gpu_count, parameters, free_bytes=free_bytes)
    own = EngineParameters(engine=engine.name, engine_version=engine.version, others=tuple(flags))
    note = (
        f"weights and KV cache as vLLM would lay them out; what {engine.title} needs beside them, and "
        "how fast it is, was not judged"
    )
    verdict, problems = _conclude(found)
    return replace(
        found, parameters=own, verdict=verdict, problems=problems, speed=None, basis=None,
        notes=(note, *found.notes),
    )  # fmt: skip


def _find_other(found: Mapping[str, Any], meaning: VllmMeaning) -> str:
    for name, value in found.items():
        if name in meaning.others:
            return f"--{name}"
        if name in meaning.settings and value in meaning.others:
            return f"--{name} {value}"
    return ""


def _conclude(found: Plan) -> tuple[Verdict, tuple[Problem, ...]]:
    weights, total = found.weights_bytes_per_gpu, found.total_bytes_per_gpu
    if weights > total > 0:
        text = f"the weights alone take {weights / _GIB:.1f} GiB of each GPU, found {total / _GIB:.1f} GiB"
        return Verdict.REFUSED, (Problem("memory", text),)
    told = tuple(
        replace(problem, refuses=False, detail=f"as vLLM would see it, {problem.detail}")
        for problem in found.problems
    )
    if found.verdict is not Verdict.REFUSED:
        return found.verdict, told
    is_memory = any(problem.code == "memory" for problem in found.problems)
    return (Verdict.TIGHT if is_memory else Verdict.UNKNOWN), told
