"""`python -m exo_inference.supervisor --state-dir DIR`: keeps a control plane running.

Started by `up` (detached) and `serve` (`--foreground`). It starts controller and gateway, starts
them again when they end, and adopts those that run already, so a supervisor that was killed and
started again doubles nothing. Only one runs per state directory. SIGTERM or SIGINT stops
everything in an order that loses no request: the controller (or it would start things again), the
engines once they have finished what they do, then the gateway. A second signal hurries. Small on
purpose: standard library, and the platform's code only when engines are to be stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exo_inference import __version__
from exo_inference.errors import ExoError, PlatformError
from exo_inference.local_settings import load_settings
from exo_inference.state_dir import StateDir, find_servers_in_proc
from exo_inference.supervisor.logs import LogCopier, rotate_if_large
from exo_inference.supervisor.server_process import (
    RestartPolicy,
    ServerCommand,
    SupervisedProcess,
)
from exo_inference.supervisor.watchdog import WatchPolicy

logger = logging.getLogger("exo_inference.supervisor")

_ROTATE_SECONDS = 5.0
_COPY_SECONDS = 0.2
_RECORD_SECONDS = 1.0
_SETTLE_SECONDS = 5.0  # more than an answer of a server that runs may take


@dataclass(frozen=True)
class SupervisorSettings:
    """How a supervisor behaves. Built once in `main`."""

    engine_grace_seconds: float = 60.0
    """How long engines may finish their requests when everything is stopped."""

    server_grace_seconds: float = 10.0
    """How long controller and gateway may take to end after SIGTERM."""

    foreground: bool = False
    """Copy all logs to stderr."""

    policy: RestartPolicy = field(default_factory=RestartPolicy)
    """When servers are started again."""

    watching: WatchPolicy = field(default_factory=WatchPolicy)
    """When servers that run count as hung."""


def server_commands(state: StateDir) -> tuple[ServerCommand, ...]:
    """Return the servers of a control plane, in the order in which they are started.

    Raises:
        UsageError: the settings cannot be read.
    """
    # -P: they run in the state directory, whose files must not be imported in place of modules.
    python = (sys.executable, "-P", "-m")
    where = ("--state-dir", str(state.root))
    settings = load_settings(state)
    controller = (settings.host, settings.port) if settings else None
    gateway = (settings.gateway_host, settings.gateway_port) if settings else None
    return (
        ServerCommand(
            "controller", (*python, "exo_inference.controller", *where), listen=controller
        ),
        ServerCommand("gateway", (*python, "exo_inference.gateway", *where), listen=gateway),
    )


def lock(state: StateDir) -> int:
    """Take the supervisor's lock for the life of this process; return its descriptor.

    The lock is on the state directory itself, so that no file is left of it, and deleting what is in
    the directory does not free it. A supervisor of a directory that was deleted and made anew has
    its lock on the old one: it is known by its command line.

    Raises:
        PlatformError: another supervisor runs.
    """
    descriptor = os.open(state.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        os.close(descriptor)
        record = state.read_record("supervisor")
        pid = record.pid if record is not None and record.alive else None
        raise _another_supervisor(state, pid) from exc
    for record in find_servers_in_proc(state.root):
        if record.name == "supervisor" and record.pid != os.getpid():
            os.close(descriptor)
            raise _another_supervisor(state, record.pid)
    return descriptor


def _another_supervisor(state: StateDir, pid: int | None) -> PlatformError:
    who = f" (pid {pid})" if pid is not None else ""
    return PlatformError(
        f"another supervisor{who} runs for {state.root}",
        hint="Run `exo dedicated-inference down` first, or choose another --state-dir.",
    )


class Supervisor:
    """Runs the servers of one state directory until told to stop."""

    def __init__(
        self,
        state: StateDir,
        commands: Sequence[ServerCommand],
        settings: SupervisorSettings,
    ) -> None:
        self._state = state
        self._settings = settings
        self._servers = [
            SupervisedProcess(state, c, settings.policy, settings.watching) for c in commands
        ]
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        names = ("supervisor", *(command.name for command in commands))
        self._logs = {name: state.logs_dir / f"{name}.log" for name in names}

    def request_stop(self, why: str = "asked to stop") -> None:
        """Stop everything; called again, do it at once."""
        if self._stop.is_set():
            logger.info("%s again: stopping at once", why)
            self._hurry.set()
        else:
            logger.info("%s: stopping controller, engines and gateway, in this order", why)
        self._stop.set()

    async def run(self) -> int:
        """Run until a stop is requested, or nothing can start. Returns the exit status."""
        _log_start(self._state)
        work = {server.name: server.run() for server in self._servers}
        work["log rotation"] = self._rotate_logs()
        work["records"] = self._keep_records()
        if self._settings.foreground:
            work["log copy"] = self._copy_logs()
        tasks = [asyncio.create_task(coroutine, name=name) for name, coroutine in work.items()]
        try:
            return await self._until_stopped(tasks)
        finally:
            await self._stop_everything()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._clean_up()
            logger.info("stopped (pid %d)", os.getpid())

    async def _until_stopped(self, tasks: list[asyncio.Task[None]]) -> int:
        """Return 0 after a request to stop, 78 when a server is refused its configuration.

        Raises:
            Exception: whatever ended one of our own tasks, which is a bug.
        """
        stop = asyncio.create_task(self._stop.wait(), name="stop")
        events: list[asyncio.Future[Any]] = [stop, *tasks]
        events += [server.misconfigured for server in self._servers]
        try:
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
        for task in tasks:
            if task.done():
                task.result()
        if self._stop.is_set():
            return 0
        if any(server.adopted for server in self._servers):
            # Something of an earlier start serves; what fails is tried again beside it.
            await self._stop.wait()
            return 0
        for server in self._servers:
            if server.misconfigured.done():
                logger.error("%s cannot start: %s", server.name, server.misconfigured.result())
        return os.EX_CONFIG

    async def _stop_everything(self) -> None:
        controller, *others = self._servers
        grace = self._settings.server_grace_seconds
        await controller.stop(grace_seconds=grace, hurry=self._hurry)
        try:
            await self._stop_engines()
        except Exception:  # whatever it is, the gateway must not stay behind
            logger.exception("engines may still run")
        for server in others:
            await server.stop(grace_seconds=grace, hurry=self._hurry)

    async def _stop_engines(self) -> None:
        if not any(self._state.replicas_dir.iterdir()):
            return
        from exo_inference.platforms.local.shutdown import stop_all

        grace = self._settings.engine_grace_seconds
        draining = asyncio.create_task(
            stop_all(self._state, timeout_seconds=grace), name="drain engines"
        )
        hurry = asyncio.create_task(self._hurry.wait(), name="hurry")
        await asyncio.wait([draining, hurry], return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not draining.done():
            draining.cancel()
            await asyncio.gather(draining, return_exceptions=True)
            left = await stop_all(self._state, timeout_seconds=0.0)
        else:
            left = draining.result()
        await asyncio.to_thread(_end_strays, self._state)
        if left:
            logger.error("engines that do not end: %s", ", ".join(left))
        else:
            logger.info("all engines have ended")

    def _clean_up(self) -> None:
        for socket in (self._state.gateway_socket, *self._state.replicas_dir.glob("*/*.sock")):
            socket.unlink(missing_ok=True)
        # Locks, and what a killed process left of a file that it was about to replace.
        for pattern in ("run/*.lock", "run/*.live", "run/.*", ".routes.json.*", ".usage.json.*"):
            for path in self._state.root.glob(pattern):
                path.unlink(missing_ok=True)
        self._state.remove_record("supervisor")

    async def _rotate_logs(self) -> None:
        while True:
            for path in self._logs.values():
                rotate_if_large(path)
            await asyncio.sleep(_ROTATE_SECONDS)

    async def _record_when_settled(self) -> None:
        """Record this supervisor once it holds what its servers listen on; `up` waits for that.

        Before, a server that is killed leaves nobody who keeps connections waiting.
        """
        settled = asyncio.gather(*(server.settled.wait() for server in self._servers))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(settled, _SETTLE_SECONDS)
        if not self._stop.is_set():
            try:
                self._state.write_record("supervisor", os.getpid())
            except OSError as exc:  # the lock still tells that it runs
                logger.error("cannot record the supervisor: %s", exc)

    async def _keep_records(self) -> None:
        """Make folders and records anew that are deleted while this runs."""
        root = _identity(self._state.root)
        await self._record_when_settled()
        while True:
            await asyncio.sleep(_RECORD_SECONDS)
            if self._stop.is_set() or root is None or _identity(self._state.root) != root:
                continue  # a state directory that was deleted as a whole is not made anew
            with contextlib.suppress(OSError):  # a full disk: the next round may find room
                self._state.create()
                if self._state.read_record("supervisor") is None:
                    self._state.write_record("supervisor", os.getpid())
                for server in self._servers:
                    server.keep_record()

    async def _copy_logs(self) -> None:
        copier = LogCopier({n: path for n, path in self._logs.items() if n != "supervisor"})
        try:
            while True:
                copier.copy()
                await asyncio.sleep(_COPY_SECONDS)
        finally:
            copier.copy()


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what tells a directory from another one made later in its place."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _end_strays(state: StateDir) -> None:
    """Kill what is left of replicas whose shim was killed."""
    from exo_inference.platforms.local.processes import end_strays
    from exo_inference.platforms.local.replica_dir import list_replicas

    for replica in list_replicas(state.replicas_dir):
        if not replica.is_running():
            end_strays(replica.path)


async def supervise(
    state: StateDir, commands: Sequence[ServerCommand], settings: SupervisorSettings
) -> int:
    """Run a supervisor that obeys signals. Returns the exit status."""
    supervisor = Supervisor(state, commands, settings)
    loop = asyncio.get_running_loop()
    stopping = [signal.SIGTERM, signal.SIGINT]
    others = [signal.SIGUSR1, signal.SIGUSR2]  # would end it without a word
    (stopping if settings.foreground else others).append(signal.SIGHUP)  # a terminal that closes
    for number in stopping:
        loop.add_signal_handler(number, supervisor.request_stop, f"{number.name} came")
    for number in others:
        loop.add_signal_handler(number, logger.info, "%s came and changes nothing", number.name)
    return await supervisor.run()


def _log_start(state: StateDir) -> None:
    """Say who starts where, and what became of the one before, which may have had no time to."""
    before = state.read_record("supervisor")
    if before is not None and before.pid != os.getpid():
        logger.warning(
            "the supervisor before (pid %d) ended without stopping: it was killed, or the machine was",
            before.pid,
        )
    logger.info("version %s started (pid %d) for %s", __version__, os.getpid(), state.root)


def _configure_logging(state: StateDir, *, foreground: bool) -> None:
    path = state.logs_dir / "supervisor.log"
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    descriptor = os.open(path, flags, 0o600)
    handlers: list[logging.Handler] = [logging.StreamHandler()]
    if foreground:
        handlers.append(logging.FileHandler(path))
    else:  # also for what Python itself says at its end
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
    os.close(descriptor)
    text = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, format=text, handlers=handlers)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and supervise.

    Returns:
        The exit status, of sysexits.h: EX_TEMPFAIL when another supervisor runs, EX_CONFIG when
        nothing can start as it is configured.
    """
    parser = argparse.ArgumentParser(prog="exo-supervisor", description=__doc__)
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--foreground", action="store_true", help="copy all logs to stderr")
    options = parser.parse_args(argv)
    state = StateDir(options.state_dir)
    try:
        state.create()
        descriptor = lock(state)
    except (PlatformError, OSError) as exc:
        text = exc.text if isinstance(exc, PlatformError) else str(exc)
        print(f"exo-supervisor: error: {text}", file=sys.stderr)
        return os.EX_TEMPFAIL
    os.chdir(state.root)
    _configure_logging(state, foreground=options.foreground)
    settings = SupervisorSettings(foreground=options.foreground)
    try:
        return asyncio.run(supervise(state, server_commands(state), settings))
    except ExoError as exc:
        logger.error("%s", exc.text)
        return os.EX_CONFIG
    finally:
        os.close(descriptor)
