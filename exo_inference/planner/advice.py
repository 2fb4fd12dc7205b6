"""The smallest changes that make a plan fit, each planned for itself; and what a fitting plan wastes.

Callers hand in a refused or tight plan's inputs. Candidates are single changes and pairs of them; only
those whose own plan fits are given, the least intrusive first. Nothing is applied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from exo_inference.planner.architecture import Architecture
from exo_inference.planner.gpus import Gpu, families
from exo_inference.planner.parameters import EngineParameters
from exo_inference.planner.planning import plan
from exo_inference.planner.requantize import with_quantization
from exo_inference.planner.speed import throughput_at_most
from exo_inference.planner.verdict import Plan, Verdict


@dataclass(frozen=True, slots=True)
class _Change:
    """One thing that could be different."""

    kind: str
    cost: float
    effect: str
    parameters: EngineParameters
    gpu: Gpu
    gpu_count: int
    model: Architecture


@dataclass(frozen=True, slots=True)
class Advice:
    """One way to make it fit.

    Attributes:
        kinds: what changes (`max-model-len`, `kv-cache-dtype`, `gpu-count`, `gpu-type`, …).
        flags: to be pasted: the engine's flags that change.
        options: to be pasted: the deployment's options that change (`--gpu-type`, `--gpu-count`).
        effect: what it costs, in words.
        usd_per_hour_change: difference in price, None where a price is unknown.
        plan: the plan after the change.
    """

    kinds: tuple[str, ...]
    flags: tuple[str, ...]
    options: tuple[str, ...]
    effect: str
    usd_per_hour_change: float | None
    plan: Plan


@dataclass(frozen=True, slots=True)
class Improvement:
    """Something a fitting plan could do better.

    Attributes:
        kind: `wasted-memory`, `cheaper-gpu`, `quantization`, `fewer-gpus`, `max-num-seqs`.
        text: what, with numbers.
        flags, options: to be pasted, where there is something to paste.
        plan: the plan after it, where it was planned.
    """

    kind: str
    text: str
    flags: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    plan: Plan | None = None


def advise(
    model: Architecture,
    gpu: Gpu,
    gpu_count: int,
    parameters: EngineParameters,
    *,
    limit: int = 8,
    other_gpus: tuple[Gpu, ...] | None = None,
) -> tuple[Advice, ...]:
    """Return the smallest changes that make it fit, the least intrusive first.

    Args:
        model: what is served.
        gpu: the kind of GPU that was asked for.
        gpu_count: how many.
        parameters: the flags that were asked for.
        limit: how many to return.
        other_gpus: GPUs that may be taken instead; by default Exoscale's families.

    Returns:
        Nothing where it fits already, where the model cannot be sized, or where nothing helps.
    """
    before = plan(model, gpu, gpu_count, parameters)
    if before.verdict in (Verdict.FITS, Verdict.UNKNOWN):
        return ()
    base = _Change("", 0.0, "", parameters, gpu, gpu_count, model)
    singles = list(_single_changes(base, before, families() if other_gpus is None else other_gpus))
    result: list[Advice] = []
    enough: list[tuple[_Change, ...]] = []
    for changes in _by_cost(singles):
        half_is_enough = any(set(map(id, known)) <= set(map(id, changes)) for known in enough)
        if len(changes) == 2 and half_is_enough and not _gains_length(changes, result):
            continue
        advice = _try(base, before, changes)
        if advice is not None and not _is_repeated(advice, result):
            enough.append(changes)
            result.append(advice)
        if len(result) >= limit:
            break
    return tuple(result)


def _by_cost(singles: list[_Change]) -> list[tuple[_Change, ...]]:
    """Return single changes and pairs, the least intrusive first.

    Another GPU is paired with a shorter context only: with anything else it would rather be larger.
    """
    found: list[tuple[_Change, ...]] = [(change,) for change in singles]
    found += [
        pair
        for pair in combinations(singles, 2)
        if pair[0].kind != pair[1].kind
        and ("gpu-type" not in _kinds(pair) or "max-model-len" in _kinds(pair))
    ]
    return sorted(
        found, key=lambda each: sum(change.cost for change in each) + 2.0 * (len(each) - 1)
    )


def _kinds(changes: tuple[_Change, ...]) -> set[str]:
    return {change.kind for change in changes}


def _gains_length(changes: tuple[_Change, ...], known: list[Advice]) -> bool:
    """Whether the pair is a shorter context with FP8 cache, which allows about twice the length."""
    kinds = _kinds(changes)
    has_single = any(advice.kinds == ("max-model-len",) for advice in known)
    others = [advice for advice in known if advice.kinds != ("max-model-len",)]
    is_needed = not any(set(advice.kinds) <= kinds for advice in others)
    return kinds == {"max-model-len", "kv-cache-dtype"} and has_single and is_needed


def _is_repeated(advice: Advice, known: list[Advice]) -> bool:
    return any(advice.flags == each.flags and advice.options == each.options for each in known)


def _try(base: _Change, before: Plan, changes: tuple[_Change, ...]) -> Advice | None:
    """Plan with the changes together; None where that does not fit."""
    parameters, gpu, count, model = base.parameters, base.gpu, base.gpu_count, base.model
    for change in changes:
        gpu = change.gpu if change.gpu is not base.gpu else gpu
        count = change.gpu_count if change.gpu_count != base.gpu_count else count
        model = change.model if change.model is not base.model else model
        parameters = _merged(base.parameters, parameters, change.parameters)
    after = plan(model, gpu, count, parameters)
    if "max-model-len" in _kinds(changes) and len(changes) == 2:
        # Together with something else a longer context fits than alone: ask for that one.
        whole = replace(parameters, max_model_len=base.parameters.max_model_len)
        roomy = plan(model, gpu, count, whole)
        length = _round_length(_safe_length(roomy))
        if not length or length >= roomy.max_model_len:
            return None
        parameters = replace(parameters, max_model_len=length)
        after = plan(model, gpu, count, parameters)
    if after.verdict is not Verdict.FITS:
        return None
    price = None
    if after.usd_per_hour is not None and before.usd_per_hour is not None:
        price = after.usd_per_hour - before.usd_per_hour
    options = []
    if gpu is not base.gpu:
        options.append(f"--gpu-type={gpu.family or gpu.key}")
    if count != base.gpu_count:
        options.append(f"--gpu-count={count}")
    if model is not base.model:
        method = model.quantization.method.upper() if model.quantization else "smaller"
        options.append(f"--model=<{base.model.name} in {method}>")
    kept = set(base.parameters.format())
    flags = tuple(flag for flag in parameters.format() if flag not in kept)
    shorter = f"requests up to {after.max_model_len} tokens instead of {before.max_model_len}"
    effect = "; ".join(shorter if c.kind == "max-model-len" else c.effect for c in changes)
    kinds = tuple(change.kind for change in changes)
    return Advice(kinds, flags, tuple(options), f"{effect}{_price_text(price)}", price, after)


def _merged(
    base: EngineParameters, now: EngineParameters, change: EngineParameters
) -> EngineParameters:
    """Apply what `change` differs from `base` in on top of `now`."""
    different = {
        name: getattr(change, name)
        for name in EngineParameters.__dataclass_fields__
        if getattr(change, name) != getattr(base, name)
    }
    return replace(now, **different)


def _price_text(price: float | None) -> str:
    if price is None or abs(price) < 0.005:
        return ""
    return f"; {'+' if price > 0 else '-'}{abs(price):.2f} USD per hour"


def _single_changes(base: _Change, before: Plan, others: tuple[Gpu, ...]) -> Iterator[_Change]:
    yield from _length_changes(base, before)
    yield from _cache_changes(base)
    yield from _overhead_changes(base, before)
    yield from _count_changes(base)
    yield from _weight_changes(base)
    yield from _family_changes(base, others)


def _safe_length(result: Plan) -> int:
    """Return the longest context that even the pessimistic bound holds."""
    if result.available_kv_bytes_per_gpu <= 0 or result.available_kv_bytes_low <= 0:
        return 0
    share = result.available_kv_bytes_low / result.available_kv_bytes_per_gpu
    return int(result.largest_max_model_len * min(1.0, share) * 0.995)


def _round_length(tokens: int) -> int:
    """Round down to a number that people would write."""
    step = 1
    for candidate in (16, 256, 1000, 4000):
        if tokens >= 8 * candidate:
            step = candidate
    return tokens // step * step


def _length_changes(base: _Change, before: Plan) -> Iterator[_Change]:
    length = _round_length(_safe_length(before))
    if length >= 512 and length < before.max_model_len:
        share = length / before.max_model_len
        # Half the context is a small change, a fiftieth is a large one.
        cost = (
            1.0
            + 2.0 * (1 - share)
            + (4.0 if length < 4096 else 0.0)
            + (1.0 if share < 0.1 else 0.0)
        )
        effect = f"requests up to {length} tokens instead of {before.max_model_len}"
        yield replace(
            base, kind="max-model-len", cost=cost, effect=effect,
            parameters=replace(base.parameters, max_model_len=length),
        )  # fmt: skip
    else:  # only together with something else, which then says how long
        cost, effect = 3.5, "a shorter context"
        if before.max_model_len > 4096:
            parameters = replace(base.parameters, max_model_len=before.max_model_len - 1)
            yield replace(
                base, kind="max-model-len", cost=cost, effect=effect, parameters=parameters
            )


def _cache_changes(base: _Change) -> Iterator[_Change]:
    now = (base.parameters.kv_cache_dtype or "auto").lower()
    if base.parameters.engine == "vllm" and now in ("auto", "bfloat16", "float16"):
        native = "" if base.gpu.supports("fp8") else ", converted in software on this GPU"
        yield replace(
            base, kind="kv-cache-dtype", cost=2.0,
            effect=f"KV cache in FP8: half the memory per token, slightly less exact{native}",
            parameters=replace(base.parameters, kv_cache_dtype="fp8"),
        )  # fmt: skip


def _overhead_changes(base: _Change, before: Plan) -> Iterator[_Change]:
    parameters = base.parameters
    for seqs in (64, 16):
        if before.max_num_seqs > seqs:
            tokens = parameters.max_num_batched_tokens
            smaller = replace(parameters, max_num_seqs=seqs)
            if tokens is None and before.max_num_batched_tokens > 2048:
                smaller = replace(smaller, max_num_batched_tokens=2048)
            effect = f"at most {seqs} requests at once instead of {before.max_num_seqs}"
            yield replace(
                base,
                kind="max-num-seqs",
                cost=1.6 if seqs == 64 else 2.4,
                effect=effect,
                parameters=smaller,
            )
    if (
        not parameters.enforce_eager
        and parameters.engine == "vllm"
        and before.component("cuda_graphs")
    ):
        yield replace(
            base, kind="enforce-eager", cost=2.6, effect="no CUDA graphs: slower decoding at small batches",
            parameters=replace(parameters, enforce_eager=True),
        )  # fmt: skip
    share = parameters.gpu_memory_utilization
    if share is None or share < 0.95:
        yield replace(
            base, kind="gpu-memory-utilization", cost=1.8, effect="less room for anything else on the GPU",
            parameters=replace(parameters, gpu_memory_utilization=0.95),
        )  # fmt: skip


def _count_changes(base: _Change) -> Iterator[_Change]:
    if base.parameters.tensor_parallel_size or base.parameters.pipeline_parallel_size:
        return  # the caller fixed the layout
    for count in (2, 4, 8):
        if base.gpu_count < count <= base.gpu.max_count and base.parameters.engine == "vllm":
            effect = f"{count} GPUs per replica instead of {base.gpu_count}"
            yield replace(
                base, kind="gpu-count", cost=2.0 + 0.5 * count, effect=effect, gpu_count=count
            )


def _weight_changes(base: _Change) -> Iterator[_Change]:
    if base.parameters.engine != "vllm":
        return
    if base.model.quantization is None and not base.parameters.quantization:
        yield replace(
            base, kind="quantization", cost=3.0,
            effect="weights quantized to FP8 while loading: half their size, slightly less exact",
            parameters=replace(base.parameters, quantization="fp8"),
        )  # fmt: skip
    bits = base.model.quantization.default.bits if base.model.quantization is not None else 16
    if bits > 5 and not base.parameters.quantization and (base.gpu.capability or 0) >= 7.5:
        smaller = with_quantization(base.model, "awq")
        effect = "a 4-bit (AWQ) checkpoint: about a quarter of 16-bit weights, less exact"
        yield replace(base, kind="checkpoint", cost=4.5, effect=effect, model=smaller)


def _family_changes(base: _Change, others: tuple[Gpu, ...]) -> Iterator[_Change]:
    for other in others:
        if other.key == base.gpu.key or other.reported_bytes <= base.gpu.reported_bytes:
            continue
        ratio = other.reported_bytes / base.gpu.reported_bytes
        for count in dict.fromkeys((base.gpu_count, 1, 2, 4, 8)):
            if count <= min(other.max_count, max(1, base.gpu_count)) or count == base.gpu_count:
                effect = f"{count} x {other.name} instead of {base.gpu_count} x {base.gpu.name}"
                yield replace(
                    base, kind="gpu-type", cost=3.2 + 0.1 * ratio + 0.5 * count, effect=effect,
                    gpu=other, gpu_count=count,
                )  # fmt: skip


def improve(
    model: Architecture, gpu: Gpu, gpu_count: int, parameters: EngineParameters
) -> tuple[Improvement, ...]:
    """Return what a fitting plan wastes and what would be faster or cheaper; nothing where it does not fit."""
    now = plan(model, gpu, gpu_count, parameters)
    if now.verdict is not Verdict.FITS:
        return ()
    found = [*_wasted_memory(now), *_cheaper(model, gpu, gpu_count, parameters, now)]
    if model.quantization is None and not parameters.quantization and gpu.supports("fp8"):
        faster = plan(model, gpu, gpu_count, replace(parameters, quantization="fp8"))
        gain = throughput_at_most(faster.speed) / max(1e-9, throughput_at_most(now.speed))
        if faster.verdict is Verdict.FITS and gain > 1.15 and parameters.engine == "vllm":
            text = (
                f"FP8 weights would give about {gain:.1f} times the throughput, slightly less exact"
            )
            found.append(Improvement("quantization", text, ("--quantization=fp8",), plan=faster))
    return tuple(found)


def _wasted_memory(now: Plan) -> Iterator[Improvement]:
    useful = now.max_num_seqs * now.needed_kv_bytes_per_gpu
    spare = now.available_kv_bytes_per_gpu - useful
    if spare > 0.1 * now.total_bytes_per_gpu and useful > 0:
        text = (
            f"{spare / 2**30:.1f} GiB of KV cache per GPU can never be used: "
            f"{now.max_num_seqs} requests of full length fill {useful / 2**30:.1f} GiB"
        )
        yield Improvement("wasted-memory", text)


def _cheaper(
    model: Architecture, gpu: Gpu, gpu_count: int, parameters: EngineParameters, now: Plan
) -> Iterator[Improvement]:
    price = now.usd_per_hour
    if price is None:
        return
    fewer = (
        [count for count in (1, 2, 4) if count < gpu_count]
        if not parameters.tensor_parallel_size
        else []
    )
    candidates = [(gpu, count) for count in fewer]
    candidates += [(other, gpu_count) for other in families() if other.key != gpu.key]
    best: tuple[float, Gpu, Plan] | None = None
    for other, count in candidates:
        cost = other.price(count)
        if cost is None or cost >= price * 0.95 or (best is not None and cost >= best[0]):
            continue
        result = plan(model, other, count, parameters)
        if result.verdict is Verdict.FITS:
            best = (cost, other, result)
    if best is not None:
        cost, other, result = best
        share = throughput_at_most(result.speed) / max(1e-9, throughput_at_most(now.speed))
        text = (
            f"{result.gpu_count} x {other.name} fits as well for {cost:.2f} instead of {price:.2f} USD per "
            f"hour, at about {share:.0%} of the throughput"
        )
        options = (f"--gpu-type={other.family or other.key}", f"--gpu-count={result.gpu_count}")
        yield Improvement("cheaper-gpu", text, options=options, plan=result)
