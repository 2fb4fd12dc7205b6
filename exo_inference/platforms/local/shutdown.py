"""Stops every engine of a state directory, for `down` and for a supervisor that ends.

Needs no controller. The replicas' directories stay, so that the next controller starts the same
engines again, at once and without counting a crash.
"""

from __future__ import annotations

import asyncio
import signal
import time

from exo_inference.platforms.local.processes import signal_shim
from exo_inference.platforms.local.replica_dir import ReplicaDir, list_replicas
from exo_inference.state_dir import StateDir

_POLL_SECONDS = 0.05
_KILL_SECONDS = 5.0


async def stop_all(state_dir: StateDir, *, timeout_seconds: float) -> list[str]:
    """Ask all engines to finish their requests and end; kill those that take longer.

    The controller must have ended before, or it starts them again.

    Returns:
        Names of replicas that still run, which is none unless the kernel keeps one.
    """
    running = await _signal_until_gone(state_dir, signal.SIGTERM, timeout_seconds)
    if running:
        running = await _signal_until_gone(state_dir, signal.SIGQUIT, _KILL_SECONDS)
    return running


async def _signal_until_gone(
    state_dir: StateDir, number: signal.Signals, timeout_seconds: float
) -> list[str]:
    end = time.monotonic() + timeout_seconds
    signalled: set[str] = set()
    while True:
        running = await asyncio.to_thread(_list_running, state_dir)
        for replica in running:
            # A shim that has only just started has no process record yet, or that of the run
            # before, which no signal reaches: it is signalled once it has its own.
            process = replica.process()
            if process is not None and replica.name not in signalled:
                signalled |= {replica.name} if signal_shim(process, number) else set()
        if not running or time.monotonic() >= end:
            return [replica.name for replica in running]
        await asyncio.sleep(_POLL_SECONDS)


def _list_running(state_dir: StateDir) -> list[ReplicaDir]:
    """Return what runs, even where the record of it cannot be read."""
    return [replica for replica in list_replicas(state_dir.replicas_dir) if replica.is_running()]
