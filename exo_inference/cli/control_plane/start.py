"""Starts what does not run of the control plane of this machine, and waits until it answers. Called by `up`.

The supervisor is started; it starts the servers, or adopts those that run. Why it ended is in its log.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from exo_inference.cli.control_plane.launch import (
    LaunchOptions,
    configure,
    open_private_log,
    server_environment,
    supervisor_command,
)
from exo_inference.cli.control_plane.overview import Overview, look_at
from exo_inference.cli.control_plane.processes import STOPPED, find_servers
from exo_inference.cli.rendering.progress import Step, step
from exo_inference.cli.session import Session
from exo_inference.errors import ExoError, NotReady

if TYPE_CHECKING:
    import subprocess

    from exo_inference.state_dir import StateDir

POLL_SECONDS = 0.05
LOG_TAIL_LINES = 20
# What a server said last, as the supervisor logs it when there is no use in trying again.
_REASON = re.compile(r"cannot start: (?:\w+: error: )?(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class _Started:
    """The supervisor that this command started, and where its part of the log begins."""

    supervisor: subprocess.Popen[bytes]
    log_offset: int


def start_servers(
    session: Session, state: StateDir, options: LaunchOptions, limit_seconds: float
) -> Overview:
    """Start what does not run; what does is adopted."""
    supervisor = next((p for p in find_servers(state) if p.name == "supervisor" and p.alive), None)
    if supervisor is not None and supervisor.state == STOPPED:
        raise ExoError(
            f"the supervisor (pid {supervisor.pid}) was {STOPPED}, so it starts nothing",
            hint=f"Run `kill -CONT {supervisor.pid}`, or `exo dedicated-inference down` and then `up`.",
        )
    started = None
    if supervisor is None:
        configure(state, options)
        started = _spawn(state)
    with step("Starting the control plane", quiet=session.quiet) as running:
        return _wait_until_up(state, started, limit_seconds, running)


def _spawn(state: StateDir) -> _Started:
    """Start the supervisor in a session of its own, so that it outlives this terminal."""
    import subprocess

    with open_private_log(state.logs_dir / "supervisor.log") as log:
        log_offset = log.tell()
        supervisor = subprocess.Popen(
            supervisor_command(state),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=state.root,
            env=server_environment(),
            start_new_session=True,
        )
    return _Started(supervisor, log_offset)


def _wait_until_up(
    state: StateDir,
    started: _Started | None,
    limit_seconds: float,
    running: Step,
) -> Overview:
    """Wait until controller and gateway answer.

    Raises:
        ExoError: the supervisor ended.
        NotReady: they do not answer in time.
    """
    deadline = time.monotonic() + limit_seconds
    while True:
        overview = look_at(state)
        if overview.answers and _has_taken_over(state, started):
            return overview
        if started is not None and started.supervisor.poll() is not None:
            raise _ended(state, started)
        if started is None and not any(
            server.name == "supervisor" and server.alive for server in overview.servers
        ):
            raise NotReady(
                "the supervisor ended while this waited for it",
                state=overview.state,
                hint="Run `exo dedicated-inference up` again, unless it was stopped on purpose.",
            )
        waiting = ", ".join(
            f"{server.name} ({server.details})" if server.details else server.name
            for server in overview.servers
            if server.state != "running"
        )
        waiting = waiting or "the supervisor, which has not taken over what runs"
        running.detail(f"waiting for {waiting}")
        if time.monotonic() >= deadline:
            raise NotReady(
                f"the control plane does not answer after {limit_seconds:g} s: {waiting}",
                state=overview.state,
                hint=f"{_why_it_hangs(state)}; `exo dedicated-inference down` stops it.",
            )
        time.sleep(POLL_SECONDS)


def _why_it_hangs(state: StateDir) -> str:
    """Return where to look: at the disk, if nothing can be written there, else at the logs."""
    disk = os.statvfs(state.root)
    if not disk.f_bavail or (disk.f_files and not disk.f_favail):
        return f"The disk of {state.root} is full: free some space"
    return f"Look at the logs in {state.logs_dir}"


def _ended(state: StateDir, started: _Started) -> ExoError:
    """Return why the supervisor has ended, by its log."""
    status = started.supervisor.returncode
    tail = _log_tail(state, started.log_offset)
    reason = _REASON.search(tail)
    return ExoError(
        f"the control plane cannot start: {reason[1]}"
        if reason
        else f"the control plane ended while it started (status {status}):\n{tail}",
        hint=f"All of it is in {state.logs_dir}.",
    )


def _has_taken_over(state: StateDir, started: _Started | None) -> bool:
    """Whether the supervisor that was started watches what runs, which may have run before it."""
    if started is None:
        return True
    record = state.read_record("supervisor")
    return record is not None and record.pid == started.supervisor.pid


def _log_tail(state: StateDir, offset: int) -> str:
    """Return the last lines that the supervisor logged in this start."""
    try:
        with (state.logs_dir / "supervisor.log").open("rb") as log:
            log.seek(offset)
            lines = log.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(f"  {line}" for line in lines[-LOG_TAIL_LINES:])
