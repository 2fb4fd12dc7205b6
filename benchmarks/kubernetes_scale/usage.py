"""Processor time and memory of processes, from /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
_UTIME, _STIME, _CUTIME, _CSTIME = 11, 12, 13, 14
"""Fields of /proc/PID/stat, counted after the name of the program."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """Processor seconds, or cores where it is per second.

    Attributes:
        own: of the process.
        children: of processes that it started and that have ended: Helm, for a controller.
    """

    own: float
    children: float

    @property
    def total(self) -> float:
        """Both."""
        return self.own + self.children


class Meter:
    """Measures from its making to each reading.

    Args:
        pids: processes by name; all live on meanwhile.
    """

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._started = time.monotonic()
        self._before = {name: _cpu(pid) for name, pid in pids.items()}

    @property
    def seconds(self) -> float:
        """How long it has measured."""
        return time.monotonic() - self._started

    def used(self) -> dict[str, Cpu]:
        """Return the processor seconds of each process since the beginning."""
        found = {}
        for name, pid in self._pids.items():
            now, before = _cpu(pid), self._before[name]
            found[name] = Cpu(now.own - before.own, now.children - before.children)
        return found

    def cores(self) -> dict[str, Cpu]:
        """Return how many cores each process has used on average."""
        seconds = self.seconds
        return {
            name: Cpu(cpu.own / seconds, cpu.children / seconds)
            for name, cpu in self.used().items()
        }


def memory_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _cpu(pid: int) -> Cpu:
    # The name, in parentheses, may hold spaces.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = int(fields[_UTIME]) + int(fields[_STIME])
    children = int(fields[_CUTIME]) + int(fields[_CSTIME])
    return Cpu(own * _TICK_SECONDS, children * _TICK_SECONDS)
