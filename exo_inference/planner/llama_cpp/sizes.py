"""What a start of llama.cpp takes of each GPU and of main memory. Pure.

`planning.py` and the grades ask. All sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exo_inference.planner.llama_cpp.cache import layer_kept
from exo_inference.planner.llama_cpp.compute import (
    Role,
    compute_bytes,
    host_compute_bytes,
    output_bytes,
)
from exo_inference.planner.llama_cpp.setting import ALL, Context, LlamaSetting
from exo_inference.planner.llama_cpp.weights import (
    FileBytes,
    Placement,
    device_weights,
    fetched_bytes,
    file_bytes,
    place,
)
from exo_inference.planner.model.architecture import Architecture


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


def measure(
    model: Architecture,
    setting: LlamaSetting,
    context: Context,
    gpus: int,
    placement: Placement | None = None,
) -> Sizes:
    """Return what a start takes.

    Args:
        model: of a quantization that is known.
        setting: what was asked.
        context: its contexts.
        gpus: how many there are.
        placement: where layers are; by default as asked for.
    """
    tensors = file_bytes(model)
    if placement is None:
        layers = ALL if setting.gpu_layers is None else setting.gpu_layers
        placement = place(model, setting, gpus, layers)
    weights, host_weights = device_weights(tensors, placement, gpus)
    cells, states, host_cache = _caches(model, setting, context, placement, gpus)
    buffers = _buffers(model, setting, context, placement, gpus, tensors)
    maybe = [tensors.drafting if gpu == placement.output else 0 for gpu in range(gpus)]
    devices = tuple(
        DeviceSizes(*each) for each in zip(weights, cells, states, buffers, maybe, strict=True)
    )
    graph = host_compute_bytes(model, setting, context) + output_bytes(model, context)
    return Sizes(devices, DeviceSizes(host_weights, host_cache, 0, graph), placement)


def _caches(
    model: Architecture, setting: LlamaSetting, context: Context, placement: Placement, gpus: int
) -> tuple[list[int], list[int], int]:
    cells, states, host = [0] * gpus, [0] * gpus, 0
    known: dict[int, tuple[int, int]] = {}
    for layer, device in zip(model.layers, placement.layers, strict=True):
        if id(layer) not in known:
            kept = layer_kept(layer.kv, model.model_type, setting, context)
            known[id(layer)] = kept.total - kept.state_bytes, kept.state_bytes
        size, state = known[id(layer)]
        if device is None or not setting.offloads_cache:
            host += size + state
        else:
            cells[device] += size
            states[device] += state
    return cells, states, host


def _buffers(
    model: Architecture,
    setting: LlamaSetting,
    context: Context,
    placement: Placement,
    gpus: int,
    tensors: FileBytes,
) -> list[int]:
    pipelined = (
        gpus > 1 and placement.is_whole and setting.offloads_cache and setting.only_gpu is None
    )
    fetched, cache = 0, 0
    if setting.offloads_ops:
        fetched = fetched_bytes(tensors, placement)
        elsewhere = {
            id(layer): layer.kv
            for layer, device in zip(model.layers, placement.layers, strict=True)
            if device is None
        }
        kept = (layer_kept(spec, model.model_type, setting, context) for spec in elsewhere.values())
        cache = max((each.total - each.state_bytes for each in kept), default=0)
    used: Sequence[int] = sorted({each for each in placement.units if each is not None})
    found = [0] * gpus
    for gpu in used:
        layers = tuple(
            layer
            for layer, device in zip(model.layers, placement.layers, strict=True)
            if device == gpu
        )
        beside = (fetched, cache) if gpu == used[0] else (0, 0)
        role = Role(layers, placement.output == gpu, pipelined, *beside)
        found[gpu] = compute_bytes(model, setting, context, role)
    return found
