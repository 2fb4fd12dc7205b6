"""When a server that runs counts as hung. `HangDetector` is pure; `probe_server` is what it is shown.

Used by `server_process.py`. A server hangs when it is stopped by a signal, or when it no longer answers its
own socket (`exo_inference/liveness.py`). Time in which the supervisor itself did not get on, because
the machine stood still, does not count against a server. Standard library only. Of controller and gateway alone: when a
replica starts again is said by `exo_inference/platforms/local/restart_backoff.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from exo_inference.liveness import LivenessAnswer, probe
from exo_inference.state_dir import is_stopped


@dataclass(frozen=True, slots=True)
class WatchPolicy:
    """How often a server is looked at, and how long it may hang."""

    interval_seconds: float = 1.0
    """Between two looks."""

    answer_seconds: float = 2.0
    """How long one answer is waited for."""

    stopped_seconds: float = 5.0
    """A process that a signal has stopped (SIGSTOP) is killed and started again after so long."""

    silent_seconds: float = 30.0
    """One that answered before and does not any more, after so long."""


class HangDetector:
    """What is known of one process from look to look."""

    def __init__(self, policy: WatchPolicy) -> None:
        self._policy = policy
        self._has_answered = False
        self._stopped_seconds = 0.0
        self._silent_seconds = 0.0

    def observe(self, *, answered: bool | None, stopped: bool, elapsed_seconds: float) -> str:
        """Take one look; return why to end the process, or "".

        Args:
            answered: None where it could not be asked, as its socket file is gone.
            stopped: a signal has stopped it.
            elapsed_seconds: since the look before.
        """
        policy = self._policy
        counted = min(elapsed_seconds, policy.interval_seconds + policy.answer_seconds)
        self._has_answered |= answered is True
        self._stopped_seconds = self._stopped_seconds + counted if stopped else 0.0
        self._silent_seconds = self._silent_seconds + counted if answered is False else 0.0
        if self._stopped_seconds >= policy.stopped_seconds:
            return f"it was stopped by a signal {self._stopped_seconds:.0f} s ago and did not go on"
        if self._has_answered and self._silent_seconds >= policy.silent_seconds:
            return f"it has not answered for {self._silent_seconds:.0f} s"
        return ""


def probe_server(path: Path, pid: int, policy: WatchPolicy) -> tuple[LivenessAnswer | None, bool]:
    """Return what a server answers on its socket, and whether a signal has stopped it. Blocks."""
    return probe(path, policy.answer_seconds), is_stopped(pid)
