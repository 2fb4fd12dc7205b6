"""How much memory this machine, or this container, has and has left, how short it is, and how many cores. Reads only.

Within the limits of the control group, of version 1 or 2, and of every group above it that can be
seen. The local platform asks; exo-engine has its own reading in `core/host_memory.py`. What a count
of out-of-memory kills says about one engine is read by its shim.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")

_NO_LIMIT = 2**60
"""Version 1 writes a number near 2^63 where there is no limit."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The machine's memory, or the container's where that is less.

    Attributes:
        total_bytes: all of it.
        free_bytes: what can be taken without swapping; page cache that can be dropped counts as free.
    """

    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Pressure:
    """How short of memory the machine is: shares of the last ten seconds, in percent.

    Attributes:
        some: at least one task waited for memory.
        full: all tasks did, and nothing was done.
    """

    some: float
    full: float


def read_host_memory(root: Path = ROOT) -> HostMemory:
    """Return the memory of the machine under `root`, within the limits of its control groups."""
    figures = _read_table(root / "proc/meminfo", separator=":")
    total = figures.get("MemTotal", 0) * 1024
    free = figures.get("MemAvailable", figures.get("MemFree", 0)) * 1024
    for group in _groups(root):
        limit, used = _limit_and_use(group)
        if limit is not None:
            total = min(total, limit)
            free = min(free, max(0, limit - used))
    return HostMemory(total, free)


def usable_cores(root: Path = ROOT) -> int:
    """Return how many cores this process may keep busy, within the control groups' limits; at least 1.

    A part of one does not count: a thread more than there is time for holds up all others.
    """
    allowed = [len(os.sched_getaffinity(0)), *(int(each) for each in _core_limits(root))]
    return max(1, min(allowed))


def _core_limits(root: Path) -> Iterator[float]:
    """Yield the processor time per second of every control group that bounds this process's."""
    for group in _groups(root, "cpu"):
        if group.version == 1:
            quota = _read_number(group.path / "cpu.cfs_quota_us")  # -1 where there is no limit
            period = _read_number(group.path / "cpu.cfs_period_us")
        else:
            words = (*_read_text(group.path / "cpu.max").split(), "", "")[:2]  # `max`: no limit
            quota, period = (int(word) if word.isdecimal() else None for word in words)
        if quota and period:
            yield quota / period


def read_pressure(root: Path = ROOT) -> Pressure | None:
    """Return the greatest pressure of the machine and its control groups; None where nobody counts it."""
    files = [root / "proc/pressure/memory"]
    files += [group.path / "memory.pressure" for group in _groups(root) if group.version == 2]
    found = [pressure for file in files if (pressure := _read_pressure(file)) is not None]
    return max(found, key=lambda pressure: (pressure.full, pressure.some), default=None)


@dataclass(frozen=True, slots=True)
class _Group:
    version: int
    path: Path


def _groups(root: Path, controller: str = "memory") -> Iterator[_Group]:
    """Yield the control groups with a controller that this process is in, the innermost first."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    mounts = root / "sys/fs/cgroup"
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            yield from _levels(1, mounts / controller, path)
        elif number == "0" and not controllers:
            unified = mounts / "unified"
            yield from _levels(2, unified if unified.is_dir() else mounts, path)


def _levels(version: int, mount: Path, path: str) -> Iterator[_Group]:
    """Yield a group and those above it; a container may see its own as the uppermost."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for count in range(len(parts), -1, -1):
        directory = mount.joinpath(*parts[:count])
        if directory.is_dir():
            yield _Group(version, directory)


def _limit_and_use(group: _Group) -> tuple[int | None, int]:
    if group.version == 1:
        limits = [_read_number(group.path / "memory.limit_in_bytes")]
        used = _read_number(group.path / "memory.usage_in_bytes")
        droppable = "total_inactive_file"
    else:
        limits = [_read_number(group.path / name) for name in ("memory.max", "memory.high")]
        used = _read_number(group.path / "memory.current")
        droppable = "inactive_file"
    known = [limit for limit in limits if limit is not None and limit < _NO_LIMIT]
    if not known:
        return None, 0
    cache = _read_table(group.path / "memory.stat").get(droppable, 0)
    return min(known), max(0, (used or 0) - cache)


def _read_number(path: Path) -> int | None:
    """Return the number in a file; None where there is no file, or no limit (`max`)."""
    text = _read_text(path).strip()
    return int(text) if text.isdecimal() else None


def _read_text(path: Path) -> str:
    """Return a file's text; empty where there is none."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _read_table(path: Path, separator: str = " ") -> dict[str, int]:
    """Return the lines `name number` of a file; an empty table where there is none."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    table = {}
    for line in lines:
        name, _, rest = line.partition(separator)
        number = rest.split()[:1]
        if number and number[0].isdecimal():
            table[name] = int(number[0])
    return table


def _read_pressure(path: Path) -> Pressure | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:  # a kernel without it, or one that has it switched off
        return None
    shares = {}
    for line in lines:
        name, *fields = line.split()
        values = dict(field.partition("=")[::2] for field in fields)
        try:
            shares[name] = float(values["avg10"])
        except (KeyError, ValueError):
            return None
    return Pressure(shares.get("some", 0.0), shares.get("full", 0.0)) if shares else None


def sum_private_bytes(sessions: set[int], root: Path = ROOT) -> dict[int, int]:
    """Return the memory that the processes of each session hold for themselves, by session.

    Pages of files are left out: they are shared, and can be dropped.
    """
    held = dict.fromkeys(sessions, 0)
    page = os.sysconf("SC_PAGE_SIZE")
    for entry in (root / "proc").iterdir() if sessions else ():
        if not entry.name.isdigit():
            continue
        try:
            # Field 6 of stat is the session; the second field may contain anything, brackets too.
            session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
            if session in held:
                _, resident, of_files, *_ = (entry / "statm").read_text().split()
                held[session] += max(0, int(resident) - int(of_files)) * page
        except (OSError, ValueError, IndexError):
            continue  # it has just ended
    return held
