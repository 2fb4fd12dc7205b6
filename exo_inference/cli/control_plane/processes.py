"""Finds and signals the processes of one control plane, through what they recorded of themselves.

Three sources, so that nothing is missed: `run/NAME.json` for supervisor, controller and gateway;
`replicas/NAME/process.json` for shims and engines; and, for what was killed before it could write
either or whose records were deleted, the marks that our processes carry in /proc. A pid counts only with the start time recorded
for it, and signals go through pidfds, so that a reused pid is never hit.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from exo_inference.state_dir import (
    SERVERS,
    ProcessRecord,
    StateDir,
    find_servers_in_proc,
    is_same_path,
    is_stopped,
    process_start_ticks,
    read_json,
)

STOPPED = "stopped by a signal"
"""State of a process that SIGSTOP or a key on its terminal has stopped: it is there, and does nothing."""

_REPLICA_MARK = "EXO_REPLICA_DIR="


@dataclass(frozen=True)
class LocalProcess:
    """One process of a control plane.

    Attributes:
        name: `supervisor`, `controller`, `gateway`, or the replica's name.
        pid: process id; None for a server that does not run.
        start_ticks: when it started, see `state_dir.process_start_ticks`.
        state: `running`, `not running`; for engines `starting`, `ready` or `draining`; of all, `STOPPED`.
        role: `server`, `shim`, `engine`, or `stray` for others that belong to a replica.
        deployment: id of the deployment of an engine or its shim.
        details: why a server does not stay up.
    """

    name: str
    pid: int | None
    start_ticks: int | None
    state: str
    role: str
    deployment: str | None = None
    details: str = ""

    @property
    def alive(self) -> bool:
        """Whether this very process still runs."""
        if self.pid is None or self.start_ticks is None:
            return False
        return process_start_ticks(self.pid) == self.start_ticks

    def send(self, number: signal.Signals, *, group: bool = False) -> None:
        """Send a signal, unless the process has gone.

        Args:
            number: the signal.
            group: send it to the whole process group that this process leads.
        """
        if self.pid is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            descriptor = os.pidfd_open(self.pid)
            try:
                if self.alive:
                    if group and os.getpgid(self.pid) == self.pid:
                        os.killpg(self.pid, number)
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)


def find_servers(state: StateDir) -> list[LocalProcess]:
    """Return supervisor, controller and gateway, also those that do not run."""
    found = []
    records = _server_records(state)
    for name in SERVERS:
        record = records.get(name)
        if record is not None:
            stopped = is_stopped(record.pid)
            details = f"`kill -CONT {record.pid}` lets it go on" if stopped else ""
            found.append(
                LocalProcess(
                    name,
                    record.pid,
                    record.start_ticks,
                    STOPPED if stopped else "running",
                    "server",
                    details=details,
                )
            )
        else:
            failure = state.read_failure(name)
            details = f"tried {failure.attempts} times: {failure.message}" if failure else ""
            found.append(LocalProcess(name, None, None, "not running", "server", details=details))
    return found


def _server_records(state: StateDir) -> dict[str, ProcessRecord]:
    """Return the servers that run, by name; those without a record are looked for in /proc."""
    recorded = (state.read_record(name) for name in SERVERS)
    alive = {record.name: record for record in recorded if record is not None and record.alive}
    if len(alive) < len(SERVERS):
        for record in find_servers_in_proc(state.root):
            alive.setdefault(record.name, record)
    return alive


def find_replicas(state: StateDir) -> list[LocalProcess]:
    """Return the shims and engines that run, by replica."""
    found = []
    for directory in _replica_dirs(state):
        record = _read(directory / "record.json")
        process = _read(directory / "process.json")
        deployment = record.get("deployment")
        for role in ("engine", "shim"):
            pid, ticks = process.get(f"{role}_pid"), process.get(f"{role}_start_ticks")
            if isinstance(pid, int) and isinstance(ticks, int):
                state_name = _engine_state(directory, process) if role == "engine" else "running"
                state_name = STOPPED if is_stopped(pid) else state_name
                one = LocalProcess(directory.name, pid, ticks, state_name, role, deployment)
                if one.alive:
                    found.append(one)
    return found


def find_strays(state: StateDir, known: list[LocalProcess]) -> list[LocalProcess]:
    """Return processes of this control plane that no record names."""
    pids = {process.pid for process in known} | {os.getpid()}
    return [process for process in _scan(state) if process.pid not in pids]


def find_recorded(state: StateDir) -> list[LocalProcess]:
    """Return the processes that run and have a record; without a look at all others of the machine."""
    return [process for process in find_servers(state) if process.alive] + find_replicas(state)


def describe_unrecorded(state: StateDir, stray: LocalProcess) -> LocalProcess:
    """Return a stray of a replica as an engine: one whose record is still to come, or is gone."""
    directory = state.replicas_dir / stray.name
    record, launch = _read(directory / "record.json"), _read(directory / "launch.json")
    run, recorded = launch.get("run"), _read(directory / "process.json").get("run")
    if record and run and run not in (recorded, _ready_run(directory)):
        return replace(stray, role="engine", state="starting", deployment=record.get("deployment"))
    return replace(stray, role="engine", details="without a record")


def find_all(state: StateDir) -> list[LocalProcess]:
    """Return every process of this control plane that runs."""
    known = find_recorded(state)
    return known + find_strays(state, known)


def _replica_dirs(state: StateDir) -> list[Path]:
    try:
        return sorted(path for path in state.replicas_dir.iterdir() if path.name[0] != ".")
    except OSError:
        return []


def _engine_state(directory: Path, process: dict[str, Any]) -> str:
    if (directory / "draining").exists():
        return "draining"
    ready_run = _ready_run(directory)
    return "ready" if ready_run and ready_run == process.get("run") else "starting"


def _ready_run(directory: Path) -> int:
    """Return the number of the last run that became ready; 0 where none did."""
    try:
        return int((directory / "ready").read_text())
    except (OSError, ValueError):
        return 0


def _read(path: Path) -> dict[str, Any]:
    """Return a JSON object; an empty one where there is none."""
    try:
        document = read_json(path)
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _scan(state: StateDir) -> Iterator[LocalProcess]:
    """Look through /proc for the marks of this control plane's processes."""
    for record in find_servers_in_proc(state.root):
        yield LocalProcess(record.name, record.pid, record.start_ticks, "running", "server")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            marked = _mark(state, entry)
            ticks = process_start_ticks(int(entry.name)) if marked else None
            if marked is not None and ticks is not None:
                name, role = marked
                yield LocalProcess(name, int(entry.name), ticks, "running", role)
        except OSError:
            continue  # it has just ended, or belongs to another user


def _mark(state: StateDir, entry: Path) -> tuple[str, str] | None:
    """Return name and role of a process of ours; None for every other."""
    mark, replicas = _REPLICA_MARK.encode(), os.fsencode(state.replicas_dir)
    for variable in (entry / "environ").read_bytes().split(b"\0"):
        if variable.startswith(mark):
            parent, _, name = variable.removeprefix(mark).rpartition(b"/")
            if is_same_path(parent, replicas):
                return name.decode(errors="replace"), "stray"
    return None
