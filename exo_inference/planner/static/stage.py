"""One pipeline stage of an engine that shares memory out by a fixed share: weights and cache, and what CUDA has before them.

`planning.py` asks for it; what is left for steps, graphs and tables of requests, `rest.py` judges. All sizes are bytes on one GPU.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files

from exo_inference.planner.gpu_catalog import GIB, Gpu
from exo_inference.planner.kv_cache import (
    KvGroup,
    KvLayout,
    KvSettings,
    token_bytes,
)
from exo_inference.planner.memory import Component, rotary_bytes, weights_component
from exo_inference.planner.model.shapes import KvKind, KvSpec
from exo_inference.planner.overheads import LINKED as NVLINK
from exo_inference.planner.overheads import Measured, at_ranks, measured
from exo_inference.planner.resolved_setting import Setting, Stage
from exo_inference.planner.static.segments import loading_rest

ALONE, LINKED, OTHERS = "one GPU", "per doubling of ranks on an NVLink switch", "several GPUs"
UNIFIED = "memory shared with the CPU"
"""Before weights are loaded: by how ranks are joined."""
LOADING, LOADING_UNIFIED = "left by loading", "left by loading, memory shared with the CPU"
"""What is less free after the weights were loaded, beside them."""


@cache
def load_constants() -> Mapping[str, Measured]:
    """Return what is taken beside weights, in GiB (`scripts/static_starts/calibrate.py`)."""
    path = files("exo_inference.planner").joinpath("catalog", "static_overheads.json")
    return {name: Measured(**entry) for name, entry in json.loads(path.read_text("utf-8")).items()}


def constant_of(gpu: Gpu, num_ranks: int) -> tuple[str, float]:
    """Return the name of the constant by how so many ranks are joined, and how often they are doubled from one."""
    if gpu.is_unified:
        return UNIFIED, 0.0
    doubled = math.log2(min(num_ranks, gpu.nvlink_size)) if gpu.has_multicast else 0.0
    if num_ranks == 1:
        return ALONE, 0.0
    return (LINKED, doubled) if doubled else (OTHERS, 0.0)


def static_stage(setting: Setting, index: int) -> Stage:
    """Return what one GPU of a stage has for its weights and its cache."""
    model, parameters, gpu = setting.model, setting.parameters, setting.gpu
    ranks = replace(setting.ranks, data=1)  # replicas: nothing is spread over them
    weights = _with_rests(loaded_weights(setting, index), gpu)
    start, end = _layers_of(len(model.layers), ranks.pipeline, index)
    specs = tuple(layer.kv for layer in model.layers[start:end] if layer.kv is not None)
    share, before = setting.memory_share, _before_weights(setting)
    budget = int(setting.found_bytes * share)
    left = budget - before.num_bytes - weights.num_bytes
    more, less = gpu.reported_error_bytes * share, gpu.shortfall_bytes * share
    down = math.hypot(before.high - before.num_bytes, weights.high - weights.num_bytes, less)
    up = math.hypot(before.num_bytes - before.low, weights.num_bytes - weights.low, more)
    layout = pools_of_tokens(specs, setting.kv, setting.state_share)
    room = (left, int(left - down), int(left + up))
    printed, asked = parameters.kv_cache_memory_bytes, parameters.num_gpu_blocks_override
    if printed is not None:  # no flag of the engine, but what a start may have printed
        room = (printed, printed, printed)
    if asked is not None and layout is not None:
        most = asked * layout.bytes_per_block
        room = (min(room[0], most), min(room[1], most), min(room[2], most))
    return Stage(
        components=(weights, before), layout=layout, budget=budget,
        available=room[0], low=room[1], high=room[2], index=index, specs=specs,
    )  # fmt: skip


def _layers_of(num_layers: int, stages: int, index: int) -> tuple[int, int]:
    """Return the layers [start, end) of a stage: what is left over goes to the last ones (distributed/utils.py)."""
    base, more = divmod(num_layers, stages)
    first_larger = stages - more
    start = index * base + max(0, index - first_larger)
    return start, start + base + (index >= first_larger)


def loaded_weights(setting: Setting, index: int) -> Component:
    """Return the weights of a stage with what the allocator's segments take beside them."""
    weights = weights_component(
        setting.model, replace(setting.ranks, data=1), index, setting.dtype_bytes, setting.rules,
        padding=setting.padding,
    )  # fmt: skip
    rest = segment_bytes(setting, index)
    return replace(
        weights, num_bytes=weights.num_bytes + rest, low=weights.low + rest, high=weights.high + rest,
        source=f"{weights.source}; rests of the allocator's segments, {rest / GIB:.2f} GiB",
    )  # fmt: skip


