"""When a replica that does not run may start again: pure functions of its files and the time.

Nothing else remembers crashes, so a restarted controller neither forgets a back-off nor begins a
new one. Called by the platform for replicas whose shim is gone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime

from exo_inference.platforms.local.replica_dir import ReplicaFacts
from exo_inference.platforms.local.settings import LocalPlatformSettings


@dataclass(frozen=True, slots=True)
class RestartDecision:
    """What the last run means for the next.

    Attributes:
        failures: crashes in a row, the last run included.
        crashed: the last run ended without being asked to.
        wait_seconds: until the next start may happen; 0 is now.
        out_of_memory: the kernel ended the last run for lack of memory.
    """

    failures: int
    crashed: bool
    wait_seconds: float
    out_of_memory: bool = False


def decide_restart(
    facts: ReplicaFacts,
    now: float,
    boot_id: str,
    settings: LocalPlatformSettings,
    *,
    restarted_at: datetime | None = None,
) -> RestartDecision:
    """Say when a replica that does not run may start.

    Runs that were asked to stop, or that ended with the machine, are no crashes. Neither does a
    crash count any more once a user has asked to try again, at `restarted_at`.
    """
    launch, ended = facts.launch, facts.exit
    if launch is None:
        return RestartDecision(failures=0, crashed=False, wait_seconds=0.0)
    if ended is None and launch.boot_id != boot_id:
        return RestartDecision(launch.failures, crashed=False, wait_seconds=0.0)
    if ended is not None and ended.stop_asked:
        return RestartDecision(launch.failures, crashed=False, wait_seconds=0.0)
    ended_at = ended.finished_at if ended else launch.spawned_at
    if restarted_at is not None and _is_asked_since(restarted_at.timestamp(), ended_at, now):
        return RestartDecision(failures=0, crashed=False, wait_seconds=0.0)
    ran_seconds = (ended_at if ended else now) - launch.spawned_at
    failures = 1 if ran_seconds >= settings.stable_seconds else launch.failures + 1
    out_of_memory = ended is not None and ended.out_of_memory
    delay = backoff_seconds(facts.name, facts.run, failures, settings, out_of_memory=out_of_memory)
    if facts.was_ready and not out_of_memory:
        delay = min(delay, settings.max_backoff_after_ready_seconds)
        if ended is not None and ended.killed_from_outside:
            delay = min(delay, settings.max_backoff_after_kill_seconds)
    # Once the clock was set back nobody knows how long it waited; it must not wait for the clock.
    left = max(0.0, delay - (now - ended_at)) if now >= ended_at else 0.0
    return RestartDecision(failures, crashed=True, wait_seconds=left, out_of_memory=out_of_memory)


def _is_asked_since(asked_at: float, ended_at: float, now: float) -> bool:
    """Whether a user has asked to try again since the end.

    A time after `now` is one of before the clock was set back.
    """
    if ended_at > now >= asked_at:
        return True  # nothing tells which was first: one more start does no harm
    return asked_at >= ended_at and not asked_at > now >= ended_at


def backoff_seconds(
    name: str,
    run: int,
    failures: int,
    settings: LocalPlatformSettings,
    *,
    out_of_memory: bool = False,
) -> float:
    """Return the wait after so many crashes in a row: exponential, with jitter, bounded.

    The jitter comes from the replica's name and run, so that asking twice gives one answer.
    """
    first, most = settings.first_backoff_seconds, settings.max_backoff_seconds
    if out_of_memory:
        first = settings.first_backoff_out_of_memory_seconds
        most = settings.max_backoff_out_of_memory_seconds
    digest = hashlib.sha256(f"{name}/{run}".encode()).digest()
    jitter = 0.75 + 0.5 * int.from_bytes(digest[:4], "big") / 2**32
    return min(first * 2.0 ** min(failures - 1, 32) * jitter, most)
