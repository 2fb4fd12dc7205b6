"""The plan and the ways out of an engine that loads GGUF files, from its flags as they were read. Pure.

`judgement.py` asks; the rules are in `planner/llama_cpp`. What they do not know is told in words.
"""

from __future__ import annotations

from dataclasses import replace

from exo_inference.planner.advice import Advice, price_text
from exo_inference.planner.gpu_catalog import Gpu, families
from exo_inference.planner.llama_cpp.planning import (
    check_cache_types,
    check_files,
    find_lack,
    plan_llama_cpp,
)
from exo_inference.planner.llama_cpp.room import Asked
from exo_inference.planner.llama_cpp.setting import read_setting
from exo_inference.planner.llama_cpp.ways import Way, find_ways
from exo_inference.planner.problem import Problem
from exo_inference.planner.verdict import Plan, Verdict
from exo_inference.planner.written_flags import WrittenFlag
from exo_inference.preflight.engine_start import Start


def size(start: Start) -> Plan | str:
    """Return the plan of a start whose flags are right, or why there is none."""
    problem = check_files(start.model)
    if problem is not None:
        return _refused(start, problem)
    asked = _read(start)
    if isinstance(asked, str):
        return f"not sized for {start.engine.title}: {asked}"
    problem = check_cache_types(asked.setting)
    if problem is not None:
        return _refused(start, problem)
    found = plan_llama_cpp(asked, start.written)
    if not found.available_kv_bytes_per_gpu:
        return (
            f"not sized for {start.engine.title}: its cache is in main memory, which is not judged"
        )
    return found


def _refused(start: Start, problem: Problem) -> Plan:
    empty = Plan(start.model.name, start.gpu.name, start.gpu_count, start.written, Verdict.REFUSED)
    return replace(empty, problems=(problem,), usd_per_hour=start.gpu.price(start.gpu_count))


def advise(start: Start, *, other_gpus: tuple[Gpu, ...] | None = None) -> tuple[Advice, ...]:
    """Return ways out of a start that has no room, each with the plan after it."""
    if check_files(start.model) is not None:
        return ()
    asked = _read(start)
    if isinstance(asked, str) or check_cache_types(asked.setting) is not None:
        return ()
    before = plan_llama_cpp(asked, start.written)
    if before.verdict is Verdict.FITS:
        return ()
    others = families() if other_gpus is None else other_gpus
    found = find_ways(asked, start.reading.values, others)
    return tuple(_advice(start, before, way) for way in found)


def _read(start: Start) -> Asked | str:
    assert start.engine.gguf is not None, "of an engine that loads GGUF files"
    unknown = start.engine.gguf.find_unknown(start.reading.values)
    if unknown:
        return f"what {unknown} means for its memory is not known"
    lack = find_lack(start.model, start.gpu)
    if lack is not None:
        return lack
    count = max(1, start.gpu_count)
    setting = read_setting(start.reading.values, count)
    return Asked(start.model, start.gpu, count, setting, start.free_bytes)


def _advice(start: Start, before: Plan, way: Way) -> Advice:
    # Each as two items, which is how its parser reads them.
    changed = [WrittenFlag(name, (f"--{name}", str(value))) for name, value in way.flags.items()]
    kept = (flag for flag in start.written.others if flag.name not in way.flags)
    after = plan_llama_cpp(way.asked, replace(start.written, others=(*kept, *changed)))
    price = None
    if after.usd_per_hour is not None and before.usd_per_hour is not None:
        price = after.usd_per_hour - before.usd_per_hour
    return Advice(
        kinds=way.kinds,
        flags=tuple(item for flag in changed for item in flag.items),
        options=tuple(f"--{name}={value}" for name, value in way.options.items()),
        effect=way.effect + price_text(price),
        quality=way.quality,
        usd_per_hour_change=price,
        max_concurrency_change=after.max_concurrency - before.max_concurrency,
        inter_token_seconds_change=None,
        plan=after,
    )
