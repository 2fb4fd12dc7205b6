"""Processes that the supervisor watches, by pidfd, and how those of a command line are found.

Used by `server_process.py`. Standard library only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from exo_inference.state_dir import is_same_path, process_start_ticks


class Watched:
    """One running process, by pidfd: the number cannot come to mean another process."""

    def __init__(self, pid: int, child: subprocess.Popen[bytes] | None = None) -> None:
        """Watch a process.

        Args:
            pid: the process.
            child: the same process where we started it, so that it is reaped.

        Raises:
            ProcessLookupError: it has ended already.
        """
        self.pid = pid
        self.adopted = child is None
        self._child = child
        self._descriptor = os.pidfd_open(pid)
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._descriptor, self._note_end)
        self.started = time.monotonic()

    async def wait(self) -> int | None:
        """Wait until it has ended; return its exit code where that can be known."""
        await self._ended.wait()
        return self._child.wait() if self._child is not None else None

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self._descriptor >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, number)

    def close(self) -> None:
        """Stop watching. Idempotent."""
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _note_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        self._ended.set()


def find_processes(argv: tuple[str, ...]) -> list[int]:
    """Return the pids of this user's processes with this command line, oldest first.

    The program itself may differ (another path of the same interpreter), and the spelling of paths.
    """
    wanted = [os.fsencode(word) for word in argv[1:]]
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")[1:-1]
            may_be = len(words) == len(wanted) and entry.stat().st_uid == os.geteuid()
            mine = may_be and all(map(is_same_path, words, wanted))
        except OSError:
            continue  # it has just ended, or belongs to another user
        ticks = process_start_ticks(int(entry.name)) if mine else None
        if ticks is not None:
            found.append((ticks, int(entry.name)))
    return [pid for _, pid in sorted(found)]


async def ended(process: Watched, grace_seconds: float, hurry: asyncio.Event) -> bool:
    """Wait for the end of a process, at most the grace, and not when there is a hurry."""
    waits = [asyncio.ensure_future(process.wait()), asyncio.ensure_future(hurry.wait())]
    try:
        await asyncio.wait(waits, timeout=grace_seconds, return_when=asyncio.FIRST_COMPLETED)
        return waits[0].done()
    finally:
        for wait in waits:
            wait.cancel()
