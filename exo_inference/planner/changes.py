"""What could be different about a deployment: one change each, with its cost in words and in rank.

`advice.py` tries them singly and in pairs. A change holds the whole wanted deployment with one thing
changed; whether it helps is not known here. Every change can be written as flags or options.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from exo_inference.planner import state_blocks
from exo_inference.planner.catalog_models import quantized_siblings
from exo_inference.planner.engine_rules import parse_version
from exo_inference.planner.gpu_catalog import Gpu
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.parameters import AUTO_LENGTH, EngineParameters
from exo_inference.planner.planning import plan
from exo_inference.planner.releases import prompts
from exo_inference.planner.releases.checkpoints import check_release, lacks_allowance
from exo_inference.planner.releases.classes import check_class
from exo_inference.planner.releases.gpus import check_gpu
from exo_inference.planner.releases.own_code import own_code_values
from exo_inference.planner.releases.splits import is_unsplit
from exo_inference.planner.verdict import Plan

UNCHANGED, SLIGHTLY, LESS = "unchanged", "slightly less exact", "less exact"
"""What an answer's quality comes to."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A deployment as far as planning goes."""

    model: Architecture
    gpu: Gpu
    gpu_count: int
    parameters: EngineParameters
    draft: Architecture | None = None
    free_bytes: int | None = None

    def plan(self) -> Plan:
        """Plan it."""
        return plan(
            self.model, self.gpu, self.gpu_count, self.parameters,
            draft=self.draft, free_bytes=self.free_bytes,
        )  # fmt: skip

    def with_flags(self, **changes: object) -> Wanted:
        """Return it with other parameters."""
        return replace(self, parameters=replace(self.parameters, **changes))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that could be different.

    Attributes:
        cost: how intrusive it is; only the order matters.
        wanted: the deployment with this one change.
    """

    kind: str
    cost: float
    effect: str
    wanted: Wanted
    quality: str = UNCHANGED


def single_changes(
    wanted: Wanted, before: Plan, others: tuple[Gpu, ...], releases: tuple[str, ...] = ()
) -> Iterator[Change]:
    """Yield every change that this engine knows.

    Args:
        wanted: what was asked for.
        before: its plan.
        others: GPUs that may be taken instead.
        releases: of the engine, that may be taken instead.
    """
    if wanted.parameters.rules.static_share is not None:
        # What its other flags free is not sized.
        yield from _stage_changes(wanted, before)
        yield from _count_changes(wanted, before)
        yield from _checkpoint_changes(wanted)
        yield from _family_changes(wanted, before, others)
        return
    yield from _flag_changes(wanted, before)
    yield from _stage_changes(wanted, before)
    yield from _own_code_changes(wanted)
    yield from _release_changes(wanted, releases)
    yield from _state_changes(wanted, before)
    yield from _length_changes(wanted, before)
    yield from _overhead_changes(wanted, before)
    yield from _share_changes(wanted, before)
    yield from _count_changes(wanted, before)
    rules = wanted.parameters.rules
    if rules.chooses_cache_type:
        yield from _cache_changes(wanted)
    if rules.captures_graphs:
        yield from _eager_changes(wanted, before)
    if rules.quantizes:
        yield from _weight_changes(wanted)
    elif rules.advised_quantization is not None:
        yield from _smaller_weights(wanted, rules.advised_quantization)
    yield from _family_changes(wanted, before, others)


LEAST_LENGTH = 1024
"""Tokens of a request; a way out that leaves less is of no use."""


def round_length(tokens: int) -> int:
    """Round a context down to a multiple of 1,024, or of 16 where it is shorter than four of these."""
    step = 1024 if tokens >= 4096 else 16
    return tokens // step * step


def round_count(number: int) -> int:
    """Round down to a number that people would write: a power of two where one is near."""
    power = 1 << max(0, number.bit_length() - 1)
    if power >= 512 and power >= 0.8 * number:
        return power
    step = 16 if number >= 128 else 1
    return number // step * step


def _flag_changes(wanted: Wanted, before: Plan) -> Iterator[Change]:
    """Set the flags that refusals name, for all refusals at once: what is set beside a refused flag, or that flag itself."""
    ways = [each.ways for each in before.problems if each.refuses and each.ways]
    beside, itself = (dict(each[end] for each in ways) for end in (0, -1))
    for settings in (beside, itself):
        is_more = settings is beside and itself.items() <= beside.items()
        if not settings or is_more:
            continue
        parameters = wanted.parameters.with_values(dict(sorted(settings.items())))
        kept = set(wanted.parameters.format())
        effect = " ".join(each for each in parameters.format() if each not in kept)
        if not settings.get("batch_invariant", True):
            effect += ": the bits of an answer may depend on what is computed beside it"
        quality = SLIGHTLY if settings.keys() & _LESS_EXACT else UNCHANGED
        cost = 0.3 + 0.1 * (settings is itself)
        yield Change("flags", cost, effect, replace(wanted, parameters=parameters), quality)


_LESS_EXACT = frozenset({"dtype", "quantization", "kv_cache_dtype"})


def _release_changes(wanted: Wanted, releases: tuple[str, ...]) -> Iterator[Change]:
    """Take the newest release with kernels for the GPU that reads and serves the checkpoint, where the one asked for does not."""
    if _is_served(wanted):
        return
    known = {version: each for each in releases if (version := parse_version(each)) is not None}
    for version in sorted(known, reverse=True):
        changed = wanted.with_flags(engine_version=known[version])
        if _is_served(changed):
            rules = wanted.parameters.rules
            serves = "that serves it"
            if check_gpu(wanted.gpu, rules):
                serves = f"with kernels for {wanted.gpu.name}"
            effect = (
                f"{rules.title} {known[version]}, the newest {serves}, instead of {rules.release}"
            )
            yield Change("engine-version", 1.0, effect, changed)
            return


def _is_served(wanted: Wanted) -> bool:
    """Whether the release has kernels for the GPU, a class for the model, and reads its format."""
    rules = wanted.parameters.rules
    return not (
        check_gpu(wanted.gpu, rules)
        or check_release(wanted.model, wanted.parameters)
        or check_class(wanted.model, rules)
    )


def _state_changes(wanted: Wanted, before: Plan) -> Iterator[Change]:
    """Take as many requests at once as the engine has blocks for their states: what its own refusal asks for."""
    seqs = round_count(before.safe_max_num_seqs or 0)
    if 0 < seqs < before.max_num_seqs:
        changed = wanted.with_flags(max_num_seqs=seqs)
        effect = f"at most {seqs} requests at once instead of {before.max_num_seqs}"
        yield Change("max-num-seqs", 0.5, effect, changed)


def _length_changes(wanted: Wanted, before: Plan) -> Iterator[Change]:
    length = round_length(before.safe_max_model_len)
    if LEAST_LENGTH <= length < before.max_model_len:
        share = length / before.max_model_len
        # Half the context is a small change, a fiftieth is a large one.
        cost = (
            1.0
            + 2.0 * (1 - share)
            + (4.0 if length < 4096 else 0.0)
            + (1.0 if share < 0.1 else 0.0)
        )
        yield Change("max-model-len", cost, "", wanted.with_flags(max_model_len=length))
        if wanted.parameters.rules.fits_length:
            effect = f"the engine takes the longest context that fits when it starts, {before.largest_max_model_len} at the middle of the estimate"
            yield Change(
                "max-model-len", cost + 0.3, effect, wanted.with_flags(max_model_len=AUTO_LENGTH)
            )
    likely = round_length(before.largest_max_model_len)
    if length < LEAST_LENGTH <= likely < before.max_model_len:
        yield Change("max-model-len", 3.4, "", wanted.with_flags(max_model_len=likely))
    if length < LEAST_LENGTH and before.max_model_len > 4096:
        # only together with something else, which says how long
        shorter = wanted.with_flags(max_model_len=before.max_model_len - 1)
        yield Change("max-model-len", 3.5, "", shorter)


def _cache_changes(wanted: Wanted) -> Iterator[Change]:
    now = (wanted.parameters.kv_cache_dtype or "auto").lower()
    if wanted.gpu.vendor == "cpu" and wanted.parameters.rules.kernels is not None:
        if now == "auto":  # kernels read no FP8
            effect = "KV cache in INT8: half the memory per token of one in 16 bit"
            changed = wanted.with_flags(kv_cache_dtype="int8")
            yield Change("kv-cache-dtype", 2.0, effect, changed, SLIGHTLY)
        return
    if now in ("auto", "bfloat16", "float16"):
        native = "" if wanted.gpu.supports("fp8") else ", converted in software on this GPU"
        effect = f"KV cache in FP8: half the memory per token{native}"
        changed = wanted.with_flags(kv_cache_dtype="fp8")
        yield Change("kv-cache-dtype", 2.0, effect, changed, SLIGHTLY)


def _overhead_changes(wanted: Wanted, before: Plan) -> Iterator[Change]:
    has_room = before.available_kv_bytes_low >= before.needed_kv_bytes_per_gpu
    if lacks_states(before) and has_room and wanted.parameters.rules.subtracts_graphs:
        return  # `_state_changes` says what is enough, but for graphs outside the budget
    is_whole = prompts.is_whole(wanted.model, wanted.parameters, before.max_model_len)
    least = max(2048, wanted.model.min_batched_tokens, before.max_model_len if is_whole else 0)
    for seqs, cost in ((64, 1.6), (16, 2.4)):
        if before.max_num_seqs > seqs:
            smaller = wanted.with_flags(max_num_seqs=seqs)
            tokens = wanted.parameters.max_num_batched_tokens
            if tokens is None and before.max_num_batched_tokens > least:
                smaller = smaller.with_flags(max_num_batched_tokens=least)
            effect = f"at most {seqs} requests at once instead of {before.max_num_seqs}"
            yield Change("max-num-seqs", cost, effect, smaller)


def _eager_changes(wanted: Wanted, before: Plan) -> Iterator[Change]:
    if not wanted.parameters.enforce_eager and before.component("cuda_graphs"):
        effect = "no CUDA graphs: slower decoding at small batches"
        yield Change("enforce-eager", 2.6, effect, wanted.with_flags(enforce_eager=True))


def _share_changes(wanted: Wanted, before: Plan) -> Iterator[Change]:
    """Take more of the GPU, or as much as is free."""
    kind, free = "gpu-memory-utilization", wanted.free_bytes
    if free is not None and free < before.budget_bytes_per_gpu:
        share = int(100 * free / max(1, before.total_bytes_per_gpu)) / 100
        if share >= 0.05:
            effect = f"takes {share:.0%} of the GPU, which is what others leave free"
            changed = wanted.with_flags(gpu_memory_utilization=share)
            yield Change(kind, 1.2, effect, changed)
        return
    asked = wanted.parameters.gpu_memory_utilization
    # Graphs of requests with states may need what 0.95 leaves.
    smaller = (0.8, 0.9) if asked is not None and lacks_states(before) else ()
    for share in (*smaller, 0.95):
        if (asked is None or asked < share) and wanted.gpu.vendor != "cpu":
            changed = wanted.with_flags(gpu_memory_utilization=share)
            yield Change(kind, 0.85 + share, "less room for anything else on the GPU", changed)


def lacks_states(before: Plan) -> bool:
    """Whether some requests of a step have no block for their states."""
    return any(each.code == state_blocks.CODE for each in before.problems)


def names_flags(before: Plan) -> bool:
    """Whether a refusal names the flags that mend it."""
    return any(each.refuses and each.ways for each in before.problems)


def _own_code_changes(wanted: Wanted) -> Iterator[Change]:
    missing = own_code_values(wanted.model, wanted.parameters)
    if missing:
        changed = replace(wanted, parameters=wanted.parameters.with_values(missing))
        yield Change("flags", 0.1, "runs the code that comes with the model", changed)


def _stage_changes(wanted: Wanted, before: Plan) -> Iterator[Change]:
    """Give each GPU whole layers, where the engine does not split what the checkpoint has."""
    ranks, parameters = before.ranks, wanted.parameters
    if ranks.tensor == 1 or not is_unsplit(wanted.model, parameters.rules):
        return
    stages = ranks.tensor * ranks.pipeline
    is_set = parameters.tensor_parallel_size is not None
    sizes = {"pipeline_parallel_size": stages, "tensor_parallel_size": 1 if is_set else None}
    effect = (
        f"{stages} pipeline stages, one per GPU: a request passes through them one after the other"
    )
    yield Change("pipeline-parallel-size", 0.5, effect, wanted.with_flags(**sizes))


def _count_changes(wanted: Wanted, before: Plan) -> Iterator[Change]:
    if wanted.parameters.tensor_parallel_size or wanted.parameters.pipeline_parallel_size:
        return  # the caller fixed the layout
    can_span = wanted.parameters.rules.spans_gpus
    cannot_split = not can_span or any(each.code == "tensor-parallel" for each in before.problems)
    for count in (1, 2, 4, 8) if can_span else (1,):
        is_wanted = count > wanted.gpu_count or (cannot_split and count < wanted.gpu_count)
        if is_wanted and count <= wanted.gpu.max_count:
            gpus = "1 GPU" if count == 1 else f"{count} GPUs"
            effect = f"{gpus} per replica instead of {wanted.gpu_count}"
            changed = replace(wanted, gpu_count=count)
            yield Change("gpu-count", 2.0 + 0.5 * count, effect, changed)


def _weight_changes(wanted: Wanted) -> Iterator[Change]:
    """Yield smaller weights: quantized by the engine while loading, or a published checkpoint."""
    model, parameters = wanted.model, wanted.parameters
    if lacks_allowance(model, parameters):
        allowing = parameters.with_values({"allow_deprecated_quantization": True})
        effect = "the engine reads a form that it has deprecated, and may drop in a later release"
        yield Change("quantization", 0.6, effect, replace(wanted, parameters=allowing))
    if parameters.quantization:
        return
    if model.quantization is None:
        effect = "weights quantized to FP8 while loading: half their size"
        changed = wanted.with_flags(quantization="fp8")
        yield Change("quantization", 3.0, effect, changed, SLIGHTLY)
        if _has_online_4_bit(wanted):
            effect = "weights quantized to 4 bits by bitsandbytes while loading: slower decoding"
            changed = wanted.with_flags(quantization="bitsandbytes")
            yield Change("quantization", 4.7, effect, changed, LESS)
    yield from _checkpoint_changes(wanted)


def _checkpoint_changes(wanted: Wanted) -> Iterator[Change]:
    """Yield checkpoints of the model that were published with smaller weights."""
    model = wanted.model
    for sibling in quantized_siblings(model):
        form = sibling.quantization.default if sibling.quantization is not None else None
        bits = round(form.bits) if form is not None else 16
        name = form.name.upper() if form is not None else ""
        effect = f"the published {name} checkpoint {sibling.name} instead of {model.name}"
        quality = SLIGHTLY if bits >= 8 else LESS
        cost = 3.1 if bits >= 8 else 4.5
        yield Change("checkpoint", cost, effect, replace(wanted, model=sibling), quality)


def _smaller_weights(wanted: Wanted, quantization: str) -> Iterator[Change]:
    """Yield the one way in which an engine makes weights smaller."""
    if wanted.model.quantization is None and not wanted.parameters.quantization:
        effect = f"weights quantized to {quantization.upper()} while loading: a byte for each"
        changed = wanted.with_flags(quantization=quantization)
        yield Change("quantization", 3.0, effect, changed, SLIGHTLY)


def _has_online_4_bit(wanted: Wanted) -> bool:
    """Whether `--quantization=bitsandbytes` is there: until 0.27, and for dense models."""
    return wanted.parameters.rules.version < (0, 28, 0) and wanted.model.moe is None


_NEEDS_ANOTHER_KIND = frozenset({"gpu-type", "quantization", "dtype", "kv-cache-dtype"})
"""Problems of the kind of GPU, which one with less memory may not have."""


def _family_changes(wanted: Wanted, before: Plan, others: tuple[Gpu, ...]) -> Iterator[Change]:
    gpu, asked = wanted.gpu, wanted.gpu_count
    is_unable = any(p.refuses and p.code in _NEEDS_ANOTHER_KIND for p in before.problems)
    for other in others:
        is_larger = other.reported_bytes > gpu.reported_bytes
        if other.key == gpu.key or not (is_larger or is_unable):
            continue
        ratio = other.reported_bytes / max(1, gpu.reported_bytes)
        for count in dict.fromkeys((asked, 1, 2, 4, 8)):
            if count == asked or count <= min(other.max_count, max(1, asked)):
                effect = f"{count} x {other.name} instead of {asked} x {gpu.name}"
                # What is free on the other kind is not known.
                changed = replace(wanted, gpu=other, gpu_count=count, free_bytes=None)
                cost = 3.2 + 0.1 * ratio + 0.5 * count
                yield Change("gpu-type", cost, effect, changed)
