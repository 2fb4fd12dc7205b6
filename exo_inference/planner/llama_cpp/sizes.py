"""What a start of llama.cpp takes of each GPU and of main memory. Pure.

`planning.py` and the grades ask. All sizes are bytes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache

from exo_inference.planner.llama_cpp.cache import layer_kept
from exo_inference.planner.llama_cpp.compute import (
    Role,
    compute_bytes,
    host_compute_bytes,
    output_bytes,
)
from exo_inference.planner.llama_cpp.setting import ALL, Context, LlamaSetting
from exo_inference.planner.llama_cpp.weights import (
    Placement,
    device_weights,
    fetched_bytes,
    file_bytes,
    place,
)
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.model.shapes import Layer


@dataclass(frozen=True, slots=True)
class DeviceSizes:
    """The buffers of a device: weights, cache of tokens, states, compute; and weights that a file may have beside."""

    weights: int = 0
    cells: int = 0
    states: int = 0
    compute: int = 0
    maybe: int = 0

    @property
    def cache(self) -> int:
        """Cache of tokens and of states."""
        return self.cells + self.states

    @property
    def total(self) -> int:
        """All buffers."""
        return self.weights + self.cells + self.states + self.compute


@dataclass(frozen=True, slots=True)
class Sizes:
    """All devices of a start."""

    gpus: tuple[DeviceSizes, ...]
    host: DeviceSizes
    placement: Placement

    @property
    def total(self) -> int:
        """The buffers of all GPUs."""
        return sum(each.total for each in self.gpus)


@dataclass(frozen=True, slots=True)
class _Arrangement:
    """What no context changes: where layers and their weights are.

    Attributes:
        layers: of each GPU, the different ones with how often each occurs.
        elsewhere: the same of main memory.
        fetched: the most weights that a GPU fetches at once from main memory.
        first: the first GPU that computes; None: none does.
    """

    placement: Placement
    layers: tuple[tuple[tuple[Layer, int], ...], ...]
    elsewhere: tuple[tuple[Layer, int], ...]
    weights: tuple[int, ...]
    host_weights: int
    fetched: int
    first: int | None


def measure(model: Architecture, setting: LlamaSetting, context: Context, gpus: int) -> Sizes:
    """Return what a start takes.

    Args:
        model: of a quantization that is known.
        setting: what was asked.
        context: its contexts.
        gpus: how many there are.
    """
    found = _arrangement(model, setting, gpus)
    drafting = file_bytes(model).drafting
    caches = [_cache(model, setting, context, each) for each in found.layers]
    host_cache = sum(_cache(model, setting, context, found.elsewhere))
    if not setting.offloads_cache:
        host_cache += sum(map(sum, caches))
        caches = [(0, 0)] * gpus
    buffers = _buffers(model, setting, context, found)
    devices = tuple(
        DeviceSizes(
            found.weights[gpu],
            *caches[gpu],
            buffers[gpu],
            drafting if gpu == found.placement.output else 0,
        )
        for gpu in range(gpus)
    )
    graph = host_compute_bytes(model, setting, context) + output_bytes(model, context)
    host = DeviceSizes(found.host_weights, host_cache, 0, graph)
    return Sizes(devices, host, found.placement)


def _arrangement(model: Architecture, setting: LlamaSetting, gpus: int) -> _Arrangement:
    layers = ALL if setting.gpu_layers is None else setting.gpu_layers
    return _arrange(model, setting.splits, setting.only_gpu, setting.cpu_moe, layers, gpus)


@lru_cache(maxsize=128)  # a plan with its ways out has dozens, and tries many lengths with each
def _arrange(
    model: Architecture,
    splits: tuple[float, ...],
    only_gpu: int | None,
    cpu_moe: int,
    gpu_layers: int,
    gpus: int,
) -> _Arrangement:
    setting = LlamaSetting(splits=splits, only_gpu=only_gpu, cpu_moe=cpu_moe)
    placement = place(model, setting, gpus, gpu_layers)
    tensors = file_bytes(model)
    weights, host_weights = device_weights(tensors, placement, gpus)
    known: dict[int, Layer] = {}
    counts: dict[int | None, Counter[int]] = {}
    for layer, device in zip(model.layers, placement.layers, strict=True):
        known[id(layer)] = layer
        counts.setdefault(device, Counter())[id(layer)] += 1
    grouped = {
        device: tuple((known[key], count) for key, count in each.items())
        for device, each in counts.items()
    }
    return _Arrangement(
        placement,
        tuple(grouped.get(gpu, ()) for gpu in range(gpus)),
        grouped.get(None, ()),
        tuple(weights),
        host_weights,
        fetched_bytes(tensors, placement),
        min((each for each in placement.units if each is not None), default=None),
    )


def _cache(
    model: Architecture,
    setting: LlamaSetting,
    context: Context,
    layers: tuple[tuple[Layer, int], ...],
) -> tuple[int, int]:
    """Return the bytes that these layers keep: of tokens, and states."""
    cells = states = 0
    for layer, count in layers:
        kept = layer_kept(layer.kv, model.model_type, setting, context)
        cells += count * (kept.total - kept.state_bytes)
        states += count * kept.state_bytes
    return cells, states


def _buffers(
    model: Architecture, setting: LlamaSetting, context: Context, found: _Arrangement
) -> list[int]:
    """Return the compute buffers of the GPUs; the first one that computes fetches what is in main memory."""
    known: dict[tuple[object, ...], int] = {}  # GPUs in the middle of a row do the same
    sizes = []
    for gpu, layers in enumerate(found.layers):
        is_first, has_output = gpu == found.first, gpu == found.placement.output
        key = (frozenset(id(layer) for layer, _ in layers), has_output, is_first)
        if not layers and not has_output:
            known[key] = 0
        elif key not in known:
            role = _role(model, setting, context, found, gpu)
            known[key] = compute_bytes(model, setting, context, role)
        sizes.append(known[key])
    return sizes


def role_of(
    model: Architecture, setting: LlamaSetting, context: Context, gpus: int, gpu: int
) -> Role:
    """Return what a GPU of a start does."""
    return _role(model, setting, context, _arrangement(model, setting, gpus), gpu)


def _role(
    model: Architecture, setting: LlamaSetting, context: Context, found: _Arrangement, gpu: int
) -> Role:
    placement = found.placement
    is_pipelined = (
        len(found.layers) > 1
        and placement.is_whole
        and setting.offloads_cache
        and setting.only_gpu is None
    )
    kinds = tuple(layer for layer, _ in found.layers[gpu])
    role = Role(kinds, gpu == placement.output, is_pipelined)
    if not setting.offloads_ops or gpu != found.first:
        return role
    cache = _fetched_cache(model, setting, context, found)
    return replace(role, fetched=found.fetched, fetched_cache=cache)


def _fetched_cache(
    model: Architecture, setting: LlamaSetting, context: Context, found: _Arrangement
) -> int:
    """Return the largest cache of a layer in main memory."""
    kept = (
        layer_kept(layer.kv, model.model_type, setting, context) for layer, _ in found.elsewhere
    )
    return max((each.total - each.state_bytes for each in kept), default=0)
