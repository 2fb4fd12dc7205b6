"""Whether the machine was left alone while something was measured.

Others are all processes but this one, those that it has started, and those in their sessions. What they used
of the processors is read from /proc before and after; time that the hypervisor gave to another machine counts, too.
Neighbours whom it does not tell, on the same cores or the same memory, are seen by how fast a fixed work is done,
while what was started is stopped: some engines' threads spin between requests, too.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

LARGEST_SHARE = 0.08
"""Of one core that others may use during a measurement that counts."""
SLOWEST_PACE = 0.85
"""Of the machine's best pace in a run, that it must have before and after a measurement that counts."""
_PACE_BYTES = 32 << 20
_FIRST_LOOKS = 10
_STOP_SECONDS = 2.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Process:
    """One line of /proc: ticks are its own, and of children that have ended."""

    parent: int
    session: int
    ticks: int


@dataclass(frozen=True, slots=True)
class Measured(Generic[T]):
    """A result, the share of one core that others used meanwhile, and the machine's pace as a share of its best."""

    result: T
    others: float
    pace: float = 1.0
    slowest_pace: float = SLOWEST_PACE

    @property
    def is_quiet(self) -> bool:
        """Whether it counts."""
        return counts(self.others, self.pace, self.slowest_pace)


def counts(others: float, pace: float, slowest_pace: float = SLOWEST_PACE) -> bool:
    """Return whether a measurement counts beside which others used so much, at such a pace."""
    return others <= LARGEST_SHARE and pace >= slowest_pace


def shared_host(paces: Collection[float]) -> str:
    """Return what a page says of measurements that count at any pace of the machine."""
    return (
        f"**The host was shared**: beside what counts, all cores hashed at {min(paces):.0%} to {max(paces):.0%} "
        "of their best. Speeds are those of such a host; ratios are of engines that took turns on it."
    )


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
    return sum(
        each.ticks
        for pid, each in processes.items()
        if pid != own and not _is_begun_by(own, sessions, pid, processes)
    )


def _is_begun_by(
    own: int, sessions: Collection[int], pid: int, processes: dict[int, Process]
) -> bool:
    """Return whether a process descends from `own`, or it, or one that it descends from, is in one of these sessions."""
    seen = {own}
    while pid in processes and pid not in seen:
        if processes[pid].session in sessions or processes[pid].parent == own:
            return True
        seen.add(pid)
        pid = processes[pid].parent
    return False


def stolen_ticks(text: str) -> int:
    """Return the ticks that the hypervisor kept, from the text of /proc/stat."""
    words = text.splitlines()[0].split()
    return int(words[8]) if len(words) > 8 else 0


def read_pace() -> float:
    """Return the bytes per second that all cores together hash now, of 32 MiB each."""
    data, cores = bytes(_PACE_BYTES), len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(cores) as pool:
        begun = time.perf_counter()
        list(pool.map(hashlib.sha256, [data] * cores))  # which lets go of the interpreter's lock
    return cores * _PACE_BYTES / (time.perf_counter() - begun)


class Watch:
    """Measures, and knows which processes are the benchmark's own.

    Args:
        look: returns the machine's pace now, in any unit.
        slowest_pace: of its best, that a measurement needs before and after it to count.
    """

    def __init__(
        self, look: Callable[[], float] | None = None, *, slowest_pace: float = SLOWEST_PACE
    ) -> None:
        self._look, self._slowest_pace = look or read_pace, slowest_pace
        self._best = 0.0
        self.sessions: set[int] = set()
        """Of the processes that were started, each in a session of its own."""

    def measure(self, run: Callable[[], T]) -> Measured[T]:
        """Run once and return what it returned, with the share of others and the pace."""
        if not self._best:
            with self._stopped():
                self._best = max(self._look() for _ in range(_FIRST_LOOKS))
        with self._stopped():
            pace = self._look()
        begun, before = time.perf_counter(), self._ticks()
        result = run()
        seconds = (self._ticks() - before) / os.sysconf("SC_CLK_TCK")
        others = max(0.0, seconds / (time.perf_counter() - begun))
        with self._stopped():
            looks = pace, self._look()
        self._best = max(self._best, *looks)
        return Measured(result, others, min(looks) / self._best, self._slowest_pace)

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        """Stop what was started, and let it go on afterwards.

        Where this process is killed meanwhile, what was started stays stopped: `kill -CONT`, then end it.
        """
        processes = read_processes()
        begun = [
            pid for pid in processes if _is_begun_by(os.getpid(), self.sessions, pid, processes)
        ]
        try:
            _tell(begun, signal.SIGSTOP)
            _await_stop(begun)
            yield
        finally:
            _tell(begun, signal.SIGCONT)

    def measure_quietly(self, run: Callable[[], T], attempts: int) -> Measured[T]:
        """Run until others used little, at most so often; return the last."""
        for _ in range(attempts - 1):
            if (measured := self.measure(run)).is_quiet:
                return measured
        return self.measure(run)

    def _ticks(self) -> int:
        others = ticks_of_others(read_processes(), os.getpid(), self.sessions)
        return others + stolen_ticks(Path("/proc/stat").read_text(encoding="ascii"))


def _tell(processes: Collection[int], number: signal.Signals) -> None:
    for pid in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _await_stop(processes: Collection[int]) -> None:
    """Wait until no thread of these computes any more: each stops when it next has a processor.

    One that waits for a disk or a driver stops later, and computes nothing meanwhile.
    """
    until = time.monotonic() + _STOP_SECONDS
    while any(_states(pid) & {"R", "S"} for pid in processes) and time.monotonic() < until:
        time.sleep(0.001)


def _states(pid: int) -> set[str]:
    """Return the letters that /proc has for the states of a process's threads; none if it has gone."""
    found = set()
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):
            text = path.read_text(encoding="utf-8", errors="replace")
            found.add(text.rpartition(")")[2].split()[0])
    return found
