"""`python3 -m exo_adapter`: run the engine as the container's first process.

Starts the engine, answers probes, passes its end on, drains on SIGTERM and reaps orphans.
`python3 -m exo_adapter check` asks a running one whether it is healthy, for HEALTHCHECK.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping

from exo_adapter.engines import Engine, engine_of
from exo_adapter.probes import Answer, ProbeServer
from exo_adapter.settings import (
    Settings,
    SettingsError,
    probe_port,
    read_settings,
    termination_log,
)
from exo_adapter.watcher import Watcher

_EXIT_SETTINGS = 78
_EXIT_NOT_FOUND = 127
_IDLE_LOOKS = 2
"""Looks in a row without a request before a draining engine counts as idle."""
_LOOK_SECONDS = 0.25
_REAP_SECONDS = 10.0
_KILL_SECONDS = 20
"""How long an engine may take to end once it has nothing to do."""


class Adapter:
    """One engine from start to end.

    Args:
        settings: what the container got.
        engine: the engine's entry in the table.
    """

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self._settings = settings
        self._engine = engine
        self._watcher = Watcher(engine, settings.http_port)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_draining = False
        self.probes = ProbeServer(
            settings.probe_port,
            {"/health": self._health, "/live": self._live},
            {"/measurements": self._watcher.measurements, "/metrics": self._watcher.metrics},
        )

    def run(self) -> int:
        """Run until the engine has ended; return the container's exit status.

        Raises:
            SettingsError: a file or program that is needed is missing.
        """
        command = self._engine.command(self._settings)
        self._catch_signals()
        self.probes.start()
        if before := self._engine.before(self._settings):
            subprocess.run(before, check=True)
        print(f"exo-adapter: starting {command[0]}", file=sys.stderr, flush=True)
        self._process = subprocess.Popen(command)
        if self._serves:
            self._watcher.start()
        status = self._wait(self._process.pid)
        return 0 if self._is_draining else status

    def _catch_signals(self) -> None:
        self._wakeup, write_end = os.pipe()
        for end in (self._wakeup, write_end):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(write_end)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # only to wake up
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    @property
    def _serves(self) -> bool:
        return self._settings.node_rank == 0

    def _wait(self, pid: int) -> int:
        """Reap whatever ends, as the first process must, until the engine has."""
        while True:
            # Woken by any signal, whichever thread the kernel gives it to; handlers run here.
            select.select([self._wakeup], [], [], _REAP_SECONDS)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wakeup, 4096)
            for ended, status in _reap():
                if ended == pid:
                    code = os.waitstatus_to_exitcode(status)
                    return 128 - code if code < 0 else code

    def _on_signal(self, number: int, frame: object) -> None:
        """Drain on the first SIGTERM or SIGINT, end at once on the second."""
        if self._is_draining or self._process is None:
            self._signal_engine(signal.SIGKILL)
            if self._process is None:
                os._exit(0)
            return
        self._is_draining = True
        threading.Thread(target=self._drain, name="drain", daemon=True).start()

    def _drain(self) -> None:
        """Let requests in flight end, then the engine."""
        deadline = time.monotonic() + self._settings.drain_seconds
        print("exo-adapter: draining", file=sys.stderr, flush=True)
        if self._engine.drains_itself:
            self._signal_engine(signal.SIGTERM)
            time.sleep(self._settings.drain_seconds + _KILL_SECONDS)
        else:
            self._wait_idle(deadline)
            self._signal_engine(signal.SIGTERM)
            time.sleep(_KILL_SECONDS)
        self._signal_engine(signal.SIGKILL)  # not reached if it ended: the process is gone then

    def _wait_idle(self, deadline: float) -> None:
        num_idle = 0
        while self._serves and num_idle < _IDLE_LOOKS and time.monotonic() < deadline:
            num_busy = self._watcher.look().num_busy
            # Without metrics nobody knows what is in flight, so all the time there is passes.
            num_idle = num_idle + 1 if num_busy == 0 or not self._watcher.state.has_started else 0
            time.sleep(_LOOK_SECONDS)

    def _signal_engine(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def _health(self) -> Answer:
        if self._is_draining:
            return 503, "draining"
        if not self._serves:
            return 200, f"working for node 0 as node {self._settings.node_rank}"
        if not self._watcher.state.look.is_healthy:
            return 503, "the engine's health check does not say that it is well, or not yet"
        return 200, "ready"

    def _live(self) -> Answer:
        if not self._serves or self._is_draining:
            return 200, "alive"
        seconds = self._watcher.seconds_without_progress()
        if seconds > (self._settings.stall_seconds or self._engine.stall_seconds):
            return 503, f"no progress for {seconds:.0f} s"
        return 200, "alive"


def main(arguments: list[str], environment: Mapping[str, str]) -> int:
    """Run the engine, or ask a running adapter."""
    try:
        if arguments == ["check"]:
            return _check(probe_port(environment))
        settings = read_settings(environment)
        return Adapter(settings, engine_of(settings)).run()
    except SettingsError as exc:
        return _fail(environment, str(exc), _EXIT_SETTINGS)
    except FileNotFoundError as exc:
        message = f"the program {exc.filename} is not in this image"
        return _fail(environment, message, _EXIT_NOT_FOUND)
    except (OSError, subprocess.SubprocessError) as exc:
        return _fail(environment, str(exc), 1)


def _reap() -> Iterator[tuple[int, int]]:
    """Collect every child that has ended, its own or an orphan of the engine's."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def _check(port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
            return 0
    except OSError as exc:
        print(exc, file=sys.stderr)
        return 1


def _fail(environment: Mapping[str, str], message: str, status: int) -> int:
    line = f"exo-adapter: error: {message}"
    print(line, file=sys.stderr, flush=True)
    with contextlib.suppress(OSError):  # outside of a cluster there is no such file
        termination_log(environment).write_text(line + "\n", "utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
