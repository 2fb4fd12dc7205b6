"""Whether a start of llama.cpp fits, and what `--fit` makes of one that does not. Pure.

Source: `common_params_fit_impl` (common/fit.cpp, 0c1e5709): where less than `--fit-target` would stay free of a GPU, a
context that nobody asked for is shortened, down to `--fit-ctx`; then layers go to main memory, unless `--gpu-layers` is
given, as the platform does by default, or another flag that says where they are. A start that still has no room ends
with CUDA's "out of memory".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from exo_inference.planner.gpu_catalog import Gpu
from exo_inference.planner.llama_cpp.constants import (
    COMPUTE,
    WEIGHTS,
    banded,
    context_component,
)
from exo_inference.planner.llama_cpp.setting import Context, LlamaSetting, resolve
from exo_inference.planner.llama_cpp.sizes import DeviceSizes, Sizes, measure
from exo_inference.planner.memory import Component, found_bytes
from exo_inference.planner.model.architecture import Architecture

_STEP = 256


@dataclass(frozen=True, slots=True)
class Asked:
    """A start.

    Attributes:
        trained: the model's own context.
        free_bytes: free on each GPU before; None: all of it.
    """

    model: Architecture
    gpu: Gpu
    gpus: int
    setting: LlamaSetting
    free_bytes: int | None = None

    @property
    def trained(self) -> int:
        """The context that the model was trained with, as its converter writes it into a file: what config.json names."""
        return self.model.stated_model_len or self.model.max_model_len or 4096

    @property
    def spared(self) -> tuple[tuple[int, int], ...]:
        """The GPUs that llama-server sees, with what `--fit` is to leave free of each: with `--split-mode none` one alone."""
        only = self.setting.only_gpu
        seen = range(self.gpus) if only is None else (only,)
        return tuple(zip(seen, self.setting.fit_targets, strict=False))

    @property
    def margin(self) -> int:
        """What stays free of each GPU where `--fit` has to move no layers."""
        return max(target for _, target in self.spared) if self.setting.moves_layers else 0

    @property
    def units(self) -> int:
        """The layers that are asked for on GPUs, the output being one."""
        units, wanted = len(self.model.layers) + 1, self.setting.gpu_layers
        return units if wanted is None else min(units, wanted)

    @property
    def room(self) -> int:
        """What a GPU has for everything."""
        return found_bytes(self.gpu, self.free_bytes)

    @property
    def least_room(self) -> int:
        """The same where the driver reports less."""
        return self.room - self.gpu.shortfall_bytes

    @property
    def most_room(self) -> int:
        """The same where the driver reports more."""
        return self.room + (self.gpu.reported_error_bytes if self.free_bytes is None else 0)

    def sizes(self, context: Context, setting: LlamaSetting | None = None) -> Sizes:
        """Return what a start with these contexts takes."""
        return measure(self.model, setting or self.setting, context, self.gpus)


def components(sizes: DeviceSizes, shared: int = 0) -> tuple[Component, ...]:
    """Return the parts of a GPU's memory.

    Args:
        sizes: of the GPU.
        shared: bytes of main memory, where that is the GPU's too.
    """
    cache = Component(
        "kv_cache",
        sizes.cache,
        sizes.cache,
        sizes.cache,
        "cells of the whole context, states of each sequence",
    )
    return (
        banded(
            "weights",
            sizes.weights,
            WEIGHTS,
            "tensors of the GGUF file that are on the GPU",
            sizes.maybe,
        ),
        banded("activations", sizes.compute, COMPUTE, "the widest moment of a batch's graph"),
        context_component(shared),
        cache,
    )


def need(asked: Asked, sizes: Sizes, gpu: int, end: str = "num_bytes") -> int:
    """Return what a GPU needs, at the middle or at an end of the band."""
    shared = sizes.host.total if asked.gpu.is_unified else 0
    parts = components(sizes.gpus[gpu], shared)
    return sum(int(getattr(each, end)) for each in parts)


def tightest(asked: Asked, sizes: Sizes) -> int:
    """Return the GPU with the least room."""
    return max(range(asked.gpus), key=lambda gpu: sizes.gpus[gpu].total)


def fits(asked: Asked, sizes: Sizes, *, surely: bool) -> bool:
    """Whether every GPU has room with the layers where they are, at the middle of the estimate or at its worst."""
    gpu, margin = tightest(asked, sizes), asked.margin
    if surely and need(asked, sizes, gpu, "high") > asked.least_room:
        return False
    is_settled = surely and not margin  # the middle is no more than the worst
    return is_settled or need(asked, sizes, gpu) + margin <= asked.room


def has_room(asked: Asked, context: Context) -> bool:
    """Whether a start has room even at the worst: with a context that `--fit` chooses, with the shortest it would take.

    The one that it chooses has to fit at the middle all the same: it shortens by the sum of all GPUs, so that one of them
    may have too much where `--tensor-split` gives it more than its share.
    """
    sizes = asked.sizes(context)
    if fits(asked, sizes, surely=True):
        return True
    setting = asked.setting
    if setting.context or not setting.fits or not fits(asked, sizes, surely=False):
        return False
    least = _shortest(asked, context)
    return least.total < context.total and fits(asked, asked.sizes(least), surely=True)


def _shortest(asked: Asked, context: Context) -> Context:
    """Return the shortest contexts that `--fit` takes."""
    least = min(context.total, asked.setting.fit_context * context.streams or _STEP)
    return resolve(asked.setting, asked.trained, least)


def longest(asked: Asked, *, surely: bool) -> int:
    """Return the longest request for which a start has room, 0 for none."""
    streams = resolve(asked.setting, asked.trained).streams
    top = max(1, -(-asked.trained // _STEP))

    def holds(steps: int) -> bool:
        context = resolve(asked.setting, asked.trained, steps * _STEP * streams)
        return fits(asked, asked.sizes(context), surely=surely)

    return min(_largest(holds, top) * _STEP, asked.trained)


def _largest(holds: Callable[[int], bool], top: int) -> int:
    """Return the largest number up to `top` that holds, where smaller ones do if larger ones do; 0 for none."""
    if holds(top):
        return top
    low, high = 0, top
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def fitted_context(asked: Asked) -> Context:
    """Return the contexts with which llama-server starts, after `--fit` has shortened them."""
    setting = asked.setting
    whole = resolve(setting, asked.trained)
    if setting.context or not setting.fits:
        return whole
    at_most = asked.sizes(whole)
    spare = [(asked.room - need(asked, at_most, gpu), target) for gpu, target in asked.spared]
    lacking = sum(target - left for left, target in spare)
    if all(left >= target for left, target in spare) or lacking <= 0:
        return whole
    least = _shortest(asked, whole)
    at_least = asked.sizes(least)
    wanted = at_most.total - lacking
    if len(spare) > 1:  # only whole layers can be moved between GPUs
        weights = sum(each.weights for each in at_most.gpus)
        layers = max(1, min(len(asked.model.layers), asked.units))
        wanted -= (len(spare) + 1) * (weights // layers) // (2 if asked.model.moe is None else 6)
    gap = max(1, at_most.total - at_least.total)
    share = min(1.0, max(0.0, (wanted - at_least.total) / gap))
    step = _STEP * whole.streams
    total = int(least.total + (whole.total - least.total) * share) // step * step
    return resolve(setting, asked.trained, max(total, least.total))


def spilled(asked: Asked, context: Context) -> LlamaSetting | None:
    """Return the start with as much on GPUs as has room even at the worst; None where nothing has.

    Experts go to main memory first, layer by layer, then whole layers. What flags keep there stays there.
    """
    setting, layers = asked.setting, len(asked.model.layers)
    most, room = asked.units, asked.least_room - asked.margin
    with_experts = 0 if asked.model.moe is None else max(0, layers - setting.cpu_moe)

    def changed(kept: int) -> LlamaSetting:
        """Keep layers on GPUs, and beyond these the experts of so many."""
        off = layers - max(0, kept - most) if with_experts else setting.cpu_moe
        return replace(setting, gpu_layers=min(kept, most), cpu_moe=off)

    def holds(kept: int) -> bool:
        sizes = asked.sizes(context, changed(kept))
        return need(asked, sizes, tightest(asked, sizes), "high") <= room

    return changed(_largest(holds, most + with_experts)) if holds(0) else None


def layer_counts(sizes: Sizes) -> tuple[int, ...]:
    """Return how many units each GPU has."""
    units = sizes.placement.units
    return tuple(units.count(gpu) for gpu in range(len(sizes.gpus)))
