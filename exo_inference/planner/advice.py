"""The smallest changes that make a plan fit, each planned for itself.

The command line, the API and admission hand in the inputs of a refused or tight plan. Candidates are the
single changes of `changes.py` and pairs of them; only those whose own plan fits are given, the least
intrusive first, and only what can be pasted. Nothing is applied.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

from exo_inference.planner.changes import (
    LEAST_LENGTH,
    LESS,
    SLIGHTLY,
    UNCHANGED,
    Change,
    Wanted,
    lacks_states,
    names_flags,
    round_length,
    single_changes,
)
from exo_inference.planner.gpu_catalog import Gpu, families
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.parameters import AUTO_LENGTH, EngineParameters
from exo_inference.planner.speed.estimate import inter_token_seconds
from exo_inference.planner.verdict import Plan, Verdict


@dataclass(frozen=True, slots=True)
class Advice:
    """One way to make it fit.

    Attributes:
        kinds: what changes (`flags`, which are those that a refusal names, `max-model-len`, `kv-cache-dtype`,
            `quantization`, `checkpoint`, `gpu-count`, `gpu-type`, `max-num-seqs`, `enforce-eager`, `gpu-memory-utilization`,
            `gpu-layers`, `pipeline-parallel-size`, `engine-version`).
        flags: to be pasted: the engine's flags that change, instead of those of the same name.
        options: to be pasted: the deployment's options that change (`--gpu-type`, `--gpu-count`,
            `--model-name`, `--inference-engine-version`).
        effect: what it changes and costs, in words.
        quality: of the answers: `unchanged`, `slightly less exact` or `less exact`.
        usd_per_hour_change: difference in price, None where a price is unknown.
        max_concurrency_change: difference in requests of the new full length that run at once.
        inter_token_seconds_change: difference in time between tokens of a single request, by the
            roofline; None where a GPU's speed is unknown.
        plan: the plan after the change.
    """

    kinds: tuple[str, ...]
    flags: tuple[str, ...]
    options: tuple[str, ...]
    effect: str
    quality: str
    usd_per_hour_change: float | None
    max_concurrency_change: float
    inter_token_seconds_change: float | None
    plan: Plan


def advise(
    model: Architecture,
    gpu: Gpu,
    gpu_count: int,
    parameters: EngineParameters,
    *,
    limit: int = 8,
    other_gpus: tuple[Gpu, ...] | None = None,
    releases: tuple[str, ...] = (),
    draft: Architecture | None = None,
    free_bytes: int | None = None,
) -> tuple[Advice, ...]:
    """Return the smallest changes that make it fit, the least intrusive first.

    Args:
        model: what is served.
        gpu: the kind of GPU that was asked for.
        gpu_count: how many.
        parameters: the flags that were asked for.
        limit: how many to return.
        other_gpus: GPUs that may be taken instead; by default Exoscale's families.
        releases: of the engine, that may be taken instead.
        draft: as `plan` takes it.
        free_bytes: as `plan` takes it; not known for another kind of GPU.

    Returns:
        Nothing where it fits already, where the model cannot be sized, or where nothing helps.
    """
    wanted = Wanted(model, gpu, gpu_count, parameters, draft, free_bytes)
    before = wanted.plan()
    if before.verdict in (Verdict.FITS, Verdict.UNKNOWN):
        return ()
    others = families() if other_gpus is None else other_gpus
    candidates = _by_cost(list(single_changes(wanted, before, others, releases)))
    if lacks_states(before) or names_flags(before):  # which flags alone mend
        candidates.sort(key=lambda changes: bool(_kinds(changes) & _OTHER_THAN_FLAGS))
    sure = _found(wanted, before, candidates, limit, Verdict.FITS)
    return sure or _found(wanted, before, candidates, limit, Verdict.TIGHT)


def _found(
    wanted: Wanted,
    before: Plan,
    candidates: list[tuple[Change, ...]],
    limit: int,
    verdict: Verdict,
) -> tuple[Advice, ...]:
    """Return what brings about this verdict: that it fits for sure, or at the middle of the estimate alone."""
    result: list[Advice] = []
    enough: list[tuple[Change, ...]] = []
    for changes in candidates:
        if len(result) >= limit:
            break
        half_is_enough = any(set(map(id, known)) <= set(map(id, changes)) for known in enough)
        if len(changes) == 2 and half_is_enough and not _gains_length(changes, result):
            continue
        if _is_more(changes, enough, for_states=lacks_states(before)):
            continue
        advice = _try(wanted, before, changes, verdict)
        if advice is not None and not _is_repeated(advice, result):
            enough.append(changes)
            result.append(advice)
    return tuple(result)


def _by_cost(singles: list[Change]) -> list[tuple[Change, ...]]:
    """Return single changes and pairs, the least intrusive first.

    Another GPU is paired with a shorter context only: with anything else it would rather be larger.
    """
    found: list[tuple[Change, ...]] = [(change,) for change in singles]
    found += [
        pair
        for pair in combinations(singles, 2)
        if pair[0].kind != pair[1].kind
        and ("gpu-type" not in _kinds(pair) or "max-model-len" in _kinds(pair))
        and not {"quantization", "checkpoint"} <= _kinds(pair)
        and AUTO_LENGTH not in (each.wanted.parameters.max_model_len for each in pair)
    ]
    return sorted(
        found, key=lambda each: sum(change.cost for change in each) + 2.0 * (len(each) - 1)
    )


_OTHER_THAN_FLAGS = frozenset({"checkpoint", "gpu-count", "gpu-type"})
_BY_DEGREES = {"gpu-memory-utilization": True, "max-num-seqs": False}
"""Kinds of which several degrees are tried, the least first; of one alone the first that is enough is given
always, of the other only in pairs where states are short."""


def _is_more(
    changes: tuple[Change, ...], enough: list[tuple[Change, ...]], *, for_states: bool
) -> bool:
    """Whether a lesser degree of one of the changes is enough beside the others."""
    return any(
        {id(each) for each in changes if each.kind != kind}
        == {id(each) for each in known if each.kind != kind}
        and len(known) == len(changes)
        for kind, is_general in _BY_DEGREES.items()
        if kind in _kinds(changes) and (is_general or (for_states and len(changes) == 2))
        for known in enough
        if kind in _kinds(known)
    )


def _kinds(changes: tuple[Change, ...]) -> set[str]:
    return {change.kind for change in changes}


def _gains_length(changes: tuple[Change, ...], known: list[Advice]) -> bool:
    """Whether the pair is a shorter context with FP8 cache, which allows about twice the length."""
    kinds = _kinds(changes)
    has_single = any(advice.kinds == ("max-model-len",) for advice in known)
    others = [advice for advice in known if advice.kinds != ("max-model-len",)]
    is_needed = not any(set(advice.kinds) <= kinds for advice in others)
    return kinds == {"max-model-len", "kv-cache-dtype"} and has_single and is_needed


def _is_repeated(advice: Advice, known: list[Advice]) -> bool:
    return any(advice.flags == each.flags and advice.options == each.options for each in known)


def _try(
    wanted: Wanted, before: Plan, changes: tuple[Change, ...], verdict: Verdict
) -> Advice | None:
    """Plan with the changes together; None where that does not bring about the verdict."""
    changed = _together(wanted, changes)
    if "max-model-len" in _kinds(changes) and len(changes) == 2:
        # Together with something else a longer context fits than alone: ask for that one.
        roomy = changed.with_flags(max_model_len=wanted.parameters.max_model_len).plan()
        length = round_length(roomy.safe_max_model_len)
        if length < LEAST_LENGTH or length >= roomy.max_model_len:
            return None
        changed = changed.with_flags(max_model_len=length)
    after = changed.plan()
    is_likely = (
        after.verdict is Verdict.TIGHT
        and after.fits_nominally
        and before.verdict is Verdict.REFUSED
    )
    if after.verdict is not verdict or (verdict is Verdict.TIGHT and not is_likely):
        return None
    return _advice(wanted, before, changes, changed, after)


def _together(wanted: Wanted, changes: tuple[Change, ...]) -> Wanted:
    """Apply to `wanted` everything that one of the changes differs from it in."""
    if len(changes) == 1:
        return changes[0].wanted
    result = wanted
    for change in changes:
        other = change.wanted
        names = ("model", "gpu", "gpu_count", "free_bytes")
        fields = {
            name: getattr(other, name)
            for name in names
            if getattr(other, name) != getattr(wanted, name)
        }
        flags = {
            name: getattr(other.parameters, name)
            for name in EngineParameters.__dataclass_fields__
            if getattr(other.parameters, name) != getattr(wanted.parameters, name)
        }
        result = replace(result, **fields).with_flags(**flags)
    return result


def _advice(
    wanted: Wanted, before: Plan, changes: tuple[Change, ...], changed: Wanted, after: Plan
) -> Advice:
    price = None
    if after.usd_per_hour is not None and before.usd_per_hour is not None:
        price = after.usd_per_hour - before.usd_per_hour
    concurrency = _concurrency(after, after.max_model_len)
    shorter = f"requests up to {after.max_model_len} tokens instead of {before.max_model_len}"
    effects = [c.effect or shorter for c in changes]
    if after.verdict is not Verdict.FITS:
        effects.append("fits at the middle of the estimate, not for sure")
    return Advice(
        kinds=tuple(change.kind for change in changes),
        flags=_new_flags(wanted.parameters, changed.parameters),
        options=_new_options(wanted, changed),
        effect="; ".join(effects) + price_text(price),
        quality=max((change.quality for change in changes), key=_QUALITIES.index),
        usd_per_hour_change=price,
        max_concurrency_change=concurrency - _concurrency(before, after.max_model_len),
        inter_token_seconds_change=_slower(before, after),
        plan=after,
    )


_QUALITIES = (UNCHANGED, SLIGHTLY, LESS)


def _new_flags(before: EngineParameters, after: EngineParameters) -> tuple[str, ...]:
    kept = set(before.format())
    return tuple(flag for flag in after.format() if flag not in kept)


def _new_options(before: Wanted, after: Wanted) -> tuple[str, ...]:
    options = []
    if after.gpu is not before.gpu:
        options.append(f"--gpu-type={after.gpu.family or after.gpu.key}")
    if after.gpu_count != before.gpu_count:
        options.append(f"--gpu-count={after.gpu_count}")
    if after.model is not before.model:
        options.append(f"--model-name={after.model.name}")
    if after.parameters.engine_version != before.parameters.engine_version:
        options.append(f"--inference-engine-version={after.parameters.engine_version}")
    return tuple(options)


def _concurrency(result: Plan, length: int) -> float:
    """Return how many requests of `length` tokens the plan runs at once."""
    layout = result.basis.stage.layout if result.basis is not None else None
    if layout is None:
        return float(result.max_num_seqs)
    needed = max(1, layout.blocks_for(length, result.max_num_batched_tokens))
    return result.ranks.data * min(result.max_num_seqs, max(0, result.num_kv_blocks) / needed)


def _slower(before: Plan, after: Plan) -> float | None:
    """Return the difference between tokens of one request with the same context."""
    context = max(1, min(before.max_model_len, after.max_model_len, 2048))
    times = [
        inter_token_seconds(each.basis.speed, context)
        if each.basis is not None and each.basis.setting.rules.estimates_speed
        else None
        for each in (before, after)
    ]
    if times[0] is None or times[1] is None:
        return None
    return times[1] - times[0]


def price_text(price: float | None) -> str:
    """Return what a way out costs more or less, behind its effect; nothing where that is not known or no difference."""
    if price is None or abs(price) < 0.005:
        return ""
    return f"; {'+' if price > 0 else '-'}{abs(price):.2f} USD per hour"
