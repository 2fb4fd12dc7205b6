"""Refuses to measure on a busy machine; used by the benchmarks beside it that compare with a bound."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

EXIT_BUSY = 3
_OTHERS_SHARE = 0.1
T = TypeVar("T")


class BusyMachine(Exception):
    """Others use the processors; nothing measured now would be worth anything."""


def quietly(measure: Callable[[], T], max_load: float) -> T:
    """Run one round of a measurement.

    Args:
        measure: the round.
        max_load: load of the machine before it.

    Raises:
        BusyMachine: the load is higher, or others took more than a tenth of the processors' time.
    """
    if (load := os.getloadavg()[0]) > max_load:
        raise BusyMachine(f"the load is {load:.1f}, above {max_load}")
    begun, all_before, own_before = time.perf_counter(), _machine_seconds(), time.process_time()
    found = measure()
    own = time.process_time() - own_before
    others = _machine_seconds() - all_before - own
    share = others / ((time.perf_counter() - begun) * (os.cpu_count() or 1))
    if share > _OTHERS_SHARE:
        raise BusyMachine(f"others took {100 * share:.0f} % of the processors' time")
    return found


def _machine_seconds() -> float:
    """Processor time of everything on the machine so far, waiting for disks not counted."""
    words = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()
    user, nice, system, _, _, irq, softirq, steal = map(int, words[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
