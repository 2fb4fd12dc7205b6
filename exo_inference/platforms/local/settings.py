"""How the local platform behaves. Built once where the process starts and passed down."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LocalPlatformSettings:
    """All limits and times of the local platform."""

    drain_grace_seconds: float = 60.0
    """How long an engine may finish its requests after SIGTERM before its group is killed."""

    first_backoff_seconds: float = 1.0
    """Wait before the first restart after a crash; doubles with every further crash."""

    max_backoff_seconds: float = 60.0
    """Ceiling of that wait."""

    max_backoff_after_ready_seconds: float = 10.0
    """Ceiling for a replica that was ready before it crashed: its configuration works, so being
    back soon is worth more than sparing the machine a start."""

    max_backoff_after_kill_seconds: float = 1.0
    """The same for one that was killed from outside while it served, which says nothing about it: not its
    fault, and not likely again."""

    first_backoff_out_of_memory_seconds: float = 30.0
    """The first wait after the kernel killed an engine because memory ran out; it doubles, too."""

    max_backoff_out_of_memory_seconds: float = 600.0
    """Ceiling of that wait: each such start takes memory from all others on the machine."""

    engine_nice: int = 10
    """Niceness of engines, so that the control plane answers while they load. 0 is none."""

    start_pressure_percent: float = 10.0
    """No replica starts while all tasks stood still for lack of memory for so much of ten seconds."""

    start_slot_seconds: float = 120.0
    """A start that takes longer lets the next one begin."""

    simulated_start_slot_seconds: float = 5.0
    """The same for a simulated start, which is idle once its program is loaded."""

    view_seconds: float = 1.0
    """How old the last look at the machine may be for saying what a replica waits for."""

    stable_seconds: float = 600.0
    """A run at least this long starts the count of crashes anew."""

    stuck_start_seconds: float = 600.0
    """A start that reports nothing new for so long is called stuck in the details; it goes on."""

    health_timeout_seconds: float = 2.0
    """How long one `GET /health` may take."""

    unready_after_seconds: float = 10.0
    """A ready replica whose health check gets no answer stays ready for so long."""

    unresponsive_seconds: float = 120.0
    """A ready replica that has not answered for so long is killed and started again."""

    stalled_seconds: float = 60.0
    """A replica that says for so long that it has work and computes nothing is killed and started again."""

    stopped_seconds: float = 3.0
    """A replica of which a process is stopped by a signal for so long is started again; one whose shim is
    stopped has it woken."""

    log_max_bytes: int = 10_000_000
    """Size at which a replica's log is rotated."""

    log_max_files: int = 3
    """Log files kept of each run, the one being written included."""
