"""`plan()`: does this model fit on these GPUs with these flags, and how would it run? Pure.

The command line, the API, admission, advice and the simulated GPUs call it. It never raises for a
model, GPU or set of flags: what is wrong comes back as problems and a verdict. The work is done by
`memory.py` (components), `kv_cache.py` (blocks) and `speed/estimate.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from exo_inference.planner import state_blocks
from exo_inference.planner.checks import MAX_STAGES, check_quantization, check_request
from exo_inference.planner.gpu_catalog import GIB, Gpu
from exo_inference.planner.kv_cache import KvLayout, build_layout
from exo_inference.planner.memory import (
    Component,
    lora_component,
    stage_sizes,
    weights_component,
)
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.overheads import (
    BAND,
    GRAPHS_CODE,
    asleep,
    graphs_component,
    graphs_on_amd,
    graphs_problems,
    measured,
    outside_component,
)
from exo_inference.planner.parallel.communication import (
    communication_component,
    communication_notes,
    gathered_ranks,
)
from exo_inference.planner.parameters import EngineParameters
from exo_inference.planner.problem import Problem
from exo_inference.planner.processor.lacks import kernel_problems, not_sized, processor_notes
from exo_inference.planner.profile_run import activations_component, profile_batch, with_first_start
from exo_inference.planner.releases.classes import check_class
from exo_inference.planner.releases.own_code import check_own_code
from exo_inference.planner.resolved_setting import Setting, Stage, settle
from exo_inference.planner.room.blocks import Room, find_room, num_blocks
from exo_inference.planner.room.shortage import (
    cache_size_problem,
    free_memory_problem,
    is_tight,
    memory_problems,
    tight_problems,
)
from exo_inference.planner.speed.basis import speed_inputs
from exo_inference.planner.speed.processor import speed_of
from exo_inference.planner.static.rest import most_requests, rest_note, rest_problems, type_notes
from exo_inference.planner.static.stage import static_stage
from exo_inference.planner.verdict import Basis, Plan, StagePlan, Verdict


def plan(
    model: Architecture,
    gpu: Gpu,
    gpu_count: int,
    parameters: EngineParameters,
    *,
    draft: Architecture | None = None,
    free_bytes: int | None = None,
) -> Plan:
    """Plan one replica.

    Args:
        model: what is served.
        gpu: the kind of GPU.
        gpu_count: how many of them the replica has.
        parameters: the engine's flags.
        draft: the draft model that `--speculative-config` names, when the caller knows it.
        free_bytes: memory free on each GPU before the start, when known.

    Returns:
        The plan; its verdict is `unknown` where the model cannot be sized.
    """
    static, asked = parameters.rules.static_share, parameters.max_model_len
    lack = static.find_lack(model, gpu, asked) if static is not None else not_sized(parameters, gpu)
    if model.cannot_size is not None or lack is not None:
        detail = f"cannot size {model.name}, because {model.cannot_size or lack}"
        return Plan(
            model.name, gpu.name, gpu_count, parameters, Verdict.UNKNOWN,
            problems=(Problem("unknown-model", detail),), usd_per_hour=gpu.price(max(1, gpu_count)),
        )  # fmt: skip
    setting = replace(
        settle(model, gpu, max(1, gpu_count), parameters, draft), free_bytes=free_bytes
    )
    problems = [
        *check_request(setting.model, gpu, gpu_count, parameters, setting.ranks, setting.dtype),
        *check_quantization(model, parameters, setting.ranks),
        *kernel_problems(setting),
        *check_class(model, setting.rules),
        *check_own_code(model, parameters),
        *setting.speculation.problems,
    ]
    if setting.ranks.pipeline > min(MAX_STAGES, len(setting.model.layers)):
        # Each stage costs time and memory here, and nobody but the engine's user has said how many.
        return Plan(
            model.name, gpu.name, gpu_count, parameters, Verdict.REFUSED,
            problems=tuple(problems), usd_per_hour=gpu.price(max(1, gpu_count)),
        )  # fmt: skip
    stages = [_plan_stage(setting, index) for index in range(setting.ranks.pipeline)]
    limiting = min(stages, key=_headroom)
    return _conclude(setting, stages, limiting, problems)


def _plan_stage(setting: Setting, stage: int) -> Stage:
    model, ranks, rules = setting.model, setting.ranks, setting.rules
    if rules.static_share is not None:
        return static_stage(setting, stage)
    parameters, dtype_bytes = setting.parameters, setting.dtype_bytes
    is_last = stage == ranks.pipeline - 1
    weights = weights_component(
        model, ranks, stage, dtype_bytes, rules, padding=setting.padding, offload=setting.offload
    )
    batch = profile_batch(setting, gathered_ranks(setting), is_first=stage == 0, is_last=is_last)
    is_eager = bool(parameters.enforce_eager) or setting.gpu.vendor == "cpu"
    activations = activations_component(model, ranks, rules, batch, dtype_bytes)
    if not is_eager:
        activations = with_first_start(activations, model, ranks, rules)
    graphs = graphs_component(model, ranks, rules, setting.max_num_seqs, is_eager=is_eager)
    outside = asleep(outside_component(model, ranks, rules, setting.gpu), setting)
    parts = [weights, activations, graphs_on_amd(graphs, setting), outside]
    communication = communication_component(setting)
    parts += [communication] if communication is not None else []
    if parameters.enable_lora:
        slots, rank = parameters.max_loras or 1, parameters.max_lora_rank or 16
        parts.append(lora_component(model, ranks, slots, rank, dtype_bytes))
    if is_last and setting.speculation.weights:
        parts.append(setting.speculation.component(ranks, dtype_bytes))
    sizes = stage_sizes(len(model.layers), ranks.pipeline)
    start = sum(sizes[:stage])
    specs = [
        layer.kv for layer in model.layers[start : start + sizes[stage]] if layer.kv is not None
    ]
    if is_last:
        specs += setting.speculation.kv_specs
    layout = build_layout(specs, setting.kv)
    return replace(_budgeted(setting, tuple(parts), layout), index=stage, specs=tuple(specs))


def _budgeted(setting: Setting, parts: tuple[Component, ...], layout: KvLayout | None) -> Stage:
    """Work out what is left for the cache, and the band around it."""
    gpu, parameters, rules = setting.gpu, setting.parameters, setting.rules
    if gpu.vendor == "cpu":
        return _cpu_stage(setting, parts, layout)
    share = setting.memory_share
    budget = math.ceil(gpu.reported_bytes * share)
    used = [part for part in parts if part.is_in_budget]
    available = budget - sum(part.num_bytes for part in used)
    more, less = gpu.reported_error_bytes * share, gpu.shortfall_bytes * share
    wide = measured(BAND).value if rules.spans_gpus else 1.0
    others = [part for part in used if part.name != "weights"]
    down = wide * math.sqrt(sum((p.high - p.num_bytes) ** 2 for p in others) + less**2)
    up = wide * math.sqrt(sum(p.spread_down**2 for p in others) + more**2)
    weights = parts[0]
    down = math.hypot(down, weights.high - weights.num_bytes) + sum(p.first_start for p in others)
    up = math.hypot(up, weights.num_bytes - weights.low) + sum(p.alternative for p in others)
    low, high = int(available - down), int(available + up)
    if parameters.kv_cache_memory_bytes is not None:
        asked, spare = parameters.kv_cache_memory_bytes, gpu.reported_bytes - budget
        fits = available + spare >= asked
        available = asked if fits else available + spare
        low = asked if low + spare >= asked else low + spare
        high = asked if high + spare >= asked else high + spare
    if parameters.num_gpu_blocks_override is not None and layout is not None:
        asked = parameters.num_gpu_blocks_override * layout.bytes_per_block
        available, low, high = (min(value, asked) for value in (available, low, high))
    if rules.caps_cache and layout is not None:
        most = _most_useful_bytes(setting, layout)
        available, low, high = (min(value, most) for value in (available, low, high))
    return Stage(parts, layout, budget, available, low, high)


def _most_useful_bytes(setting: Setting, layout: KvLayout) -> int:
    """Return what all sequences could use, or the blocks asked for: exo-engine never allocates more."""
    if setting.parameters.num_gpu_blocks_override is not None:
        return setting.parameters.num_gpu_blocks_override * layout.bytes_per_block
    blocks = layout.blocks_for(setting.max_model_len, setting.max_num_batched_tokens)
    return setting.max_num_seqs * blocks * layout.bytes_per_block


def _cpu_stage(setting: Setting, parts: tuple[Component, ...], layout: KvLayout | None) -> Stage:
    """exo-engine on a CPU: the cache is a setting, by default 1 GiB or half of what is free."""
    used = sum(part.num_bytes for part in parts)
    free = max(0, setting.gpu.reported_bytes - used)
    asked = setting.parameters.kv_cache_memory_bytes or min(GIB, free // 2)
    most = _most_useful_bytes(setting, layout) if layout is not None else asked
    is_counted = setting.parameters.num_gpu_blocks_override is not None
    size = most if is_counted else min(asked, most)
    if size > free or used > setting.gpu.reported_bytes:
        size = setting.gpu.reported_bytes - used
    return Stage(parts, layout, setting.gpu.reported_bytes, size, size, size)


def _headroom(stage: Stage) -> float:
    """Order stages by how many blocks they have room for."""
    return stage.available / stage.layout.bytes_per_block if stage.layout is not None else math.inf


def _verdict(problems: Sequence[Problem], limiting: Stage, room: Room) -> Verdict:
    if any(problem.refuses for problem in problems):
        return Verdict.REFUSED
    if is_tight(limiting, room):
        return Verdict.TIGHT
    if any(problem.code in (state_blocks.CODE, GRAPHS_CODE) for problem in problems):
        return Verdict.TIGHT
    return Verdict.FITS


def _conclude(
    setting: Setting,
    stages: Sequence[Stage],
    limiting: Stage,
    problems: list[Problem],
) -> Plan:
    # The stage with the least memory left decides for all: each stage holds the cache of every request.
    layout, gpu, room = limiting.layout, setting.gpu, find_room(setting, stages, limiting)
    static = setting.rules.static_share
    has_check = state_blocks.checks_states(setting, stages)
    lacks_states = has_check and setting.max_num_seqs > room.low_blocks  # at any length
    told = replace(room, safe=0) if lacks_states or _graph_problems(setting, limiting) else room
    problems += cache_size_problem(setting, limiting) or memory_problems(setting, limiting, told)
    problems += free_memory_problem(setting, limiting.budget)
    if static is not None:
        problems += rest_problems(setting, limiting)
    if has_check and limiting.high > 0:  # else the lack of memory is said already
        blocks = (room.low_blocks, room.blocks, room.high_blocks)
        shorter = room.safe if room.low_blocks < room.needed_blocks and not room.adapts else 0
        problems += state_blocks.state_problems(setting.max_num_seqs, *blocks, shorter)
    if not any(problem.refuses for problem in problems):
        problems += _graph_problems(setting, limiting)
        problems += tight_problems(setting, limiting, room)
    verdict = _verdict(problems, limiting, room)
    capacity, concurrency = _capacity(setting, layout, room.blocks, room.length)
    is_refused = verdict is Verdict.REFUSED
    has_none = layout is None and limiting.available > 0
    cache = (0, 0, 0) if has_none else (limiting.available, limiting.low, limiting.high)
    fits = limiting.available > 0 and room.blocks >= room.needed_blocks and not is_refused
    fits = fits and not (has_check and setting.max_num_seqs > room.blocks)
    empty = Plan(setting.model.name, gpu.name, setting.gpu_count, setting.parameters, verdict)
    sized = replace(
        empty,
        problems=tuple(problems),
        ranks=setting.ranks,
        components=_all_components(setting, limiting),
        total_bytes_per_gpu=gpu.reported_bytes,
        budget_bytes_per_gpu=limiting.budget,
        weights_bytes_per_gpu=limiting.components[0].num_bytes,
        available_kv_bytes_per_gpu=cache[0],
        available_kv_bytes_low=cache[1],
        available_kv_bytes_high=cache[2],
        max_model_len=room.length,
        largest_max_model_len=room.largest if limiting.available > 0 else 0,
        safe_max_model_len=room.safe if limiting.low > 0 else 0,
        safe_max_num_seqs=room.low_blocks if has_check else None,
        max_num_seqs=setting.max_num_seqs if static is None else most_requests(setting, limiting),
        max_num_batched_tokens=setting.max_num_batched_tokens,
        max_concurrency=concurrency * setting.ranks.data,  # each data rank has a cache of its own
        kv_capacity_tokens=capacity,
        fits_nominally=fits,
        stages=tuple(_stage_plan(setting, index, stage) for index, stage in enumerate(stages)),
        usd_per_hour=gpu.price(setting.gpu_count),
        notes=_notes(setting),
    )
    if layout is not None:
        sized = _with_cache(sized, layout, room)
    inputs = speed_inputs(setting, sized)
    speed = speed_of(inputs) if setting.rules.estimates_speed and not is_refused else None
    return replace(sized, basis=Basis(setting, limiting, inputs), speed=speed)


def _graph_problems(setting: Setting, stage: Stage) -> list[Problem]:
    graphs = next((each for each in stage.components if each.name == "cuda_graphs"), None)
    if graphs is None or stage.available <= 0 or setting.gpu.vendor == "cpu":
        return []
    return graphs_problems(graphs, _left_alone(setting, stage)[0])


def _notes(setting: Setting) -> tuple[str, ...]:
    assumed = () if setting.drafting is None else (setting.drafting.describe(),)
    if setting.rules.static_share is not None:
        return (*setting.model.notes, *type_notes(setting), rest_note(setting))
    own = (*setting.model.notes, *setting.speculation.notes, *assumed, *processor_notes(setting))
    return (*own, *communication_notes(setting))


def _with_cache(sized: Plan, layout: KvLayout, room: Room) -> Plan:
    return replace(
        sized,
        needed_kv_bytes_per_gpu=room.needed_blocks * layout.bytes_per_block,
        kv_bytes_per_token=layout.bytes_per_token,
        kv_block_size=layout.block_size,
        num_kv_blocks=room.blocks,
    )


def _stage_plan(setting: Setting, index: int, stage: Stage) -> StagePlan:
    sizes = stage_sizes(len(setting.model.layers), setting.ranks.pipeline)
    blocks = num_blocks(setting, stage, "available") if stage.layout is not None else 0
    return StagePlan(sizes[index], stage.components[0].num_bytes, stage.available, blocks)


def _capacity(
    setting: Setting, layout: KvLayout | None, blocks: int, length: int
) -> tuple[int, float]:
    """Return tokens and concurrency as the engine prints them."""
    if layout is None or blocks <= 0:
        return 0, 0.0
    concurrency = blocks / max(1, layout.blocks_for(length, setting.max_num_batched_tokens))
    if layout.is_uniform:
        return blocks * layout.block_size * layout.context_parallel_size, concurrency
    if setting.rules.reports_by_concurrency:
        return int(concurrency * length), concurrency
    return blocks // layout.num_groups * layout.block_size, concurrency


def _all_components(setting: Setting, stage: Stage) -> tuple[Component, ...]:
    """Add the cache and what the engine leaves alone."""
    if stage.layout is None:
        used = sum(part.num_bytes for part in stage.components)
        rest = max(0, setting.gpu.reported_bytes - used)
        source = "nothing of a text is kept, so there is no KV cache"
        left = Component("reserve", rest, rest, rest, source, is_in_budget=False)
        return (*stage.components, left)
    cache = Component(
        "kv_cache", max(0, stage.available), max(0, stage.low), max(0, stage.high),
        "what is left of the budget; all of it is given to KV blocks",
    )  # fmt: skip
    if setting.gpu.vendor == "cpu":
        return (*stage.components, cache)
    rest, source = _left_alone(setting, stage)
    return (
        *stage.components,
        cache,
        Component("reserve", rest, rest, rest, source, is_in_budget=False),
    )


def _left_alone(setting: Setting, stage: Stage) -> tuple[int, str]:
    """Return what neither weights and overheads nor the cache take, and why."""
    outside = setting.gpu.reported_bytes - stage.budget
    flag = setting.rules.flag("gpu-memory-utilization").lstrip("-")
    if stage.available <= 0 or setting.rules.static_share is not None:
        return outside, f"outside {flag}"
    used = sum(part.num_bytes for part in stage.components if part.is_in_budget)
    rest = setting.gpu.reported_bytes - used - stage.available
    if rest == outside:
        return rest, f"outside {flag}, not used by the engine's own pool"
    return rest, "what no flag gives to the cache"
