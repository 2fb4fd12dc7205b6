"""`down`: stop the control plane of this machine and everything it runs."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from exo_inference.cli.control_plane.launch import starts_wait, state_dir_of
from exo_inference.cli.control_plane.processes import LocalProcess, find_all, find_recorded
from exo_inference.cli.durations import Limit
from exo_inference.cli.rendering.output import Field, Record
from exo_inference.cli.rendering.progress import Step, step
from exo_inference.cli.rendering.prompts import confirm
from exo_inference.cli.rendering.terminal import harmless
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.cli.writes import force_option
from exo_inference.errors import ExoError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from exo_inference.state_dir import StateDir

STOP_SECONDS = 90.0
TERM_SECONDS = 10.0
KILL_SECONDS = 5.0
FIELD_NAMES = ("State", "StateDir", "Purged")
POLL_SECONDS = 0.05


@command(
    "down",
    examples=[
        Example("Stop everything; what is deployed stays recorded", "exo dedicated-inference down"),
        Example(
            "Give requests in flight ten seconds to finish",
            "exo dedicated-inference down --timeout 10s",
        ),
        Example(
            "Stop it and delete its models, keys and records",
            "exo dedicated-inference down --purge",
        ),
    ],
)
@click.option(
    "--timeout",
    "stop_timeout",
    metavar="<duration>",
    type=Limit(),
    default=STOP_SECONDS,
    help="When everything has ended, by force if it must be (default 90s); engines have 60s at most.",
)
@click.option("--purge", is_flag=True, help="Delete the state directory, too.")
@force_option
@pass_session
def down(session: Session, stop_timeout: float, purge: bool, force: bool) -> None:
    """Stop the control plane of this machine with all its engines.

    Requests in flight are finished first, as far as there is time: shortly before `--timeout` is over
    engines are killed, then the rest. Nothing of it keeps running and no port stays in use,
    also where parts of it were killed before. The next `up` starts what was deployed again, unless
    `--purge` deleted it.
    """
    output = session.output(FIELD_NAMES, configured=False)
    state = state_dir_of(session)
    if purge and state.root.exists() and not force:
        question = f"Are you sure you want to delete {state.root} with its models and keys?"
        if not confirm(question, instead="--force", on_stderr=output.is_for_programs):
            return
    with starts_wait(state):
        if not find_all(state):
            session.success("No control plane is running.")
        else:
            with step("Stopping the control plane", quiet=session.quiet) as running:
                _stop(state, stop_timeout, running)
            session.success("The control plane is stopped.")
        _remove_traces(state)
        if purge:
            _purge(session, state)
    if output.is_for_programs:
        output.show(_record(state, purged=purge and not state.root.exists()))


def _record(state: StateDir, *, purged: bool) -> Record:
    return (
        Field("state", "State", "State", "stopped"),
        Field("state_dir", "StateDir", "State Directory", str(state.root)),
        Field("purged", "Purged", "Purged", purged),
    )


def _stop(state: StateDir, limit_seconds: float, running: Step) -> None:
    """End all processes: through the supervisor, then what is left, and in time without asking.

    Raises:
        ExoError: the kernel keeps one.
    """
    deadline = time.monotonic() + limit_seconds
    # Everything is gone at the stated time, so asking ends somewhat before it.
    kill_at = deadline - min(KILL_SECONDS, limit_seconds / 5)
    supervisor = [process for process in find_recorded(state) if process.name == "supervisor"]
    for process in supervisor:
        process.send(signal.SIGTERM)
        process.send(signal.SIGCONT)  # one that was stopped by a signal would not see it
    if supervisor:
        # It ends everything in order; if it dies on the way, the rest is done here.
        _wait_until_gone(state, kill_at, running, stop_early=lambda: not supervisor[0].alive)
    # Servers before engines: a controller would start these again.
    for chosen, seconds in ((is_server, TERM_SECONDS), (is_shim, limit_seconds)):
        until = min(kill_at, time.monotonic() + seconds)
        if time.monotonic() < until:
            for process in filter(chosen, find_recorded(state)):
                process.send(signal.SIGTERM)
                process.send(signal.SIGCONT)
            _wait_until_gone(state, until, running, chosen=chosen)
    left = _kill(state, max(deadline, time.monotonic() + KILL_SECONDS), running)
    if left:
        pids = ", ".join(f"{process.name} ({process.pid})" for process in left)
        raise ExoError(f"cannot end {pids}", hint="Look at them with ps, then run this again.")


def _kill(state: StateDir, deadline: float, running: Step) -> list[LocalProcess]:
    """End what is left without asking, engines first: they hold the memory that all else waits for."""
    for role in ("engine", "shim", "server"):
        for process in find_recorded(state):
            if process.role == role:
                process.send(signal.SIGKILL, group=True)
    # Only now through all of /proc, which takes long where memory is short.
    while left := find_all(state):
        for process in left:
            process.send(signal.SIGKILL, group=True)
        if time.monotonic() >= deadline:
            return left
        running.detail(f"ending {', '.join(dict.fromkeys(process.name for process in left))}")
        time.sleep(POLL_SECONDS)
    return []


def is_server(process: LocalProcess) -> bool:
    """Whether it is a supervisor, a controller or a gateway."""
    return process.role == "server"


def is_shim(process: LocalProcess) -> bool:
    """Whether it is the parent of an engine, which ends that in order."""
    return process.role == "shim"


def _wait_until_gone(
    state: StateDir,
    deadline: float,
    running: Step,
    *,
    chosen: Callable[[LocalProcess], bool] = lambda _: True,
    stop_early: Callable[[], bool] = lambda: False,
) -> None:
    """Wait for the chosen processes to end, of those that are recorded."""
    while True:
        # Asked before the look, so that nothing is missed that ends in between.
        early = stop_early()
        left = [process for process in find_recorded(state) if chosen(process)]
        if not left or early or time.monotonic() >= deadline:
            return
        names = dict.fromkeys(process.name for process in left)
        running.detail(f"waiting for {', '.join(names)}")
        time.sleep(POLL_SECONDS)


def _remove_traces(state: StateDir) -> None:
    """Remove what ended processes left: records, locks, sockets, half-written files."""
    for pattern in ("run/*", "run/.*", "replicas/*/*.sock", ".*.json.*"):
        for path in state.root.glob(pattern):
            path.unlink(missing_ok=True)


def _purge(session: Session, state: StateDir) -> None:
    """Delete what a control plane keeps, and the directory if nothing else is in it."""
    if not state.root.exists():
        return
    if not state.root.is_dir():
        raise UsageError(f"{state.root} is not a directory", hint="Check --state-dir.")
    try:
        for path in state.root.iterdir():
            if is_ours(state, path):
                _delete(path)
        left = sorted(path.name for path in state.root.iterdir())
        if left:
            names = ", ".join(map(harmless, left[:5]))
            click.echo(f"notice: kept {state.root}: it holds other files: {names}", err=True)
            return
        state.root.rmdir()
    except OSError as exc:
        raise ExoError(
            f"cannot delete {exc.filename or state.root}: {exc.strerror or exc}",
            hint="Check its owner and permissions.",
        ) from exc
    session.success(f"{state.root} is deleted.")


def is_ours(state: StateDir, path: Path) -> bool:
    """Tell whether a control plane made this entry of its directory; a user's file is never ours."""
    made = [value for value in vars(state).values() if value.parent == state.root]
    return any(
        path == one
        or path.name.startswith(f".{one.name}.")  # half-written
        or (one == state.database_file and path.name.startswith(f"{one.name}-"))  # SQLite's own
        for one in made
    )


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
