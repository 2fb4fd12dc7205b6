"""What can be said of the memory of an engine that takes no flags of vLLM. Pure.

`judgement.py` asks for the engines of `engines/cluster_engine.py`. SGLang is planned by rules of its own
(`planner/static`). Of the others only weights are counted, which are the same bytes in every engine: where they are more
than the GPU's memory, that refuses. What they need beside them, and how large their cache becomes, is not sized: vLLM's
figures would be another engine's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from exo_inference.engines.cluster_engine import ClusterEngine, VllmMeaning
from exo_inference.engines.flags.reader import Reading
from exo_inference.planner import (
    Advice,
    Architecture,
    EngineParameters,
    Gpu,
    Plan,
    Verdict,
    plan,
)
from exo_inference.planner import advise as planner_advise
from exo_inference.planner.engine_rules import PLANNED
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
    sharing = next((name for name in found if name in meaning.of_share), None)
    share = meaning.name_of("gpu_memory_utilization") if sharing is not None else None
    if share is not None and share not in found:
        return f"not sized for {engine.title}: say --{share} too, whose default --{sharing} changes"
    return {
        meaning.settings[name]: meaning.values.get(value, value)
        for name, value in found.items()
        if name in meaning.settings
    }


def read_settings(engine: ClusterEngine, reading: Reading) -> EngineParameters | str:
    """Return what flags set that memory depends on, or why nothing is sized."""
    settings = translate(engine, reading.values)
    if isinstance(settings, str):
        return settings
    own = {"engine": engine.name, "engine_version": engine.version}
    try:
        return EngineParameters.of(settings, **(own if engine.name in PLANNED else {}))
    except WrongSetting as error:
        flag = _find_flag(engine, reading, error.name)
        return f"not sized for {engine.title}: {flag} {error.finding}; change it, or leave it out"


def size(
    engine: ClusterEngine,
    flags: Sequence[str],
    parameters: EngineParameters,
    model: Architecture,
    gpu: Gpu,
    gpu_count: int,
    free_bytes: int | None = None,
) -> Plan | str:
    """Return a plan by the engine's own rules, where it has some; else a refusal of weights, or what is known in words."""
    if engine.name not in PLANNED:
        return _size_weights(engine, flags, parameters, model, gpu, gpu_count)
    found = plan(model, gpu, gpu_count, parameters, free_bytes=free_bytes)
    if found.verdict is Verdict.UNKNOWN:
        return f"not sized for {engine.title}: {found.problems[0].detail}"
    notes = (*found.notes, *_length_notes(found, parameters, model))
    return replace(found, parameters=_as_written(engine, flags), notes=notes)


def _length_notes(found: Plan, parameters: EngineParameters, model: Architecture) -> Iterator[str]:
    """Say where requests may be no longer than the cache, which is no refusal."""
    asked = parameters.max_model_len or model.max_model_len
    if isinstance(asked, int) and 1 < found.max_model_len < asked:
        yield f"a request of more than {found.max_model_len:,} tokens, of the {asked:,} of the context, is answered with an error"


def advise(
    engine: ClusterEngine,
    flags: Sequence[str],
    parameters: EngineParameters,
    model: Architecture,
    gpu: Gpu,
    gpu_count: int,
    *,
    other_gpus: tuple[Gpu, ...] | None = None,
) -> tuple[Advice, ...]:
    """Return ways out of what may not fit, where the engine is planned by its own rules."""
    if engine.name not in PLANNED:
        return ()
    found = planner_advise(model, gpu, gpu_count, parameters, other_gpus=other_gpus)
    own = _as_written(engine, flags)
    return tuple(replace(each, plan=replace(each.plan, parameters=own)) for each in found)


def _as_written(engine: ClusterEngine, flags: Sequence[str]) -> EngineParameters:
    return EngineParameters(engine=engine.name, engine_version=engine.version, others=tuple(flags))


def _size_weights(
    engine: ClusterEngine,
    flags: Sequence[str],
    parameters: EngineParameters,
    model: Architecture,
    gpu: Gpu,
    gpu_count: int,
) -> Plan | str:
    """Return the refusal of weights that are more than the memory; else what is known, in words."""
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
    own = _as_written(engine, flags)
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
