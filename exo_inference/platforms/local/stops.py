"""Finds processes of a replica that a signal has stopped (SIGSTOP), and says for how long.

A stopped process answers nothing and ends no connection, so that nothing else tells it from a busy one.
Reads `/proc`; the platform decides what is done.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from exo_inference.platforms.local.replica_dir import Process
from exo_inference.state_dir import is_stopped, process_start_ticks

_MAX_PROCESSES = 64


class Part(StrEnum):
    """Which of a replica's processes."""

    SHIM = "shim"
    ENGINE = "engine"


@dataclass(frozen=True, slots=True)
class Stop:
    """A part of a replica is stopped.

    Attributes:
        part: the engine, if any of its processes is, else the shim.
        pid: of the process.
        seconds: since it was first seen so.
    """

    part: Part
    pid: int
    seconds: float

    @property
    def reason(self) -> str:
        """Return it in words."""
        return f"process {self.pid} of the {self.part} was stopped by a signal (SIGSTOP)"


class StopHistory:
    """Since when processes are stopped, in this controller's lifetime; by replica and run."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], tuple[Part, int, float]] = {}

    def look(self, name: str, process: Process | None, now: float) -> Stop | None:
        """Return what of a running replica is stopped at the monotonic time `now`."""
        found = None if process is None else _find_stopped(process)
        if process is None or found is None:
            self.forget(name)
            return None
        part, pid = found
        before = self._since.get((name, process.run))
        since = before[2] if before is not None and before[:2] == found else now
        self._since[name, process.run] = (part, pid, since)
        return Stop(part, pid, now - since)

    def forget(self, name: str) -> None:
        """Drop what is known of a replica."""
        for key in [key for key in self._since if key[0] == name]:
            del self._since[key]


def _find_stopped(process: Process) -> tuple[Part, int] | None:
    if process_start_ticks(process.engine_pid) == process.engine_start_ticks:
        for pid in _family(process.engine_pid):
            if is_stopped(pid):
                return Part.ENGINE, pid
    is_ours = process_start_ticks(process.shim_pid) == process.shim_start_ticks
    return (Part.SHIM, process.shim_pid) if is_ours and is_stopped(process.shim_pid) else None


def _family(pid: int) -> list[int]:
    """Return a process and what it has started."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(word) for word in task.read_text().split()]
        if len(found) > _MAX_PROCESSES:
            break
    return found
