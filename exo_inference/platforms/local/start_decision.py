"""Whether a replica may start now, and with how much memory: pure functions of the machine as it is.

The platform asks once per look, to say what a replica waits for, and once more right before a start,
with one start at a time. What was admitted together fits together; this keeps what was forced in, or
what other programs have taken meanwhile, from taking the machine down.
"""

from __future__ import annotations

from dataclasses import dataclass

from exo_inference.platforms.local.host import HostView
from exo_inference.platforms.local.settings import LocalPlatformSettings
from exo_inference.platforms.replica_memory import (
    PROCESS_BYTES,
    ReplicaNeed,
    choose_cache,
    format_size,
    reserve_bytes,
)


@dataclass(frozen=True, slots=True)
class Go:
    """It may start, with a KV cache of so many bytes; 0 leaves that to the engine."""

    cache_bytes: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Wait:
    """It may not, and why."""

    reason: str


def decide_start(
    view: HostView, name: str, need: ReplicaNeed, settings: LocalPlatformSettings
) -> Go | Wait:
    """Decide about the start of one replica that does not run.

    Args:
        view: the machine, with this replica on it.
        name: the replica's.
        need: what it takes.
        settings: how many at a time, and what counts as pressure.
    """
    reason = find_standstill(view, settings)
    if reason:
        return Wait(reason)
    left = free_room(view)
    if need.least_bytes > left:
        return Wait(
            f"waiting for memory: {format_size(need.least_bytes)} needed, {format_size(max(0, left))} "
            f"of this machine's {format_size(view.memory.total_bytes)} are left. Scale down or delete "
            "another deployment"
        )
    starting, most = count_starting(view, settings), max_starts(view.num_cores)
    if starting >= most:
        cores = "1 core" if view.num_cores == 1 else f"{view.num_cores} cores"
        turn = f"{starting} replicas are starting, {most} at a time on {cores}"
        return Wait(f"waiting for its turn: {turn}")
    waiting = [t for t in view.replicas if not t.running and not t.draining and t.name != name]
    spare = left - need.least_bytes - sum(replica.need.least_bytes for replica in waiting)
    cache = min(choose_cache(need, spare, 1 + len(waiting)), left - need.fixed_bytes)
    return Go(cache, need.fixed_bytes + cache)


def free_room(view: HostView) -> int:
    """Return what may be given to replicas beside all that run; negative if they have too much."""
    held = sum(replica.held_bytes for replica in view.replicas)
    taken = sum(replica.taken_bytes for replica in view.replicas)
    return view.memory.free_bytes + held - taken - reserve_bytes(view.memory.total_bytes)


def count_places(view: HostView, need: ReplicaNeed | None) -> int:
    """Return how many more replicas there is memory for."""
    least = PROCESS_BYTES if need is None else need.least_bytes
    return max(0, free_room(view)) // max(1, least)


def max_starts(num_cores: int) -> int:
    """Return how many replicas may start at the same time: loading keeps a core busy each."""
    return max(2, num_cores // 2)


def count_starting(view: HostView, settings: LocalPlatformSettings) -> int:
    """Return how many replicas keep the machine busy with their start.

    One that takes very long counts no more: it waits for a disk, or hangs, and others must not for it.
    What simulates a start only sleeps once its program is loaded.
    """
    limits = {False: settings.start_slot_seconds, True: settings.simulated_start_slot_seconds}
    return sum(
        1
        for replica in view.replicas
        if replica.seconds_starting is not None
        and replica.seconds_starting < limits[replica.simulated]
    )


def find_standstill(view: HostView, settings: LocalPlatformSettings) -> str:
    """Return why nothing at all may start now; empty when something may."""
    if view.paused:
        return (
            "paused: the control plane was started with --paused. Run `exo dedicated-inference up` "
            "to start replicas"
        )
    pressure = view.pressure
    if pressure is not None and pressure.full >= settings.start_pressure_percent:
        return (
            "waiting: the machine is short of memory, everything on it stood still for "
            f"{pressure.full:.0f} % of the last 10 s"
        )
    return ""
