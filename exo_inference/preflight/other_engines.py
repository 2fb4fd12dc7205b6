"""What can be said of the memory that an engine needs whose own rules are not known. Pure.

`judgement.py` asks for the engines of `engines/cluster_engine.py`. Weights are the same bytes in every engine: where they
are more than the GPU's memory, that refuses. What an engine needs beside them, and how large its cache becomes, is not
sized: vLLM's figures would be another engine's.
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
        return f"not sized for {engine.title}: what it needs of memory is not known"
    other = _find_other(found, meaning)
    if other:
        return f"not sized for {engine.title}: what {other} means for its memory is not known"
    return {
        meaning.settings[name]: meaning.values.get(value, value)
        for name, value in found.items()
        if name in meaning.settings
    }


def size_weights(
    engine: ClusterEngine,
    flags: Sequence[str],
    reading: Reading,
    model: Architecture,
    gpu: Gpu,
    gpu_count: int,
) -> Plan | str:
    """Return the refusal of weights that are more than the memory; else what is known, in words."""
    settings = translate(engine, reading.values)
    if isinstance(settings, str):
        return settings
    try:
        parameters = EngineParameters.of(settings)
    except WrongSetting as error:
        flag = _find_flag(engine, reading, error.name)
        return f"not sized for {engine.title}: {flag} {error.finding}; change it, or leave it out"
    found = plan(model, gpu, gpu_count, parameters)
    if found.basis is None:
        return f"not sized for {engine.title}: {found.problems[0].detail}"
    weights, total = found.weights_bytes_per_gpu, found.total_bytes_per_gpu
    if weights <= total:
        return (
            f"not sized for {engine.title}: its weights take {weights / _GIB:.1f} GiB of the {total / _GIB:.1f} GiB "
            "of each GPU; what it needs beside them, its cache and its speed are not known"
        )
    text = (
        f"the weights alone take {weights / _GIB:.1f} GiB of each GPU, found {total / _GIB:.1f} GiB"
    )
    own = EngineParameters(engine=engine.name, engine_version=engine.version, others=tuple(flags))
    empty = Plan(found.model, found.gpu, found.gpu_count, own, Verdict.REFUSED)
    return replace(
        empty, problems=(Problem("memory", text),), ranks=found.ranks, total_bytes_per_gpu=total,
        components=tuple(each for each in found.components if each.name == "weights"),
        weights_bytes_per_gpu=weights, usd_per_hour=found.usd_per_hour,
    )  # fmt: skip


def _find_flag(engine: ClusterEngine, reading: Reading, setting: str) -> str:
    """Return the flag that means a setting of the planner, as the user wrote it."""
    settings = engine.meaning.settings if engine.meaning is not None else {}
    uses = (reading.find(name) for name, meant in settings.items() if meant == setting)
    return next(use.spelling for use in uses if use is not None)


def _find_other(found: Mapping[str, Any], meaning: VllmMeaning) -> str:
    for name, value in found.items():
        if name in meaning.others:
            return f"--{name}"
        if name in meaning.settings and value in meaning.others:
            return f"--{name} {value}"
    return ""
