"""Says where one replica stands, for people and for the reconciler: pure functions.

Everything is in the arguments: the replica's files, the trend of its health, the time. Called by
the platform after each look at the world.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from exo_inference.engines import Failure
from exo_inference.platforms.base import ObservedReplica, ReplicaPhase
from exo_inference.platforms.local.health import Trend
from exo_inference.platforms.local.placement import is_simulated
from exo_inference.platforms.local.replica_dir import SOCKET_NAME, ReplicaFacts
from exo_inference.platforms.local.restart_backoff import RestartDecision
from exo_inference.platforms.local.settings import LocalPlatformSettings
from exo_inference.platforms.local.stops import Part, Stop

SIMULATED = "runs on simulated GPUs"
"""What a ready replica says for itself where its GPUs are not there."""


@dataclass(frozen=True, slots=True)
class Sight:
    """One replica and what was found out about it at one moment.

    Attributes:
        trend: of its health; None while it does not run.
        stop: a process of it is stopped by a signal.
        restart: what its last end means; None while it runs.
        failure: why it crashed; None when it did not.
        obstacle: why it cannot be started now, such as a missing GPU.
        final: the obstacle goes away only when the spec (or the machine) changes.
        waits: the machine has no room or no turn for it, so that a start need not be tried.
    """

    facts: ReplicaFacts
    trend: Trend | None = None
    stop: Stop | None = None
    restart: RestartDecision | None = None
    failure: Failure | None = None
    obstacle: str = ""
    final: bool = False
    waits: bool = False


def observe(sight: Sight, spec: str | None, settings: LocalPlatformSettings) -> ObservedReplica:
    """Return what the platform reports of a replica. `spec` is the hash of the wanted one."""
    facts = sight.facts
    phase, details = _find_phase(sight, settings)
    process = facts.process if facts.running else None
    return ObservedReplica(
        name=facts.name,
        phase=phase,
        current=facts.record.spec == spec,
        details=details,
        address=f"unix:replicas/{facts.name}/{SOCKET_NAME}" if process else None,
        pid=process.engine_pid if process else None,
        restarts=facts.restarts,
        served=facts.was_ready,
        started_at=datetime.fromtimestamp(process.started_at, UTC) if process else None,
        cause="" if sight.failure is None else sight.failure.message,
        overdue=_is_stuck(sight, settings),
        models=facts.launch.models if facts.launch else (),
        has_served=facts.ready_run > 0,
    )


def has_failed(sight: Sight) -> bool:
    """Whether the replica must not be started again as it is."""
    crashed_for_good = sight.failure is not None and not sight.failure.retry
    return not sight.facts.running and crashed_for_good


def _find_phase(sight: Sight, settings: LocalPlatformSettings) -> tuple[ReplicaPhase, str]:
    facts = sight.facts
    if facts.draining:
        text = "finishing its requests" if facts.running else "stopped"
        return ReplicaPhase.DRAINING, text
    if facts.running:
        return _running_phase(sight, settings)
    if sight.obstacle:
        return (ReplicaPhase.FAILED if sight.final else ReplicaPhase.PENDING), sight.obstacle
    if sight.restart is None or not sight.restart.crashed:
        return ReplicaPhase.STARTING, "about to start"
    return _ended_phase(sight)


def _running_phase(sight: Sight, settings: LocalPlatformSettings) -> tuple[ReplicaPhase, str]:
    trend = sight.trend
    if trend is None or sight.facts.process is None:
        return ReplicaPhase.STARTING, "starting the engine"
    if sight.stop is not None and sight.stop.part is Part.ENGINE:
        return ReplicaPhase.STARTING, (
            f"{sight.stop.reason}; it is started again after {settings.stopped_seconds:.0f} s"
        )
    if sight.facts.kill_reason:  # its end takes a moment
        return ReplicaPhase.STARTING, sight.facts.kill_reason
    if trend.health.ready:
        return ReplicaPhase.READY, SIMULATED if is_simulated(sight.facts.record) else ""
    if not trend.health.answered and sight.facts.was_ready:
        if trend.silent_seconds < settings.unready_after_seconds:
            return ReplicaPhase.READY, ""
        return ReplicaPhase.STARTING, (
            f"the engine has not answered its health check for {trend.silent_seconds:.0f} s; "
            f"it is started again after {settings.unresponsive_seconds:.0f} s"
        )
    if trend.health.draining:
        return ReplicaPhase.STARTING, "the engine is stopping by itself"
    if trend.health.stalled:
        return ReplicaPhase.STARTING, (
            f"the engine hangs: {trend.health.detail}; it is started again after "
            f"{settings.stalled_seconds:.0f} s of this"
        )
    details = trend.health.detail or "starting the engine"
    if _is_stuck(sight, settings):
        details = (
            f"stuck? no progress for {trend.unchanged_seconds / 60:.0f} min, last: {details}. "
            f"Run `{logs_command(sight.facts)}`"
        )
    return ReplicaPhase.STARTING, details


def _is_stuck(sight: Sight, settings: LocalPlatformSettings) -> bool:
    """Whether a start makes no progress any more."""
    trend = sight.trend
    if trend is None or trend.health.ready or sight.facts.was_ready or sight.facts.draining:
        return False
    return trend.unchanged_seconds >= settings.stuck_start_seconds


def _ended_phase(sight: Sight) -> tuple[ReplicaPhase, str]:
    assert sight.restart is not None, "only crashed replicas come here"
    facts = sight.facts
    why = sight.failure.message if sight.failure else "the engine ended while nobody watched"
    if facts.exit is not None and facts.exit.killed:
        why = "the engine did not answer its health check and was killed"
    if facts.kill_reason:
        why = facts.kill_reason
    if sight.restart.out_of_memory:
        why = (
            "the machine ran out of memory and the kernel killed the engine; give it less "
            "(--max-model-len, --max-num-seqs, --kv-cache-memory-bytes), or run fewer replicas"
        )
    why = why.rstrip(". ")
    if has_failed(sight):
        return ReplicaPhase.FAILED, (
            f"{why}. It is not started again by itself. Run `{logs_command(facts)} --previous`; "
            "when the cause is mended (or to change the flags), run "
            f"`exo dedicated-inference deployment update {facts.record.deployment}`"
        )
    times = "once" if sight.restart.failures == 1 else f"{sight.restart.failures} times in a row"
    return ReplicaPhase.BACKOFF, (
        f"{why}. It crashed {times} and is started again in {sight.restart.wait_seconds:.0f} s. "
        f"Run `{logs_command(facts)} --previous`"
    )


def logs_command(facts: ReplicaFacts) -> str:
    """Return what a user types to read the replica's log."""
    return f"exo dedicated-inference deployment logs {facts.record.deployment}"
