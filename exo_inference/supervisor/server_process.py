"""One server process of the control plane: found or started, watched, restarted, stopped.

Used by `supervisor.py` for the controller and the gateway. A process is known by its command line
and its start time, so one that an earlier supervisor started is adopted, even where that
supervisor was killed before it could record it; it hands over the socket that it listens on. One
that hangs is killed and started again (`watchdog.py`). Children and adopted processes are watched the
same way, through pidfds. Standard library only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from exo_inference.connection_limits import BACKLOG
from exo_inference.liveness import LivenessAnswer
from exo_inference.local_settings import LISTEN_FD_VARIABLE
from exo_inference.state_dir import ProcessFailure, StateDir
from exo_inference.supervisor.processes import Watched, ended, find_processes
from exo_inference.supervisor.watchdog import HangDetector, WatchPolicy, probe_server

logger = logging.getLogger(__name__)

_LAST_LINE_BYTES = 4096
_MAX_WAITING_FAILURES = 5  # failed starts after which connections are refused rather than kept


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a process that ended is started again."""

    first_seconds: float = 0.2
    """Wait before the first restart; doubles with every further one."""

    max_seconds: float = 10.0
    """Ceiling of that wait."""

    stable_seconds: float = 3.0
    """A process that was up for so long had started well: the count begins anew."""

    killed_seconds: float = 1.0
    """The same for one that was killed from outside, unless it has answered before: then it had started."""

    def delay_seconds(self, failures: int) -> float:
        """Return the wait after so many failures in a row, at least one."""
        return min(self.max_seconds, self.first_seconds * 2.0 ** min(failures - 1, 30))

    def had_started(self, up_seconds: float, exit_code: int | None, *, answered: bool) -> bool:
        """Whether a process that ended had been up well.

        Args:
            up_seconds: how long it ran.
            exit_code: None for an adopted one.
            answered: it had come so far that it answered probes. A kill from outside then says nothing about
                its start, however soon it comes.
        """
        if exit_code == os.EX_CONFIG:
            return False  # on a busy machine it takes long to see that it cannot work as configured
        killed = exit_code is None or exit_code == -signal.SIGKILL
        if killed:
            return answered or up_seconds >= self.killed_seconds
        return up_seconds >= self.stable_seconds


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """What to run. `argv[0]` is the program; the rest tells our processes from all others.

    Attributes:
        listen: address that the supervisor listens on for it, so that connections made while it is
            restarted wait instead of being refused. It finds the socket under `LISTEN_FD_VARIABLE`.
    """

    name: str
    argv: tuple[str, ...]
    listen: tuple[str, int] | None = None


