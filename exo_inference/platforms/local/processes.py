"""Starts, signals and finds the processes of replicas.

Knows shims by pid *and* start time and signals through pidfds, so that a reused pid is never hit.
Called by the platform with a replica's lock in hand; decides nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from pathlib import Path

from exo_inference.platforms.local import shim
from exo_inference.platforms.local.replica_dir import Process
from exo_inference.state_dir import process_start_ticks

logger = logging.getLogger(__name__)

_STRAY_SECONDS = 5.0


def spawn_shim(directory: Path, lock_fd: int) -> int:
    """Start the shim of a replica and hand it the lock; return its pid.

    The child gets the descriptor by number, never by inheritance: two replicas started at once
    cannot hold each other's lock.
    """
    log_flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", shim.__file__, str(directory)],
        {shim.MARKER: str(directory), "LANG": "C.UTF-8"},
        file_actions=[
            (os.POSIX_SPAWN_DUP2, lock_fd, shim.LOCK_FD),
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(directory / "shim.log"), log_flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD],
    )


def signal_shim(process: Process, number: signal.Signals) -> bool:
    """Send a signal to a shim; False when it no longer runs."""
    try:
        descriptor = os.pidfd_open(process.shim_pid)
    except OSError:
        return False
    try:
        if process_start_ticks(process.shim_pid) != process.shim_start_ticks:
            return False
        signal.pidfd_send_signal(descriptor, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)


def end_strays(directory: Path) -> None:
    """Kill what is left of a replica whose shim is dead; returns when it is gone."""
    end = time.monotonic() + _STRAY_SECONDS
    while pids := shim.find_processes(directory):
        logger.warning("killing %d stray processes of %s", len(pids), directory.name)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > end:
            raise TimeoutError(f"processes {pids} of {directory.name} do not die")
        time.sleep(0.01)


class Children:
    """The shims that this process started and must reap; adopted ones are init's business."""

    def __init__(self) -> None:
        self._pids: set[int] = set()

    def add(self, pid: int) -> None:
        """Remember a child."""
        self._pids.add(pid)

    def reap(self) -> None:
        """Collect the children that have ended."""
        for pid in list(self._pids):
            try:
                ended, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                ended = pid
            if ended:
                self._pids.discard(pid)


def read_boot_id() -> str:
    """Return what tells this boot of the machine from every other."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
