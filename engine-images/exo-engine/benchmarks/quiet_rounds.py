"""Rounds of a measurement that a busy machine does not spoil; used by the benchmarks beside it that have a bound."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

EXIT_BUSY = 3
LARGEST_SHARE = 0.08
"""Of one core that others may use during a round that counts, as in `make bench-cpu`."""
T = TypeVar("T")


class BusyMachine(Exception):
    """Others use the processors; nothing measured now would be worth anything."""


class QuietRounds:
    """Makes rounds anew that others disturbed.

    Attributes:
        num_rejected: rounds that did not count.
    """

    def __init__(self, max_load: float, attempts: int) -> None:
        """Prepare.

        Args:
            max_load: of the machine, before each round.
            attempts: how often a round is made until one counts.
        """
        self._max_load = max_load
        self._attempts = attempts
        self.num_rejected = 0

    def measure(self, one_round: Callable[[], T]) -> T:
        """Return what a round returned during which others used little.

        Raises:
            BusyMachine: the load is too high, or no attempt was quiet.
        """
        share = 0.0
        for _ in range(self._attempts):
            if (load := os.getloadavg()[0]) > self._max_load:
                raise BusyMachine(f"the load is {load:.1f}, above {self._max_load}")
            found, share = _with_share_of_others(one_round)
            if share <= LARGEST_SHARE:
                return found
            self.num_rejected += 1
        raise BusyMachine(
            f"others used {100 * share:.0f} % of a core in the last of {self._attempts}"
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what a benchmark's user may say about a busy machine."""
    parser.add_argument("--max-load", type=float, default=2.5, help="of the machine before a round")
    parser.add_argument("--attempts", type=int, default=5, help="to get a quiet round")


def _with_share_of_others(one_round: Callable[[], T]) -> tuple[T, float]:
    """Return what a round returned, and the share of one core that all other processes used meanwhile."""
    begun, before = time.perf_counter(), _seconds_of_others()
    found = one_round()
    seconds = _seconds_of_others() - before
    return found, max(0.0, seconds / (time.perf_counter() - begun))


def _seconds_of_others() -> float:
    """Processor time of the machine without this process.

    Waiting for disks is not counted, what a hypervisor took is.
    """
    words = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()
    user, nice, system, _, _, irq, softirq, steal = map(int, words[1:9])
    everything = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return everything - time.process_time()