class SupervisedProcess:
    """Keeps one server running until told to stop.

    Attributes:
        misconfigured: set when it ended with EX_CONFIG and has never been up for long; the message.
        adopted: what runs was found, not started.
        settled: set once what it listens on is held here: it was started, or handed its socket over. Set as
            well where it has none to hand over or does not answer in time.
    """

    def __init__(
        self,
        state: StateDir,
        command: ServerCommand,
        policy: RestartPolicy,
        watching: WatchPolicy | None = None,
    ) -> None:
        self.command = command
        self.misconfigured: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.adopted = False
        self.settled = asyncio.Event()
        self._state = state
        self._policy = policy
        self._watching = watching or WatchPolicy()
        self._current: Watched | None = None
        self._stopping = False
        self._was_stable = False
        self._live_before: tuple[int, int] | None = None
        """The live socket when what runs was started. Each server that comes up makes a new one."""
        self._log = state.logs_dir / f"{command.name}.log"
        self._listener: socket.socket | None = None

    async def run(self) -> None:
        """Adopt or start it, and start it again whenever it ends; returns after `stop`."""
        failures = 0
        process = self._adopt()
        while not self._stopping:
            log_offset = self._log_size()
            exit_code = None
            process = process or self._try_start()
            if process is None or not self.adopted:
                self.settled.set()
            if process is not None:
                self._current = process
                async with self._watched(process):
                    exit_code = await self._wait_and_note_stability(process)
                if self._stopping:
                    return
                up_seconds = time.monotonic() - process.started
                if self._policy.had_started(up_seconds, exit_code, answered=self._has_answered()):
                    failures = 0
                self._current = None
                process.close()
                process = None
            failures += 1
            self._note_failure(failures, exit_code, log_offset)
            if failures >= _MAX_WAITING_FAILURES:
                self._close_listener()
            await asyncio.sleep(self._policy.delay_seconds(failures))

    async def stop(self, *, grace_seconds: float, hurry: asyncio.Event) -> None:
        """Ask it to end; kill it after the grace, or once `hurry` is set. Idempotent.

        `run` starts nothing afterwards and returns soon.
        """
        self._stopping = True
        self._close_listener()
        process = self._current
        if process is not None:
            process.send(signal.SIGTERM)
            if not await ended(process, grace_seconds, hurry):
                logger.warning("%s (pid %d) does not end; killing it", self.name, process.pid)
                process.send(signal.SIGKILL)
                await process.wait()
            logger.info("%s (pid %d) has ended", self.name, process.pid)
            process.close()
        self._state.remove_record(self.name)
        self._state.remove_failure(self.name)

    def keep_record(self) -> None:
        """Record what runs again where somebody deleted the record."""
        process = self._current
        if (
            process is not None
            and not self._stopping
            and self._state.read_record(self.name) is None
        ):
            self._record(process.pid)

    @property
    def name(self) -> str:
        """`controller` or `gateway`."""
        return self.command.name

    def _adopt(self) -> Watched | None:
        """Return the one that runs already; end what runs besides it."""
        found = find_processes(self.command.argv)
        record = self._state.read_record(self.name)
        if record is not None and record.alive and record.pid in found:
            found.remove(record.pid)
            found.insert(0, record.pid)
        processes = []
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                processes.append(Watched(pid))
        for extra in processes[1:]:
            logger.warning("a second %s runs (pid %d); ending it", self.name, extra.pid)
            extra.send(signal.SIGTERM)
            extra.close()
        if not processes:
            return None
        self.adopted = True
        logger.info("%s runs already (pid %d)", self.name, processes[0].pid)
        self._record(processes[0].pid)
        return processes[0]

    def _try_start(self) -> Watched | None:
        """Start it; None where the machine refuses (a full disk or process table)."""
        try:
            return self._start()
        except OSError as exc:
            logger.error("cannot start %s: %s", self.name, exc)
            return None

    def _record(self, pid: int) -> None:
        """Record its pid. Without the record it is still found, by its command line."""
        try:
            self._state.write_record(self.name, pid)
        except OSError as exc:
            logger.error("cannot record %s (pid %d): %s", self.name, pid, exc)

    def _start(self) -> Watched:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        log = os.open(self._log, flags, 0o600)
        self._listener = self._listener or self._try_listen()
        self._live_before = self._find_live_socket()
        passed: tuple[int, ...] = ()
        environment = dict(os.environ)
        if self._listener is not None:
            passed = (self._listener.fileno(),)
            environment[LISTEN_FD_VARIABLE] = str(passed[0])
        try:
            child = subprocess.Popen(
                self.command.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._state.root,
                env=environment,
                pass_fds=passed,
                start_new_session=True,  # a Ctrl-C is for the supervisor, which knows the order
            )
        finally:
            os.close(log)
        # Not reaped yet, so the pid is its own even if it has ended meanwhile.
        process = Watched(child.pid, child)
        self._record(child.pid)
        self.adopted = False
        logger.info("%s started (pid %d)", self.name, child.pid)
        return process

    def _try_listen(self) -> socket.socket | None:
        """Listen for the server; None where that fails: it then tries itself, and says why."""
        if self.command.listen is None:
            return None
        host, _ = self.command.listen
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            return socket.create_server(self.command.listen, family=family, backlog=BACKLOG)
        except OSError as exc:
            logger.info("cannot listen for %s: %s", self.name, exc)
            return None

    @contextlib.asynccontextmanager
    async def _watched(self, process: Watched) -> AsyncIterator[None]:
        """Kill the process if it hangs before the block ends."""
        watch = asyncio.create_task(self._watch(process), name=f"watch {self.name}")
        try:
            yield
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def _watch(self, process: Watched) -> None:
        detector, policy = HangDetector(self._watching), self._watching
        path, before = self._state.live_socket(self.name), time.monotonic()
        while not self._stopping:
            look = _Look()
            looking = asyncio.to_thread(look.take, path, process.pid, policy)
            try:
                sign, stopped = await asyncio.shield(looking)
            except asyncio.CancelledError:
                look.abandon()
                raise
            if sign is not None and sign.listener is not None:
                self._take_over(sign.listener)
            self.settled.set()
            now = time.monotonic()
            answered = True if sign is not None else False if path.exists() else None
            why = detector.observe(answered=answered, stopped=stopped, elapsed_seconds=now - before)
            if why and not self._stopping:
                logger.error(
                    "%s (pid %d) hangs: %s; killing it (SIGKILL) to start it again",
                    self.name,
                    process.pid,
                    why,
                )
                process.send(signal.SIGKILL)
                return
            before = now
            await asyncio.sleep(policy.interval_seconds)

    def _take_over(self, listener: socket.socket) -> None:
        """Hold what an adopted server listens on, as if it had been inherited from us."""
        wanted = self.command.listen
        with contextlib.suppress(OSError):
            if (
                self._listener is None
                and not self._stopping
                and wanted is not None
                and listener.getsockname()[1] == wanted[1]
            ):
                self._listener = listener
                return
        listener.close()

    def _has_answered(self) -> bool:
        found = self._find_live_socket()
        return found is not None and found != self._live_before

    def _find_live_socket(self) -> tuple[int, int] | None:
        """Tell one socket file of a path from the next: a file system may use an inode's number again."""
        try:
            status = self._state.live_socket(self.name).stat()
        except OSError:
            return None
        return status.st_ino, status.st_ctime_ns

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _wait_and_note_stability(self, process: Watched) -> int | None:
        waiting, was_stable = asyncio.ensure_future(process.wait()), self._was_stable
        try:
            await asyncio.wait([waiting], timeout=self._policy.stable_seconds)
            if not waiting.done():
                self._was_stable = True
                self._state.remove_failure(self.name)
            exit_code = await waiting
            if exit_code == os.EX_CONFIG:
                self._was_stable = was_stable
            return exit_code
        finally:
            waiting.cancel()

    def _note_failure(self, failures: int, exit_code: int | None, log_offset: int) -> None:
        how = "" if exit_code is None else f" ({_describe(exit_code)})"
        message = self._last_line(log_offset)
        logger.warning(
            "%s has ended%s, failure %d in a row; restart in %.1f s%s",
            self.name,
            how,
            failures,
            self._policy.delay_seconds(failures),
            f"; its last line: {message}" if message else "",
        )
        self._state.remove_record(self.name)
        with contextlib.suppress(OSError):  # on a full disk, the log line has to do
            self._state.write_failure(ProcessFailure(self.name, failures, exit_code, message))
        if exit_code == os.EX_CONFIG and not self._was_stable and not self.misconfigured.done():
            self.misconfigured.set_result(message)

    def _log_size(self) -> int:
        try:
            return self._log.stat().st_size
        except OSError:
            return 0

    def _last_line(self, offset: int) -> str:
        """Return the last line logged since `offset`."""
        try:
            with self._log.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(min(offset, size), size - _LAST_LINE_BYTES))
                lines = file.read().decode(errors="replace").split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


class _Look:
    """One look at a server, in a thread; what an answer brings is closed where nobody waits for it any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_abandoned = False
        self._listener: socket.socket | None = None

    def take(self, path: Path, pid: int, policy: WatchPolicy) -> tuple[LivenessAnswer | None, bool]:
        """See `probe_server`."""
        sign, stopped = probe_server(path, pid, policy)
        with self._lock:
            self._listener = None if sign is None else sign.listener
            self._close_if_abandoned()
        return sign, stopped

    def abandon(self) -> None:
        """Close what was brought, or will be."""
        with self._lock:
            self._is_abandoned = True
            self._close_if_abandoned()

    def _close_if_abandoned(self) -> None:
        if self._is_abandoned and self._listener is not None:
            self._listener.close()


def _describe(exit_code: int) -> str:
    if exit_code >= 0:
        return f"status {exit_code}"
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"
