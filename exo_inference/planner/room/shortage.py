"""How a plan says that memory is too little, or may be. What is short is written as what is missing, never below zero.

`planning.py` calls these; where the plan is not refused, `tight_problems` says why the engine may not start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from exo_inference.planner.gpu_catalog import GIB, MIB
from exo_inference.planner.problem import Problem

if TYPE_CHECKING:
    from exo_inference.planner.resolved_setting import Setting, Stage
    from exo_inference.planner.room.blocks import Room


def free_memory_problem(setting: Setting, budget: int) -> list[Problem]:
    """Compare what is free on each GPU with what the engine wants when it starts."""
    free = setting.free_bytes
    takes_free = setting.rules.static_share is not None  # a share of that, whatever it is
    if free is None or budget <= free or takes_free or setting.gpu.vendor == "cpu":
        return []
    detail = f"{_gib(free)} are free on each GPU, {_gib(budget)} are wanted at the start"
    return [Problem("free-memory", f"{detail} (gpu-memory-utilization of the total)")]


def memory_problems(setting: Setting, stage: Stage, room: Room) -> list[Problem]:
    """Say what the engine would refuse for lack of memory, even in the best case."""
    share = f"{_gib(stage.budget)} of {_gib(setting.gpu.reported_bytes)}"
    each = "" if setting.gpu.vendor == "cpu" else " per GPU"
    if stage.high <= 0:
        used = _gib(stage.budget - stage.available)
        detail = f"weights and overheads take {used}{each}, the engine may use {share}"
        return [Problem("memory", f"{detail}: nothing is left for the KV cache")]
    if room.high_blocks >= room.needed_blocks or stage.layout is None:
        return []
    need = room.needed_blocks * stage.layout.bytes_per_block
    detail = f"one request of {room.length} tokens needs {_gib(need)} of KV cache{each}, "
    if stage.high == setting.parameters.kv_cache_memory_bytes:
        detail += f"--kv-cache-memory-bytes is {stage.high}; set {need} or more, or leave it out"
        return [Problem("memory", detail, says_step=True)]
    left = f"{_gib(stage.available)} (at best {_gib(stage.high)}) are left of {share}"
    if stage.available < 0:
        left = (
            f"and {share} are {_gib(-stage.available)} too little for weights and overheads alone (at best {_gib(stage.high)} "
            "are left)"
        )
    detail += left
    return [Problem("memory", detail + _longest_text(room))]


def _longest_text(room: Room) -> str:
    """Return the longest context, at the middle of the estimate and for sure."""
    if room.largest <= 0:
        return ""
    safe = f"; --max-model-len={room.safe} is safe" if room.safe > 0 else ""
    return f"; about {room.largest} tokens fit at the middle of the estimate{safe}"


def cache_size_problem(setting: Setting, stage: Stage) -> list[Problem]:
    """Check --kv-cache-memory-bytes against the whole GPU, which is what bounds it."""
    asked = setting.parameters.kv_cache_memory_bytes
    if asked is None or setting.gpu.vendor == "cpu" or stage.high >= asked:
        return []
    room = max(0, stage.available)
    left = f"{_gib(room)} of {_gib(setting.gpu.reported_bytes)} are left per GPU"
    detail = (
        f"--kv-cache-memory-bytes is {asked} ({_gib(asked)}), {left} beside weights and overheads"
    )
    step = f"set --kv-cache-memory-bytes={stage.low} or less" if stage.low > 0 else "use more GPUs"
    return [Problem("memory", f"{detail}: {step}", says_step=stage.low > 0)]


def is_tight(stage: Stage, room: Room) -> bool:
    """Whether the cache may be too small for one request of full length, or for any."""
    is_short = room.low_blocks < room.needed_blocks and not (room.adapts and room.safe > 0)
    return is_short or stage.low <= 0


def tight_problems(setting: Setting, stage: Stage, room: Room) -> list[Problem]:
    """Say what may be too little at the pessimistic end, so that the engine may not start."""
    if not is_tight(stage, room):
        return []
    each = "" if setting.gpu.vendor == "cpu" else " per GPU"
    left = f"{_gib(stage.low)}{each} are left for the KV cache"
    if stage.low < 0:
        left = f"{_gib(stage.budget)}{each} are {_gib(-stage.low)} too little for weights and overheads alone"
    elif stage.low == 0:
        left = "nothing is left for the KV cache"
    needed = room.needed_blocks * stage.layout.bytes_per_block if stage.layout is not None else 0
    detail = f"at worst {left}"
    if needed and room.length > 1:  # else nothing is left in the middle of the estimate either
        detail += f", one request of {room.length:,} tokens needs {_gib(needed)}"
    return [Problem("memory", detail, refuses=False)]


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB" if abs(size) >= GIB / 100 else f"{size / MIB:.2f} MiB"
