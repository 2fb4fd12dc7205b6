"""How much memory and how many processors this machine, or this container, has.

Within the limits of the control group, of version 1 or 2, and of every group above it that can be
seen. `core/memory.py` and `core/loading.py` ask, where the device is the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")

_NO_LIMIT = 2**60
"""Version 1 writes a number near 2^63 where there is no limit."""


def free_host_bytes(root: Path = ROOT) -> int:
    """Return the memory that could be taken without swapping, within the limits of the control groups.

    Page cache that can be dropped counts as free.
    """
    figures = _read_table(root / "proc/meminfo", separator=":")
    free = figures.get("MemAvailable", figures.get("MemFree", 2**21)) * 1024
    return min([free, *(max(0, limit - used) for limit, used in _limits(root))])


def total_host_bytes(root: Path = ROOT) -> int:
    """Return all memory of the machine or, where that is less, of the container."""
    total = _read_table(root / "proc/meminfo", separator=":").get("MemTotal", 0) * 1024
    return min([total, *(limit for limit, _ in _limits(root))])


def usable_cores(root: Path = ROOT) -> int:
    """Return how many processors this process may keep busy: those it may run on, within the control groups' limits.

    A part of one does not count: a thread more than there is time for holds up all others. At least 1.
    """
    allowed = [len(os.sched_getaffinity(0)), *(int(each) for each in _core_limits(root))]
    return max(1, min(allowed))


def is_metered(root: Path = ROOT) -> bool:
    """Return whether a control group limits this process's processor time, so that what it waits awake is lost later."""
    return any(limit < len(os.sched_getaffinity(0)) for limit in _core_limits(root))


def _core_limits(root: Path) -> Iterator[float]:
    """Yield the processor time per second of every control group that bounds this process's."""
    for version, group in _groups(root, "cpu"):
        if version == 1:
            quota = _read_number(group / "cpu.cfs_quota_us")  # -1 where there is no limit
            period = _read_number(group / "cpu.cfs_period_us")
        else:
            words = _read_words(group / "cpu.max")  # `max` where there is no limit
            quota, period = (int(w) if w.isdecimal() else None for w in (*words, "", "")[:2])
        if quota and period:
            yield quota / period


def num_oom_kills(root: Path = ROOT) -> int | None:
    """Return how many processes of this control group the kernel has killed for want of memory.

    None where it does not say.
    """
    for version, group in _groups(root):
        name = "memory.oom_control" if version == 1 else "memory.events"
        count = _read_table(group / name).get("oom_kill")
        if count is not None:
            return count
    return None


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """Yield the limit and the use of every control group that bounds this process's memory."""
    for version, group in _groups(root):
        if version == 1:
            limits = [_read_number(group / "memory.limit_in_bytes")]
            used, droppable = _read_number(group / "memory.usage_in_bytes"), "total_inactive_file"
        else:
            limits = [_read_number(group / name) for name in ("memory.max", "memory.high")]
            used, droppable = _read_number(group / "memory.current"), "inactive_file"
        known = [limit for limit in limits if limit is not None and limit < _NO_LIMIT]
        if known:
            cache = _read_table(group / "memory.stat").get(droppable, 0)
            yield min(known), max(0, (used or 0) - cache)


def _groups(root: Path, controller: str = "memory") -> Iterator[tuple[int, Path]]:
    """Yield the version and the directory of each group with a controller that this process is in, and above."""
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


def _levels(version: int, mount: Path, path: str) -> Iterator[tuple[int, Path]]:
    """Yield a group and those above it; a container may see its own as the uppermost."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for count in range(len(parts), -1, -1):
        directory = mount.joinpath(*parts[:count])
        if directory.is_dir():
            yield version, directory


def _read_number(path: Path) -> int | None:
    """Return the number in a file; None where there is no file, or no limit (`max`)."""
    words = _read_words(path)
    return int(words[0]) if words and words[0].isdecimal() else None


def _read_words(path: Path) -> list[str]:
    """Return the words of a file; none where there is no file."""
    try:
        return path.read_text().split()
    except OSError:
        return []


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
