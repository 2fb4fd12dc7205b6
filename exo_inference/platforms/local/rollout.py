"""Which replicas to start and which to drain next: a pure function, no clock and no I/O.

Called by `LocalPlatform.apply` with what is there and what is wanted; returns one safe step. Called
again after each step it converges on `wanted` replicas of the current spec, and it holds that

* while an update can surge, no ready replica is drained unless as many as wanted stay ready;
* without room to surge, one replica is replaced at a time, and the next only when the one before
  it serves;
* replicas of the old spec go on serving while those of the new one fail;
* no more than one replica over the wanted number is ever started.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RolloutReplica:
    """One replica as the decision sees it.

    Attributes:
        current: started from the wanted spec.
        draining: on its way out; it still holds its memory and GPUs.
        created_at: tells the younger of two.
        waiting: it cannot start before another gives its GPUs or its memory back.
    """

    name: str
    current: bool
    ready: bool
    draining: bool
    created_at: float
    waiting: bool = False


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """What to do now: drain these replicas, start so many of the current spec."""

    drain: tuple[str, ...] = ()
    num_starts: int = 0


def decide_rollout(
    replicas: Sequence[RolloutReplica], wanted: int, free_slots: int | None
) -> RolloutStep:
    """Return the next safe step.

    Args:
        replicas: all replicas of the deployment, draining ones included.
        wanted: how many are asked for.
        free_slots: how many more replicas the machine could hold now; None if it does not count.
    """
    alive = [replica for replica in replicas if not replica.draining]
    current = [replica for replica in alive if replica.current]
    old = [replica for replica in alive if not replica.current]
    drain = [replica.name for replica in _surplus(current, wanted)]
    drain += [replica.name for replica in old if not replica.ready]
    kept = [replica for replica in alive if replica.name not in drain]
    old_serving = [replica for replica in kept if not replica.current]
    drain += _choose_old_drains(
        kept, old_serving, wanted, free_slots, num_draining=len(replicas) - len(alive) + len(drain)
    )
    num_alive = len(alive) - len(drain)
    missing = wanted - sum(1 for replica in kept if replica.current)
    return RolloutStep(
        drain=tuple(drain),
        num_starts=_count_starts(missing, num_alive, len(replicas), wanted, free_slots),
    )


def _surplus(current: Sequence[RolloutReplica], wanted: int) -> list[RolloutReplica]:
    """Choose what a scale down takes: newest not ready first, then youngest."""
    by_worth = sorted(current, key=lambda replica: (replica.ready, -replica.created_at))
    return by_worth[: max(0, len(current) - wanted)]


def _choose_old_drains(
    kept: Sequence[RolloutReplica],
    old_serving: Sequence[RolloutReplica],
    wanted: int,
    free_slots: int | None,
    *,
    num_draining: int,
) -> list[str]:
    """Choose which serving replicas of an old spec can go, oldest first."""
    by_age = [r.name for r in sorted(old_serving, key=lambda replica: replica.created_at)]
    num_ready = sum(1 for replica in kept if replica.ready)
    spare = num_ready - wanted
    if spare > 0:
        return by_age[:spare]
    current = [replica for replica in kept if replica.current]
    # One that waits for GPUs gets those of an old one, but not before the one before it serves.
    waits = any(r.waiting for r in current) and all(r.ready or r.waiting for r in current)
    is_full = len(kept) == wanted and spare == 0
    stuck = free_slots == 0 and num_draining == 0 and (waits or is_full)
    return by_age[:1] if stuck else []


def _count_starts(
    missing: int, num_alive: int, num_all: int, wanted: int, free_slots: int | None
) -> int:
    if missing <= 0:
        return 0
    room = max(0, wanted + 1 - num_all)
    # Replicas up to the wanted number are created even without a free GPU: they wait for one and
    # say so. The surge replica is created only where it can run.
    unconditional = max(0, wanted - num_alive)
    surge = max(0, wanted + 1 - max(num_alive, wanted))
    placeable = surge if free_slots is None else min(surge, max(0, free_slots - unconditional))
    return min(missing, room, unconditional + placeable)
