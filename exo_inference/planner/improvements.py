"""What a plan that fits wastes, and what would be faster or cheaper.

The command line and the API show it below a fitting plan. Everything that can be pasted was planned
and fits. Nothing is applied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from exo_inference.planner.changes import Wanted
from exo_inference.planner.gpu_catalog import Gpu, families
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.parameters import EngineParameters
from exo_inference.planner.speed.estimate import throughput_at_most
from exo_inference.planner.verdict import Plan, Verdict

_WORTH_IT = 1.15
"""Gains below this are within the estimate's own error."""


@dataclass(frozen=True, slots=True)
class Improvement:
    """Something a fitting plan could do better.

    Attributes:
        kind: `wasted-memory`, `cheaper-gpu`, `quantization`, `cuda-graphs`, `more-gpus`.
        text: what, with numbers.
        flags, options: to be pasted, where there is something to paste.
        plan: the plan after it, where it was planned.
    """

    kind: str
    text: str
    flags: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    plan: Plan | None = None


def improve(
    model: Architecture,
    gpu: Gpu,
    gpu_count: int,
    parameters: EngineParameters,
    *,
    limit: int = 8,
    other_gpus: tuple[Gpu, ...] | None = None,
    draft: Architecture | None = None,
    free_bytes: int | None = None,
) -> tuple[Improvement, ...]:
    """Return what a fitting plan wastes and what would be faster or cheaper.

    Args:
        model: what is served.
        gpu: the kind of GPU.
        gpu_count: how many.
        parameters: the engine's flags.
        limit: how many to return.
        other_gpus: GPUs that may be taken instead; by default Exoscale's families.
        draft: as `plan` takes it.
        free_bytes: as `plan` takes it.

    Returns:
        Nothing where the plan does not fit.
    """
    wanted = Wanted(model, gpu, gpu_count, parameters, draft, free_bytes)
    now = wanted.plan()
    if now.verdict is not Verdict.FITS:
        return ()
    others = families() if other_gpus is None else other_gpus
    found = [*_wasted_memory(wanted, now), *_cheaper(wanted, now, others), *_faster(wanted, now)]
    return tuple(found[:limit])


def _wasted_memory(wanted: Wanted, now: Plan) -> Iterator[Improvement]:
    useful = now.max_num_seqs * now.needed_kv_bytes_per_gpu
    spare = now.available_kv_bytes_per_gpu - useful
    if spare <= 0.1 * now.total_bytes_per_gpu or useful <= 0:
        return
    text = (
        f"{spare / 2**30:.1f} GiB of KV cache per GPU can never be used: "
        f"{now.max_num_seqs} requests of full length fill {useful / 2**30:.1f} GiB"
    )
    more = int(now.available_kv_bytes_low // now.needed_kv_bytes_per_gpu)
    after = wanted.with_flags(max_num_seqs=max(more, now.max_num_seqs)).plan()
    if more > now.max_num_seqs and after.verdict is Verdict.FITS:
        text += f"; {more} at once would use it"
        yield Improvement("wasted-memory", text, (f"--max-num-seqs={more}",), plan=after)
    else:
        yield Improvement("wasted-memory", text)


def _cheaper(wanted: Wanted, now: Plan, others: tuple[Gpu, ...]) -> Iterator[Improvement]:
    price, is_split = now.usd_per_hour, wanted.parameters.tensor_parallel_size
    if price is None:
        return
    fewer = [count for count in (1, 2, 4) if count < wanted.gpu_count and not is_split]
    candidates = [replace(wanted, gpu_count=count) for count in fewer]
    candidates += [
        replace(wanted, gpu=other, free_bytes=None) for other in others if other.key != now.gpu
    ]
    best: tuple[float, Wanted, Plan] | None = None
    for each in candidates:
        cost = each.gpu.price(each.gpu_count)
        if cost is None or cost >= price * 0.95 or (best is not None and cost >= best[0]):
            continue
        result = each.plan()
        if result.verdict is Verdict.FITS:
            best = (cost, each, result)
    if best is not None:
        cost, each, result = best
        text = (
            f"{result.gpu_count} x {each.gpu.name} fits as well for {cost:.2f} instead of {price:.2f} USD "
            f"per hour, at about {_gain(now, result):.0%} of the throughput"
        )
        options = (f"--gpu-type={each.gpu.family or each.gpu.key}", f"--gpu-count={each.gpu_count}")
        yield Improvement("cheaper-gpu", text, options=options, plan=result)


def _faster(wanted: Wanted, now: Plan) -> Iterator[Improvement]:
    rules = wanted.parameters.rules
    if rules.quantizes:
        yield from _quantized(wanted, now)
    if wanted.parameters.enforce_eager and rules.captures_graphs:
        after = wanted.with_flags(enforce_eager=None).plan()
        if after.verdict is Verdict.FITS:
            text = "CUDA graphs fit: without --enforce-eager small batches decode faster"
            yield Improvement("cuda-graphs", text, ("--no-enforce-eager",), plan=after)
    if rules.spans_gpus:
        yield from _more_gpus(wanted, now)


def _quantized(wanted: Wanted, now: Plan) -> Iterator[Improvement]:
    is_plain = wanted.model.quantization is None and not wanted.parameters.quantization
    if not is_plain or not wanted.gpu.supports("fp8"):
        return
    after = wanted.with_flags(quantization="fp8").plan()
    gain = _gain(now, after)
    if after.verdict is Verdict.FITS and gain > _WORTH_IT:
        text = f"FP8 weights would give about {gain:.1f} times the throughput, slightly less exact"
        yield Improvement("quantization", text, ("--quantization=fp8",), plan=after)


def _more_gpus(wanted: Wanted, now: Plan) -> Iterator[Improvement]:
    """Say what twice the GPUs would bring, where the layout is left to the engine."""
    parameters, count = wanted.parameters, 2 * wanted.gpu_count
    is_fixed = parameters.tensor_parallel_size or parameters.pipeline_parallel_size
    if is_fixed or count > wanted.gpu.max_count or now.speed is None:
        return
    after = replace(wanted, gpu_count=count).plan()
    if after.verdict is not Verdict.FITS or after.speed is None:
        return
    one, other = now.speed.batches[:1], after.speed.batches[:1]
    if not one or not other:
        return
    gain = one[0].inter_token_seconds / other[0].inter_token_seconds
    if gain > _WORTH_IT:
        price = "" if after.usd_per_hour is None else f" for {after.usd_per_hour:.2f} USD per hour"
        text = f"{count} GPUs would answer one request about {gain:.1f} times as fast{price}"
        yield Improvement("more-gpus", text, options=(f"--gpu-count={count}",), plan=after)


def _gain(before: Plan, after: Plan) -> float:
    return throughput_at_most(after.speed) / max(1e-9, throughput_at_most(before.speed))
