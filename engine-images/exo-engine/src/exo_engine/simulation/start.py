"""Plays the phases of a simulated start, and its failure.

Each phase is reported as the real ones are, prints its lines as they are, and lasts as long as the
file says. What must really be done is done during the first one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TypeVar

from exo_engine.core.start_up import StartUp
from exo_engine.errors import CoreFailed
from exo_engine.simulation.file import Phase, Simulation

_T = TypeVar("_T")


def play(simulation: Simulation, start_up: StartUp, load: Callable[[], _T]) -> _T:
    """Go through a simulated start.

    Args:
        simulation: its phases, and how it fails.
        start_up: told what the start is at; its clock is the one that counts.
        load: what must really be done; not called if the start is to fail.

    Returns:
        What `load` returned.

    Raises:
        CoreFailed: the start was told to fail.
    """
    failure, clock = simulation.fail, start_up.clock
    loaded: list[_T] = []
    for phase in simulation.phases or (Phase("loading the small model", 0.0),):
        start_up.begin(phase.name)
        begin = clock.now()
        _print(phase.log)
        if not loaded and failure is None:
            loaded.append(load())
        clock.wait_until(begin + phase.seconds)
        if failure is not None and failure.phase == phase.name:
            _print(failure.log)
            raise CoreFailed(failure.error, exit_code=failure.exit_code)
    return loaded[0]


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, file=sys.stderr, flush=True)