def segment_bytes(setting: Setting, index: int) -> int:
    """Return what the allocator's segments take beside the weights of a stage."""
    rotary = rotary_bytes(setting.model, setting.dtype_bytes, setting.rules)
    ranks = replace(setting.ranks, data=1)  # as for the weights: nothing is spread over replicas
    return loading_rest(setting.model, ranks, index, setting.dtype_bytes, setting.padding, rotary)


def left_by_loading(gpu: Gpu) -> Measured:
    """Return what loading leaves beside weights and segments, in GiB."""
    return load_constants()[LOADING_UNIFIED if gpu.is_unified else LOADING]


def _with_rests(weights: Component, gpu: Gpu) -> Component:
    """Add what loading leaves beside the weights: the engine prints both together."""
    each = left_by_loading(gpu)
    value, low, high = (int(size * GIB) for size in (each.value, each.low, each.high))
    down = math.hypot(weights.num_bytes - weights.low, value - low)
    up = math.hypot(weights.high - weights.num_bytes, high - value)
    size = weights.num_bytes + value
    source = f"{weights.source}; {each.value:g} GiB that loading leaves"
    return replace(
        weights, num_bytes=size, low=max(0, int(size - down)), high=int(size + up), source=source
    )


def _before_weights(setting: Setting) -> Component:
    """Return the static share of what is not free any more when the weights are loaded."""
    name, doubled = constant_of(setting.gpu, setting.ranks.tensor * setting.ranks.pipeline)
    constants, share = load_constants(), setting.memory_share
    # Where no start of such an engine has set it, what NCCL held for vLLM's ranks.
    each = constants.get(name) or measured(NVLINK)
    each = at_ranks(each, constants[ALONE], doubled)
    value, low, high = (int(share * size * GIB) for size in (each.value, each.low, each.high))
    source = f"{share:.3g} of what CUDA and NCCL hold before weights are loaded, {name}: middle of {each.starts} starts"
    return Component("non_torch", value, low, high, source)


def pools_of_tokens(
    specs: Iterable[KvSpec], settings: KvSettings, state_share: float
) -> KvLayout | None:
    """Return pools in which each token has a place in each layer, in those with windows fewer; states take a share.

    Source: SGLang's srt/model_executor/pool_configurator.py and model_runner_kv_cache_mixin.py, 0.5.12 to 0.5.18.
    """
    buckets = Counter(specs)
    per_token = sum(count * pooled_bytes(spec, settings) for spec, count in buckets.items())
    per_token += workspace_bytes(buckets, settings)
    if not per_token:
        return None
    if any(spec.kind is KvKind.STATE for spec in buckets):
        per_token *= 1 + state_share
    block = settings.block_size
    group = KvGroup(KvKind.FULL, block, 0, 1)
    return KvLayout(max(1, int(per_token * block)), block, (group,), 1, per_token, 0, 1)


def workspace_bytes(specs: Iterable[KvSpec], settings: KvSettings) -> int:
    """Return what beside a cache in 4 bit is in 8, for each token."""
    ranks, layers = settings.tensor_parallel_size, settings.workspace_layers
    full = (spec for spec in specs if spec.kind not in (KvKind.LATENT, KvKind.STATE))
    return layers * max((spec.heads_per_rank(ranks) * 2 * spec.key_dim for spec in full), default=0)


def pooled_bytes(spec: KvSpec, settings: KvSettings) -> float:
    """Return what a layer's pool has for each token of a pool without windows."""
    is_windowed = spec.kind in (KvKind.SLIDING, KvKind.CHUNKED)
    return (settings.window_share if is_windowed else 1.0) * token_bytes(spec, settings)
