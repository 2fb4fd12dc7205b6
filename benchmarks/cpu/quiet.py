"""Whether the machine was left alone while something was measured.

Others are all processes but this one, those that it has started, and those in their sessions. What they used
of the processors is read from /proc before and after; time that the hypervisor gave to another machine counts, too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

LARGEST_SHARE = 0.08
"""Of one core that others may use during a measurement that counts."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Process:
    """One line of /proc: ticks are its own, and of children that have ended."""

    parent: int
    session: int
    ticks: int


@dataclass(frozen=True, slots=True)
class Measured(Generic[T]):
    """A result, and the share of one core that others used meanwhile."""

    result: T
    others: float

    @property
    def is_quiet(self) -> bool:
        """Whether it counts."""
        return self.others <= LARGEST_SHARE


def read_processes(root: Path = Path("/proc")) -> dict[int, Process]:
    """Return all processes of the machine; one that ends meanwhile is left out."""
    found = {}
    for entry in root.iterdir():
        if entry.name.isdecimal():
            try:
                text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            # The name is in brackets and may hold anything.
            words = text.rpartition(")")[2].split()
            found[int(entry.name)] = Process(
                int(words[1]), int(words[3]), sum(map(int, words[11:15]))
            )
    return found


def ticks_of_others(processes: dict[int, Process], own: int, sessions: Collection[int] = ()) -> int:
    """Return the ticks of all but `own`, what descends from it, and what is in one of these sessions.

    A process that ended is in the ticks of its parent, so that the difference of two moments has its time.
    """

    def is_ours(pid: int) -> bool:
        seen = set()
        while pid in processes and pid not in seen:
            if pid == own or processes[pid].session in sessions:
                return True
            seen.add(pid)
            pid = processes[pid].parent
        return False

    return sum(each.ticks for pid, each in processes.items() if not is_ours(pid))


def stolen_ticks(text: str) -> int:
    """Return the ticks that the hypervisor kept, from the text of /proc/stat."""
    words = text.splitlines()[0].split()
    return int(words[8]) if len(words) > 8 else 0


class Watch:
    """Measures, and knows which processes are the benchmark's own."""

    def __init__(self) -> None:
        self.sessions: set[int] = set()
        """Of the processes that were started, each in a session of its own."""

    def measure(self, run: Callable[[], T]) -> Measured[T]:
        """Run once and return what it returned, with the share of others."""
        begun, before = time.perf_counter(), self._ticks()
        result = run()
        seconds = (self._ticks() - before) / os.sysconf("SC_CLK_TCK")
        return Measured(result, max(0.0, seconds / (time.perf_counter() - begun)))

    def measure_quietly(self, run: Callable[[], T], attempts: int) -> Measured[T]:
        """Run until others used little, at most so often; return the last."""
        for _ in range(attempts - 1):
            if (measured := self.measure(run)).is_quiet:
                return measured
        return self.measure(run)

    def _ticks(self) -> int:
        others = ticks_of_others(read_processes(), os.getpid(), self.sessions)
        return others + stolen_ticks(Path("/proc/stat").read_text(encoding="ascii"))
