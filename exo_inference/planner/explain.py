"""The arithmetic of a plan, step by step: each figure with its formula, the numbers put in, and a source.

The command line's `--explain` prints it and the API returns it. The steps are worked out again from the
plan's basis with the functions that made the plan, so that they cannot say something else. Pure text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from exo_inference.planner.compressed_cache import row_bytes
from exo_inference.planner.explain_step import (
    KINDS,
    Step,
    gib,
    left,
    part_name,
    per_token,
    with_band,
    with_bytes,
)
from exo_inference.planner.gpu_catalog import GIB
from exo_inference.planner.kv_cache import KvGroup, KvLayout, state_page_bytes, token_bytes
from exo_inference.planner.llama_cpp.explain import memory_steps
from exo_inference.planner.memory import (
    absorbed_bytes,
    page_bytes,
    rank_bytes,
    rotary_table,
    stage_weights,
)
from exo_inference.planner.model.shapes import KvKind, KvSpec, Weight
from exo_inference.planner.resolved_setting import Setting, Stage
from exo_inference.planner.speed.explain import speed_steps
from exo_inference.planner.static.stage import (
    left_by_loading,
    pooled_bytes,
    segment_bytes,
    workspace_bytes,
)
from exo_inference.planner.verdict import Basis, Plan, Verdict


def explain(result: Plan) -> tuple[Step, ...]:
    """Return how a plan came about: weights, overheads, budget, cache, capacity, verdict, speed.

    Args:
        result: a plan that `plan` returned.

    Returns:
        The steps in order, for one GPU of the pipeline stage with the least room; for a model that
        cannot be sized one step that says why.
    """
    basis = result.basis
    reason = "; ".join(problem.detail for problem in result.problems)
    if result.fixed_basis is not None:
        verdict = replace(_verdict_step(result), formula=reason or _ROOM)
        return (*memory_steps(result, result.fixed_basis), verdict)
    if basis is None:
        return (
            Step("Verdict", reason or "nothing could be sized", str(result.verdict), "config.json"),
        )
    steps = [
        *_weight_steps(result, basis), *_component_steps(result), *_budget_steps(result, basis),
    ]  # fmt: skip
    if basis.stage.layout is not None:
        steps += _cache_steps(result, basis, basis.stage.layout)
    return (*steps, _verdict_step(result), *speed_steps(result.speed, basis.speed))


@dataclass(slots=True)
class _Sum:
    """Weights of one part, added up."""

    elements: int = 0
    num_bytes: float = 0.0
    forms: dict[str, None] | None = None


def _weight_steps(result: Plan, basis: Basis) -> Iterator[Step]:
    setting, stage = basis.setting, basis.stage
    sums = _weights_by_part(setting, stage)
    for part, each in sums.items():
        name = part_name(part)
        form = " and ".join(each.forms or {})
        yield Step(
            f"Weights: {name}",
            f"{each.elements:,} parameters as {form}{_spread(setting)}",
            gib(each.num_bytes),
            setting.model.source,
        )
    terms = [" + ".join(gib(each.num_bytes) for each in sums.values())]
    terms += _weight_corrections(setting, stage)
    yield Step(
        "Weights", " ".join(terms), with_bytes(result.weights_bytes_per_gpu), _source_of(result, "weights")
    )  # fmt: skip


def _weights_by_part(setting: Setting, stage: Stage) -> dict[str, _Sum]:
    inner, outer = stage_weights(setting.model, setting.ranks, stage.index)
    pads = setting.padding
    sums: dict[str, _Sum] = {}
    for weight, count, padding in [
        *((weight, count, pads) for weight, count in inner), *((weight, 1, None) for weight in outer),
    ]:  # fmt: skip
        each = sums.setdefault(weight.part, _Sum(forms={}))
        each.elements += count * weight.num_elements
        each.num_bytes += count * rank_bytes(weight, setting.ranks, setting.dtype_bytes, padding)
        if each.forms is not None:
            each.forms[_form_name(weight, setting)] = None
    return {part: each for part, each in sums.items() if each.elements}


def _form_name(weight: Weight, setting: Setting) -> str:
    if weight.format is None:
        return f"{setting.dtype} ({setting.dtype_bytes} bytes)"
    return f"{weight.format.name} ({weight.format.bits:g} bits)"


def _spread(setting: Setting) -> str:
    ranks = setting.ranks
    if ranks.has_expert_parallel:
        return f", over {ranks.tensor} tensor-parallel GPUs, experts over {ranks.expert}"
    return f", over {ranks.tensor} tensor-parallel GPUs" if ranks.tensor > 1 else ""


def _weight_corrections(setting: Setting, stage: Stage) -> Iterator[str]:
    """Yield what `weights_component` does beyond adding up, in its order."""
    model = setting.model
    if setting.rules.absorbs_latents and not setting.offload:
        absorbed = absorbed_bytes(model, setting.ranks, setting.dtype_bytes)
        yield f"+ {gib(absorbed)} of absorbed latent projections"
    if setting.parameters.cpu_offload_gb:
        yield f"- up to {setting.parameters.cpu_offload_gb:g} GiB of layers offloaded to the CPU"
    if model.checkpoint_bytes is not None:
        yield f", scaled by the checkpoint's own size, {gib(model.checkpoint_bytes)}"
    entries, width = rotary_table(model, setting.dtype_bytes, setting.rules)
    if entries:
        yield f"+ {gib(entries * width)} of rotary tables ({entries:,} x {width} bytes)"
    if setting.rules.static_share is not None:
        yield f"+ {gib(segment_bytes(setting, stage.index))} of rests of the allocator's segments"
        yield f"+ {gib(left_by_loading(setting.gpu).value * GIB)} that loading leaves"
    if setting.rules.counts_pages and not setting.offload:
        rests = page_bytes(model, setting.ranks, stage.index, setting.dtype_bytes, setting.padding)
        yield f"+ {gib(rests)} of rests of pages of 2 MiB"


_COMPONENTS = {
    "activations": ("Activations", "the engine's profile run (vLLM: v1/worker/gpu_worker.py)"),
    "cuda_graphs": ("CUDA graphs", "sizes that vLLM captures; measured per layer and size"),
    "non_torch": ("Outside torch", "figures that real starts printed (docs/benchmarks/planner.md)"),
    "communication": ("Buffers between ranks", "vLLM's and FlashInfer's source (planner/parallel)"),
    "lora": ("LoRA slots", "A and B of every linear layer (vLLM: lora/layers)"),
    "draft_model": ("Draft model", "tensor shapes of what drafts"),
}


def _component_steps(result: Plan) -> Iterator[Step]:
    for each in result.components:
        if each.name not in _COMPONENTS:
            continue
        title, source = _COMPONENTS[each.name]
        if each.name == "non_torch" and result.parameters.rules.static_share is not None:
            source = "figures that real starts printed (docs/benchmarks/planner-sglang.md)"
        outside = "" if each.is_in_budget else "; captured after the cache, outside the budget"
        size = with_band(each.num_bytes, each.low, each.high)
        yield Step(title, f"{each.source}{outside}", size, source)


def _budget_steps(result: Plan, basis: Basis) -> Iterator[Step]:
    setting = basis.setting
    asked, share = setting.parameters.gpu_memory_utilization, setting.memory_share
    is_cpu = setting.gpu.vendor == "cpu"
    flag = setting.rules.flag("gpu-memory-utilization")
    why = flag if asked else f"default of {_release(setting)}"
    total = gib(result.total_bytes_per_gpu)
    formula = f"{total} that are free" if is_cpu else f"{total} as the driver reports x {share:g}"
    yield Step(
        "Budget",
        formula,
        with_bytes(result.budget_bytes_per_gpu),
        "the machine" if is_cpu else why,
    )
    used = [each for each in basis.stage.components if each.is_in_budget and each.num_bytes]
    taken = " - ".join(f"{gib(each.num_bytes)} {each.name}" for each in used)
    formula = f"{gib(result.budget_bytes_per_gpu)} - {taken}{_cache_override(setting)}"
    band = f" ({left(result.available_kv_bytes_low)} to {left(result.available_kv_bytes_high)})"
    found = result.available_kv_bytes_per_gpu
    yield Step(
        "Available for the KV cache", formula, with_bytes(abs(found)) + (" too little" if found < 0 else "") + band,
        "the band adds the components' bands as squares",
    )  # fmt: skip


def _cache_override(setting: Setting) -> str:
    parameters = setting.parameters
    if parameters.kv_cache_memory_bytes is not None:
        return f"; --kv-cache-memory-bytes asks for {gib(parameters.kv_cache_memory_bytes)} instead"
    if parameters.num_gpu_blocks_override is not None:
        flag = setting.rules.flag("num-gpu-blocks-override")
        return f"; {flag} allows {parameters.num_gpu_blocks_override} blocks"
    if setting.gpu.vendor == "cpu":
        return "; exo-engine takes 1 GiB, or half of what is free where that is less"
    if setting.rules.caps_cache:
        return f"; at most {setting.max_num_seqs} requests of {setting.max_model_len} tokens"
    return ""


def _cache_steps(result: Plan, basis: Basis, layout: KvLayout) -> Iterator[Step]:
    setting = basis.setting
    specs = Counter(basis.stage.specs)
    for spec, count in specs.items():
        yield _spec_step(spec, count, setting)
    yield Step(
        "KV bytes per token", _token_formula(specs, setting), per_token(result.kv_bytes_per_token),
        setting.rules.cache_source,
    )  # fmt: skip
    yield from _block_steps(result, basis, layout)
    yield Step(
        "Longest context at the middle of the estimate", f"the longest request of at most {result.num_kv_blocks:,} blocks",
        f"{result.largest_max_model_len:,} tokens", setting.rules.cache_source,
    )  # fmt: skip


def _token_formula(specs: Mapping[KvSpec, int], setting: Setting) -> str:
    kept = {spec: count for spec, count in specs.items() if spec.kind is not KvKind.STATE}
    static = setting.rules.static_share
    size = token_bytes if static is None else pooled_bytes
    formula = " + ".join(f"{size(spec, setting.kv) * count:,.6g}" for spec, count in kept.items())
    beside = 0 if static is None else workspace_bytes(kept, setting.kv)
    formula += f" + {beside:,} in 8 bit, which prompts read" if beside else ""
    if static is not None and len(kept) < len(specs):
        return f"({formula}) x {1 + (static.state_share or 0):g}, of which states have their part"
    return formula or "no layer caches tokens"


def _spec_step(spec: KvSpec, count: int, setting: Setting) -> Step:
    title = f"KV cache: {count} {'layer' if count == 1 else 'layers'} of {KINDS[spec.kind]}"
    if spec.kind is KvKind.STATE:
        size = state_page_bytes(spec, setting.kv)
        positions = spec.conv_positions + setting.kv.speculative_tokens
        formula = (
            f"convolution {positions} x {spec.conv_elements:,} and state {spec.state_elements:,} elements"
            f"{_spread(setting)}"
        )
        return Step(title, formula, f"{size:,} bytes per request and layer", setting.model.source)
    each = token_bytes(spec, setting.kv)
    if spec.kind is KvKind.CROSS:
        formula = f"{spec.window:,} positions of {spec.num_heads} heads x ({spec.key_dim} + {spec.value_dim})"
        return Step(
            title, formula, "nothing per token, the same for every request", setting.model.source
        )
    if spec.kind is KvKind.COMPRESSED:
        title += f", {spec.compress_ratio} to 1" if spec.compress_ratio else ", window alone"
        formula = _compressed_formula(spec, count, setting)
        return Step(title, formula, per_token(count * each), setting.model.source)
    width = f"{spec.key_dim} + {spec.value_dim}" if spec.value_dim else f"{spec.key_dim}"
    heads = spec.heads_per_rank(setting.ranks.tensor)
    formula = (
        f"{count} layers x {heads} KV heads per GPU x ({width}) x {setting.kv.dtype_bytes:g} bytes"
    )
    if spec.kind is KvKind.LATENT:
        formula = f"{count} layers x a latent of {width} x {setting.kv.dtype_bytes:g} bytes, whole on each GPU"
    if spec.index_bytes:
        formula += f"; {each:g} bytes per layer with the index of {spec.index_bytes}"
    elif spec.kind is KvKind.LATENT and each != spec.key_dim * setting.kv.dtype_bytes:
        formula += f"; padded to {each:g} bytes per layer"
    if spec.window:
        formula += f", for at most {spec.window:,} tokens back"
    return Step(title, formula, per_token(count * each), setting.model.source)


def _compressed_formula(spec: KvSpec, count: int, setting: Setting) -> str:
    row = f"{row_bytes(spec, setting.kv.dtype_bytes):g}"
    window = f"{row} bytes for {spec.window:,} tokens back"
    if not spec.compress_ratio:
        return f"{count} layers x {window}"
    return f"{count} layers x ({window} + ({row} + {spec.index_bytes}) / {spec.compress_ratio} for good)"


def _block_steps(result: Plan, basis: Basis, layout: KvLayout) -> Iterator[Step]:
    setting = basis.setting
    yield Step(
        "Bytes per block", _block_formula(result, layout), f"{layout.bytes_per_block:,} bytes",
        setting.rules.cache_source,
    )  # fmt: skip
    null = "; one block is kept back" if setting.rules.reserves_null_block else ""
    fewest = "; the stage with the fewest counts" if setting.ranks.pipeline > 1 else ""
    yield Step(
        "Blocks", f"{max(0, result.available_kv_bytes_per_gpu):,} bytes / {layout.bytes_per_block:,}{null}{fewest}",
        f"{result.num_kv_blocks:,} blocks", setting.rules.cache_source,
    )  # fmt: skip
    needed = result.needed_kv_bytes_per_gpu // layout.bytes_per_block
    if result.safe_max_num_seqs is not None:
        yield Step(
            "States", f"a block for each of {result.max_num_seqs:,} requests at once (--max-num-seqs)",
            f"{result.safe_max_num_seqs:,} for sure", "vLLM v1/worker/gpu_model_runner.py, since 0.19.0",
        )  # fmt: skip
    yield Step(
        f"One request of {result.max_model_len:,} tokens", f"{needed:,} blocks x {layout.bytes_per_block:,} bytes",
        with_bytes(result.needed_kv_bytes_per_gpu), setting.rules.cache_source,
    )  # fmt: skip
    yield Step(
        "Requests of full length at once", f"{result.num_kv_blocks:,} blocks / {needed:,}{_engines_text(setting)}",
        f"{result.max_concurrency:.2f}", setting.rules.cache_source,
    )  # fmt: skip
    yield Step(
        "Capacity", _capacity_formula(result, setting, layout), f"{result.kv_capacity_tokens:,} tokens",
        f"as {_release(setting)} prints it",
    )  # fmt: skip


def _engines_text(setting: Setting) -> str:
    data = setting.ranks.data
    return f" x {data} data-parallel engines" if data > 1 else ""


def _block_formula(result: Plan, layout: KvLayout) -> str:
    if not layout.block_formula:
        return f"{layout.block_size} tokens x {result.kv_bytes_per_token:,.10g} bytes"
    groups = ", ".join(_group_text(group) for group in layout.groups)
    return f"{layout.block_formula}; {groups}"


def _group_text(group: KvGroup) -> str:
    window = f" with a window of {group.window:,}" if group.window else ""
    noun = "group" if group.count == 1 else "groups"
    if group.kind is KvKind.STATE:
        return f"{group.count} {noun} of states"
    return f"{group.count} {noun} of {KINDS[group.kind]}{window} in blocks of {group.block_size}"


def _capacity_formula(result: Plan, setting: Setting, layout: KvLayout) -> str:
    if layout.is_uniform:
        ranks = layout.context_parallel_size
        more = f" x {ranks} context-parallel ranks" if ranks > 1 else ""
        return f"{result.num_kv_blocks:,} blocks x {layout.block_size} tokens{more}"
    if setting.rules.reports_by_concurrency:
        at_once = result.max_concurrency / setting.ranks.data
        return f"{at_once:.4g} requests x {result.max_model_len:,} tokens"
    return (
        f"{result.num_kv_blocks:,} blocks / {layout.num_groups} groups x {layout.block_size} tokens"
    )


_ROOM = "what is asked of the GPU has room at the worst of the bands"
_MEANING = {
    Verdict.FITS: "even the pessimistic bound holds one request of full length",
    Verdict.TIGHT: "the optimistic bound holds one request of full length and all states, the pessimistic one does not",
}


_STATIC_MEANING = {
    Verdict.FITS: "even the pessimistic bound leaves a cache, and the rest holds the table of requests",
    Verdict.TIGHT: "the pessimistic bound leaves no cache, or the rest is little for steps and graphs",
}


def _verdict_step(result: Plan) -> Step:
    refusals = [problem.detail for problem in result.problems if problem.refuses]
    formula = "; ".join(refusals) if refusals else _MEANING.get(result.verdict, "")
    if result.parameters.rules.static_share is not None and not refusals:
        formula = _STATIC_MEANING.get(result.verdict, "")
    return Step("Verdict", formula, str(result.verdict), "the lines above")


def _release(setting: Setting) -> str:
    """Return the engine with its version, where rules depend on one."""
    rules = setting.rules
    return (
        f"{rules.title} {'.'.join(map(str, rules.version))}" if any(rules.oldest) else rules.title
    )


def _source_of(result: Plan, name: str) -> str:
    component = result.component(name)
    return component.source if component is not None else ""
