"""What can be said of the memory of an engine that takes no flags of vLLM. Pure.

`judgement.py` asks for the engines of `engines/cluster_engine.py`. SGLang is planned by rules of its own
(`planner/static`); engines of GGUF files are asked of `gguf_engine.py`. Of the others only weights are counted, which are
the same bytes in every engine: where they are more than the GPU's memory, that refuses. What they need beside them, and
how large their cache becomes, is not sized: vLLM's figures would be another engine's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from exo_inference.engines.cluster_engine import ClusterEngine, VllmMeaning
from exo_inference.engines.flags.reader import Reading
from exo_inference.planner.advice import Advice
from exo_inference.planner.advice import advise as planner_advise
from exo_inference.planner.engine_rules import PLANNED, rules_for
from exo_inference.planner.gpu_catalog import Gpu
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.model.shapes import KvKind
from exo_inference.planner.parameters import EngineParameters, WrongSetting
from exo_inference.planner.planning import plan
from exo_inference.planner.problem import Problem
from exo_inference.planner.verdict import Plan, Verdict
from exo_inference.preflight.engine_start import Start
from exo_inference.preflight.sure_length import with_sure_length

_GIB = 2**30


def size(start: Start) -> Plan | str:
    """Return a plan by the engine's own rules, where it has some; else a refusal of weights, or what is known in words."""
    settings = translate(start.engine, start.reading)
    if isinstance(settings, str):
        return settings
    lack = _find_lack(start)
    if lack is None:
        own = start.own_parameters(settings)
        found = with_sure_length(
            _plan(start, own), lambda length: _plan(start, replace(own, max_model_len=length))
        )
        if found.verdict is not Verdict.UNKNOWN:
            notes = (*found.notes, *_length_notes(found, own, start.model))
            return replace(found, parameters=start.written, notes=notes)
        lack = found.problems[0].detail
    weights = _size_weights(start, settings)
    if isinstance(weights, Plan) or start.engine.name not in PLANNED:
        return weights
    return f"not sized for {start.engine.title}: {lack}"


def _plan(start: Start, parameters: EngineParameters) -> Plan:
    return plan(start.model, start.gpu, start.gpu_count, parameters, free_bytes=start.free_bytes)


def advise(start: Start, *, other_gpus: tuple[Gpu, ...] | None = None) -> tuple[Advice, ...]:
    """Return ways out of what may not fit, where the engine is planned by its own rules."""
    settings = translate(start.engine, start.reading)
    if isinstance(settings, str) or _find_lack(start) is not None:
        return ()
    found = planner_advise(
        start.model, start.gpu, start.gpu_count, start.own_parameters(settings),
        other_gpus=other_gpus, free_bytes=start.free_bytes,
    )  # fmt: skip
    written = start.written
    return tuple(replace(each, plan=replace(each.plan, parameters=written)) for each in found)


def translate(engine: ClusterEngine, reading: Reading) -> dict[str, Any] | str:
    """Return the planner's settings that mean the same for memory, or why there are none."""
    meaning, found = engine.meaning, reading.values
    if meaning is None:
        return f"not sized for {engine.title}: what it needs of memory is not known"
    other = _find_other(found, meaning)
    if other:
        return f"not sized for {engine.title}: what {other} means for its memory is not known"
    settings = {
        meaning.settings[name]: meaning.values.get(value, value)
        for name, value in found.items()
        if name in meaning.settings
    }
    if engine.name in PLANNED:
        if (settings.get("max_num_batched_tokens") or 0) < 0:
            del settings["max_num_batched_tokens"]  # prompts are not cut
        for name in ("max_model_len", "num_gpu_blocks_override"):
            if settings.get(name) in (-1, 1):
                flag = _find_flag(engine, reading, name)
                return f"not sized for {engine.title}: {flag} is {settings[name]}, expected 2 or more; change it, or leave it out"
    try:
        EngineParameters.of(settings)
    except WrongSetting as error:
        flag = _find_flag(engine, reading, error.name)
        return f"not sized for {engine.title}: {flag} {error.finding}; change it, or leave it out"
    return settings


def _find_lack(start: Start) -> str | None:
    """Return why only weights can be told; None where the engine's own rules tell all."""
    engine, found = start.engine, start.reading.values
    meaning = engine.meaning
    if meaning is None or engine.name not in PLANNED:
        return "what it needs beside its weights is not known"
    traits = set(_traits(start))
    changing = {
        name for trait, names in meaning.of_traits.items() if trait in traits for name in names
    }
    for name in found:
        if name in changing:
            return f"what --{name} means for its cache is not known"
    share = meaning.name_of("gpu_memory_utilization")
    if share in found:
        return None
    chunk = meaning.name_of("max_num_batched_tokens")
    for name in found:
        if name in meaning.of_share or (name == chunk and found[name] <= 0):
            return f"--{name} changes what --{share} is by default; say --{share} too"
    return None


def _traits(start: Start) -> Iterator[str]:
    """Yield what a model has that flags of its engine are about."""
    model, static = start.model, rules_for(start.engine.name, start.version).static_share
    specs = [layer.kv for layer, _ in model.layer_counts if layer.kv is not None]
    if static is not None and model.model_type in static.windowed:
        yield "windows"
    if static is not None and model.model_type in static.text_first:
        yield "text-first"
    if any(spec.kind is KvKind.STATE for spec in specs):
        yield "states"
    if any(spec.is_sparse for spec in specs):
        yield "index"
    if model.vision is not None:
        yield "images"


def _length_notes(found: Plan, parameters: EngineParameters, model: Architecture) -> Iterator[str]:
    """Say where requests may be no longer than the cache, which is no refusal."""
    asked = parameters.max_model_len or model.max_model_len
    refuses = any(problem.refuses for problem in found.problems)
    if isinstance(asked, int) and 1 < found.max_model_len < asked and not refuses:
        yield f"a request of more than {found.max_model_len:,} tokens, of the {asked:,} of the context, is answered with an error"


def _size_weights(start: Start, settings: Mapping[str, Any]) -> Plan | str:
    """Return the refusal of weights that are more than the memory; else what is known, in words."""
    engine = start.engine
    found = plan(start.model, start.gpu, start.gpu_count, EngineParameters.of(settings))
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
    empty = Plan(found.model, found.gpu, found.gpu_count, start.written, Verdict.REFUSED)
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
        if str(value) in meaning.other_values.get(name, ()):
            return f"--{name} {value}"
    return ""
