"""`up`: start the control plane of this machine in the background."""

from __future__ import annotations

import re
import shlex
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from exo_inference.cli.control_plane.launch import (
    LaunchOptions,
    check_installation,
    configure,
    launch_options,
    only_one_start,
    open_private_log,
    paused_option,
    refuse_changes,
    server_environment,
    set_paused,
    state_dir_of,
    supervisor_command,
)
from exo_inference.cli.control_plane.overview import FIELD_NAMES, Overview, look_at
from exo_inference.cli.control_plane.processes import STOPPED, find_servers
from exo_inference.cli.control_plane.recovery import mend_settings, restore_files
from exo_inference.cli.durations import Limit
from exo_inference.cli.rendering.progress import Step, step
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.errors import ExoError, NotReady

if TYPE_CHECKING:
    import subprocess

    from exo_inference.state_dir import StateDir

START_SECONDS = 60.0
POLL_SECONDS = 0.05
LOG_TAIL_LINES = 20
# What a server said last, as the supervisor logs it when there is no use in trying again.
_REASON = re.compile(r"cannot start: (?:\w+: error: )?(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class _Started:
    """The supervisor that this command started, and where its part of the log begins."""

    supervisor: subprocess.Popen[bytes]
    log_offset: int


@command(
    "up",
    examples=[
        Example("Start a control plane, or see that it runs", "exo dedicated-inference up"),
        Example(
            "Keep another one apart in a directory of its own",
            "exo dedicated-inference up --state-dir ./inference",
        ),
        Example(
            "Start it without its replicas, to delete what was too much for the machine",
            "exo dedicated-inference up --paused",
        ),
        Example(
            "Choose the ports",
            "exo dedicated-inference up --port 8080 --gateway-port 8081",
        ),
        Example(
            "Try deployments on GPUs that this machine lacks, 20 times faster",
            "exo dedicated-inference up --simulate-gpus gpua5000=4,h100=8 --simulate-speedup 20",
        ),
    ],
)
@launch_options
@click.option(
    "--timeout",
    "start_timeout",
    metavar="<duration>",
    type=Limit(),
    default=START_SECONDS,
    help="How long to wait until it answers (default 60s).",
)
@paused_option
@pass_session
def up(
    session: Session,
    options: LaunchOptions,
    start_timeout: float,
    paused: bool,
) -> None:
    """Start a control plane on this machine, in the background.

    It keeps everything it owns in one directory, so several can run side by side. What was deployed
    when it was stopped is started again, a few replicas at a time; with `--paused` nothing is, until
    this is run without it. Running it again changes nothing else.
    """
    output = session.output(FIELD_NAMES, configured=False)
    state = state_dir_of(session)
    check_installation()
    with only_one_start(state):
        set_paused(state, paused=paused)
        mend_settings(state)
        overview = look_at(state)
        headline = "The control plane is already running."
        if overview.settings is not None and overview.has_servers:
            refuse_changes(options, overview.settings)
        if restore_files(state, overview.settings, overview.servers):
            overview = look_at(state)
        if not overview.answers:
            headline = "The control plane is running."
            overview = _start(session, state, options, start_timeout)
    if output.format == "table" and output.template is None:
        session.success(headline)
    output.show(overview.record(), rows=overview.rows())
    if paused:
        session.remark("paused: no replica is started until `up` is run without --paused")
    overview.warn()
    if output.format == "table" and output.template is None and _is_unused(state):
        _suggest(session)


def _start(
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
            status = started.supervisor.returncode
            tail = _log_tail(state, started.log_offset)
            reason = _REASON.search(tail)
            raise ExoError(
                f"the control plane cannot start: {reason[1]}"
                if reason
                else f"the control plane ended while it started (status {status}):\n{tail}",
                hint=f"All of it is in {state.logs_dir}.",
            )
        waiting = ", ".join(
            f"{process.name} ({process.details})" if process.details else process.name
            for process in overview.processes
            if process.role == "server" and process.state != "running"
        )
        running.detail(f"waiting for {waiting}")
        if time.monotonic() >= deadline:
            raise NotReady(
                f"the control plane does not answer after {limit_seconds:g} s: {waiting}",
                state=overview.state,
                hint=f"Look at the logs in {state.logs_dir}; `exo dedicated-inference down` stops it.",
            )
        time.sleep(POLL_SECONDS)


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


def _is_unused(state: StateDir) -> bool:
    """Whether there is no model yet."""
    return not any(state.models_dir.iterdir())


def _suggest(session: Session) -> None:
    """Print what to type next; nothing is needed to make these find this control plane."""
    chosen = session.flags.state_dir
    where = f" --state-dir {shlex.quote(str(chosen))}" if chosen else ""
    session.success(
        f"""
Next:
  exo dedicated-inference model create exo/tiny-chat --wait{where}
  exo dedicated-inference deployment create demo --model-name exo/tiny-chat \\
      --gpu-type cpu --gpu-count 1 --wait{where}
  exo dedicated-inference chat demo{where}"""
    )
