"""Daemons of a test: started with a log file, waited for, and ended with whoever started them.

Every daemon gets SIGKILL from the kernel when its parent dies, so that nothing outlives a test run
that was killed. Used by `api_server` and `cluster`.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_LOG_LINES = 12


class DaemonFailed(Exception):
    """A daemon ended, or did not become ready in time; has the end of its log."""


class Daemon:
    """One process.

    Args:
        name: for messages and for the log's name.
        command: argument vector.
        log_dir: directory of its log; every start appends.
        environment: of the process; None is that of this one.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        log_dir: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = log_dir / f"{name}.log"
        self._command = [str(word) for word in command]
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id; the daemon has been started."""
        assert self._process is not None, f"{self.name} is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it; a daemon that runs is left alone."""
        if self.is_running:
            return
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for the tests, which then end it in order
            )

    def wait_until(self, is_ready: Callable[[], bool], timeout_seconds: float = 60) -> None:
        """Wait until it is ready.

        Args:
            is_ready: asks; an `OSError` means not yet.
            timeout_seconds: then it counts as failed.

        Raises:
            DaemonFailed
        """
        assert self._process is not None, f"{self.name} was not started"
        deadline = time.monotonic() + timeout_seconds
        last: OSError | None = None
        while True:
            try:
                if is_ready():
                    return
            except OSError as exc:
                last = exc
            if (status := self._process.poll()) is not None:
                raise DaemonFailed(f"{self.name} ended with status {status}:\n{self._log_tail()}")
            if time.monotonic() > deadline:
                raise DaemonFailed(
                    f"{self.name} is not ready after {timeout_seconds:.0f} s ({last}):\n"
                    f"{self._log_tail()}"
                )
            time.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, for instance SIGSTOP to pause it and SIGCONT to go on."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def pause(self, timeout_seconds: float = 30) -> None:
        """Send SIGSTOP and wait until every thread has stopped; one that waits for a disk comes to it late.

        Raises:
            DaemonFailed
        """
        self.signal(signal.SIGSTOP)
        assert self._process is not None, f"{self.name} was not started"
        deadline = time.monotonic() + timeout_seconds
        while not _has_stopped(self._process.pid):
            if time.monotonic() > deadline:
                raise DaemonFailed(f"{self.name} does not stop within {timeout_seconds:.0f} s")
            time.sleep(0.005)

    def stop(self, timeout_seconds: float = 10) -> None:
        """End it with SIGTERM, and with SIGKILL where that takes too long."""
        if self._process is None:
            return
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return "\n".join(f"  {line[:400]}" for line in lines)


def _has_stopped(pid: int) -> bool:
    """Whether no thread of a process runs; state `T` of proc_pid_stat(5), or it has ended."""
    states = set()
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            states.add(stat.read_text().rpartition(")")[2].split()[0])
    return states <= {"T", "t", "Z", "X"}
