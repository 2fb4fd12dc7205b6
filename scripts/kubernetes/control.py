"""Breaks a running test cluster on purpose: kill, stop, start, pause and resume its daemons.

Tests that run beside a cluster open it by the directory in EXO_TEST_CLUSTER. State is in files, so
any process may do it: `pids/<name>` is written by the supervisor, `stopped/<name>` keeps a daemon
from being started again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from scripts.kubernetes.client import ApiClient, ApiError
from scripts.kubernetes.processes import Daemon

CLUSTER_VARIABLE = "EXO_TEST_CLUSTER"
"""Names the cluster's directory to what runs beside it."""

FORMER_VARIABLE = "EXO_TEST_FORMER"
"""Names the files of an earlier commit whose images the cluster has; the last part is their tag."""

_CHECK_SECONDS = 0.2


class Control:
    """The daemons of one cluster, by the names of their programs.

    Args:
        directory: the cluster's.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._pids = directory / "pids"
        self._stopped = directory / "stopped"

    def pid(self, name: str) -> int | None:
        """Return the process id of a daemon, or None while it does not run."""
        try:
            pid = int((self._pids / name).read_text())
            os.kill(pid, 0)
        except (OSError, ValueError):
            return None
        return pid

    def kill(self, name: str) -> None:
        """Send SIGKILL; it is started again at once."""
        if pid := self.pid(name):
            os.kill(pid, signal.SIGKILL)
            _wait_until(lambda: self.pid(name) != pid)

    def stop(self, name: str) -> None:
        """Send SIGKILL and leave it so until `start`."""
        (self._stopped / name).touch()
        self.kill(name)

    def start(self, name: str) -> None:
        """Undo `stop`; return when the process runs, which is before it is ready."""
        (self._stopped / name).unlink(missing_ok=True)
        _wait_until(lambda: self.pid(name) is not None)

    def pause(self, name: str) -> None:
        """Let it hang: it keeps its connections and answers nothing."""
        self._signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Undo `pause`."""
        self._signal(name, signal.SIGCONT)

    def mend(self) -> None:
        """Undo whatever a test has left broken."""
        for name in [path.name for path in self._pids.iterdir()]:
            self.start(name)
            self.resume(name)

    def wait_ready(self, client: ApiClient, timeout_seconds: float = 60) -> None:
        """Wait until the API answers, as after a restart."""

        def is_ready() -> bool:
            try:
                return bool(client.request("GET", "/readyz") == "ok")
            except (ApiError, OSError):
                return False

        _wait_until(is_ready, timeout_seconds)

    def supervise(self, daemons: Sequence[Daemon]) -> None:
        """Start daemons again that have died, from a thread, until this process ends."""
        self._pids.mkdir(exist_ok=True)
        self._stopped.mkdir(exist_ok=True)
        for daemon in daemons:
            self._record(daemon)
        threading.Thread(
            target=self._watch, args=(daemons,), name="supervisor", daemon=True
        ).start()

    def _watch(self, daemons: Sequence[Daemon]) -> None:
        while True:
            for daemon in daemons:
                if not daemon.is_running and not (self._stopped / daemon.name).exists():
                    daemon.start()
                    self._record(daemon)
            time.sleep(_CHECK_SECONDS)

    def _record(self, daemon: Daemon) -> None:
        temporary = self._pids / f".{daemon.name}"
        temporary.write_text(str(daemon.pid))
        temporary.rename(self._pids / daemon.name)

    def _signal(self, name: str, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if pid := self.pid(name):
                os.kill(pid, number)


def _wait_until(is_so: Callable[[], bool], timeout_seconds: float = 20) -> None:
    deadline = time.monotonic() + timeout_seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing happened for {timeout_seconds:.0f} s")
        time.sleep(0.02)
