"""One bar per GPU that shows where its memory goes, and the legend. Pure.

All GPUs of a replica are alike except across pipeline stages, so there is one bar for each kind.
Every part has a character of its own, so that a bar can be read without colour.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from exo_inference.cli.plan import words
from exo_inference.engine_names import facts_of
from exo_inference.wire import DeploymentPlan

OVERFLOW = "┃"
"""Marks where the GPU ends in the bar of a plan that takes more than it has."""


@dataclass(frozen=True)
class Look:
    """How one part of memory is shown."""

    label: str
    character: str
    colour: str


_LOOKS = {
    "weights": Look("weights", "█", "blue"),
    "draft_model": Look("draft model", "▊", "cyan"),
    "lora": Look("LoRA", "▌", "bright_blue"),
    "activations": Look("activations", "▓", "yellow"),
    "cuda_graphs": Look("CUDA graphs", "▒", "magenta"),
    "non_torch": Look("non-torch", "░", "red"),
    "communication": Look("rank buffers", "▚", "bright_red"),
    "overheads": Look("overheads", "▒", "yellow"),
    "kv_cache": Look("KV cache", "=", "green"),
    "reserve": Look("left alone", ".", "bright_black"),
}
_ORDER = list(_LOOKS)
_RESERVE = "reserve"


@dataclass(frozen=True)
class Part:
    """One part of a GPU's memory; the band is the part itself where none is known."""

    look: Look
    num_bytes: int
    low: int
    high: int


@dataclass(frozen=True)
class GpuMemory:
    """The memory of one GPU, and how many GPUs of the replica are like it; of others no more than that they are less full."""

    parts: tuple[Part, ...]
    total_bytes: int
    num_gpus: int
    is_fullest: bool = False

    @property
    def used_bytes(self) -> int:
        """What all parts take together; more than the GPU has where nothing fits."""
        return sum(part.num_bytes for part in self.parts)


def gpu_memories(plan: DeploymentPlan) -> list[GpuMemory]:
    """Return the kinds of GPU of one replica, in the order of the pipeline stages."""
    if not plan.components:
        return []
    per_stage = max(1, plan.tensor_parallel_size * plan.data_parallel_size)
    kinds = Counter((s.weights_bytes, s.available_kv_bytes) for s in plan.stages)
    if len(kinds) < 2:
        count = per_stage * max(1, len(plan.stages))
        return [GpuMemory(_limiting_parts(plan), plan.total_bytes_per_gpu, count)]
    limiting = (plan.weights_bytes_per_gpu, plan.available_kv_bytes_per_gpu)
    # Its cache does not fill what is left of a GPU, so that what other GPUs have beside it cannot be told.
    if facts_of(plan.engine).loads_gguf:
        parts = _limiting_parts(plan)
        return [GpuMemory(parts, plan.total_bytes_per_gpu, kinds[limiting], is_fullest=True)]
    return [
        GpuMemory(
            _limiting_parts(plan) if kind == limiting else _stage_parts(plan, *kind),
            plan.total_bytes_per_gpu,
            per_stage * number,
        )
        for kind, number in kinds.items()
    ]


def _limiting_parts(plan: DeploymentPlan) -> tuple[Part, ...]:
    parts = [
        (_rank(each.name), Part(_look(each.name), each.num_bytes, each.low, each.high))
        for each in plan.components
        if each.num_bytes > 0 and each.name != _RESERVE
    ]
    left = _left_alone(plan)
    if left > 0:
        parts.append((_rank(_RESERVE), Part(_look(_RESERVE), left, left, left)))
    return tuple(part for _, part in sorted(parts, key=lambda pair: pair[0]))


def _left_alone(plan: DeploymentPlan) -> int:
    """Return what nothing uses, or what must not be used where the engine's share is overdrawn."""
    others = [each for each in plan.components if each.name != _RESERVE]
    if plan.available_kv_bytes_per_gpu > 0 or words.has_no_cache(plan):
        return plan.total_bytes_per_gpu - sum(each.num_bytes for each in others)
    # Older releases take CUDA graphs from beyond the share.
    beyond = sum(each.num_bytes for each in others if not each.in_budget)
    return plan.total_bytes_per_gpu - plan.budget_bytes_per_gpu - beyond


def _stage_parts(plan: DeploymentPlan, weights: int, available: int) -> tuple[Part, ...]:
    """Return the parts of a stage of which only weights and cache are known apart."""
    sizes = {
        "weights": weights,
        "overheads": plan.budget_bytes_per_gpu - weights - available,
        "kv_cache": available,
        "reserve": plan.total_bytes_per_gpu - plan.budget_bytes_per_gpu,
    }
    return tuple(Part(_look(name), size, size, size) for name, size in sizes.items() if size > 0)


def _look(name: str) -> Look:
    return _LOOKS.get(name, Look(name.replace("_", " "), "?", "white"))


def _rank(name: str) -> int:
    return _ORDER.index(name) if name in _LOOKS else _ORDER.index("kv_cache")


def draw(memory: GpuMemory, width: int) -> list[tuple[str, str]]:
    """Return a bar as runs of characters with their colours, `width` columns in all.

    Whatever is there gets a column at least. Where the parts take more than the GPU has, the bar
    is as long as they are and a line shows where the GPU ends.
    """
    scale = max(memory.total_bytes, memory.used_bytes, 1)
    counts = _columns([part.num_bytes for part in memory.parts], scale, width)
    runs = [
        (part.look.character * count, part.look.colour)
        for part, count in zip(memory.parts, counts, strict=True)
    ]
    if memory.used_bytes <= memory.total_bytes * 1.001:
        return runs
    return _marked(runs, round(width * memory.total_bytes / scale))


def _columns(sizes: list[int], scale: int, width: int) -> list[int]:
    """Share the columns out; the largest part makes up for what rounding adds or takes."""
    counts = [max(1, round(width * size / scale)) for size in sizes]
    surplus = sum(counts) - round(width * min(1.0, sum(sizes) / scale))
    if counts:
        largest = counts.index(max(counts))
        counts[largest] = max(1, counts[largest] - surplus)
    return counts


def _marked(runs: list[tuple[str, str]], position: int) -> list[tuple[str, str]]:
    """Put the mark for the GPU's end in the place of one character, of a part that has another."""
    marked: list[tuple[str, str]] = []
    lengths = [length for length in (len(text) for text, _ in runs) for _ in range(length)]
    long = [place for place, length in enumerate(lengths) if length > 1]
    position = min(long, key=lambda place: abs(place - position), default=position)
    start = 0
    for text, colour in runs:
        at = position - start
        if 0 <= at < len(text):
            marked += [(text[:at], colour), (OVERFLOW, "bold"), (text[at + 1 :], colour)]
        else:
            marked.append((text, colour))
        start += len(text)
    return [run for run in marked if run[0]]
