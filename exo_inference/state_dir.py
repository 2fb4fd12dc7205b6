"""Where one local control plane keeps everything it owns, and how its processes are recorded.

Used by the command line (`up`, `down`, `status`), the supervisor, the controller, the gateway and
the local platform; imports only the standard library. Nothing outside the directory is ever
written, so several control planes live side by side. Layout::

    DIR/
      exoscale.toml      0600  endpoint, key and secret; the `exo -C` of Exoscale reads it as it is
      settings.json            ports, zone and options that `up` was started with
      secret.key         0600  encrypts the revealable keys and Hub tokens in the database
      controller.db            desired state, status, operations, events (SQLite, WAL)
      routes.json        0600  the routing table, written by the controller, read by the gateway
      run/NAME.json            one record per running process of ours: pid and start time
      run/NAME.failure.json    why a process of ours does not stay up, while it does not
      run/gateway.sock         the gateway's private admin socket
      models/UID/              one folder per model
      replicas/ID/             one folder per engine replica: its log, its socket, its record
      logs/NAME.log            supervisor, controller, gateway
      cache/                   what engines compile and keep between runs
      plan-starts.jsonl  0600  real starts, predicted and measured, written by the controller
      processor.json     0600  how fast this machine's processor is, where it was measured
      usage.json               requests and tokens per deployment and key, written by the gateway
"""

from __future__ import annotations

import itertools
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MAX_FILE_BYTES = 64 << 20
"""Of a file that is read whole. The largest of ours, the counts of 10,000 keys, has a tenth of it."""

SERVERS = ("supervisor", "controller", "gateway")
"""Names of the recorded processes of a control plane, in the order in which they start."""

_SERVER_MODULES = {
    b"exo_inference.supervisor": "supervisor",
    b"exo_inference.controller.supervisor": "supervisor",  # as version 0.1 and before called it
    b"exo_inference.controller": "controller",
    b"exo_inference.gateway": "gateway",
}


@dataclass(frozen=True)
class ProcessRecord:
    """One running process.

    Attributes:
        name: `supervisor`, `controller`, `gateway`, or a replica's name.
        pid: process id.
        start_ticks: field 22 of `/proc/PID/stat`; tells a reused pid from the process meant.
    """

    name: str
    pid: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        return process_start_ticks(self.pid) == self.start_ticks


@dataclass(frozen=True)
class ProcessFailure:
    """Why a process of ours did not stay up; there while it is tried again.

    Attributes:
        name: `controller` or `gateway`.
        attempts: starts in a row that failed.
        exit_code: of the last one, negative for a signal; None when it is not known.
        message: the last line that it logged.
    """

    name: str
    attempts: int
    exit_code: int | None
    message: str


class StateDir:
    """Paths of one control plane. Creates nothing until `create` is called."""

    def __init__(self, root: Path) -> None:
        # One directory has one name, however it is spelt: servers are found by it. A loop stays as it is.
        self.root = Path(os.path.realpath(root.expanduser()))
        self.config_file = self.root / "exoscale.toml"
        self.settings_file = self.root / "settings.json"
        self.settings_copy = self.root / "settings.copy.json"
        self.settings_aside = self.root / "settings.json.damaged"
        self.secret_key_file = self.root / "secret.key"
        self.database_file = self.root / "controller.db"
        self.refusals_file = self.root / "refused-signatures"
        self.routes_file = self.root / "routes.json"
        self.run_dir = self.root / "run"
        self.gateway_socket = self.run_dir / "gateway.sock"
        self.paused_file = self.run_dir / "paused"
        self.models_dir = self.root / "models"
        self.replicas_dir = self.root / "replicas"
        self.logs_dir = self.root / "logs"
        self.cache_dir = self.root / "cache"
        self.plan_starts_file = self.root / "plan-starts.jsonl"
        self.processor_file = self.root / "processor.json"
        self.usage_file = self.root / "usage.json"

    def create(self) -> None:
        """Make the directory tree, readable by its owner alone. Idempotent."""
        for path in (self.root, self.run_dir, self.models_dir, self.replicas_dir, self.logs_dir):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def live_socket(self, name: str) -> Path:
        """Return the socket on which the server `name` answers its supervisor."""
        return self.run_dir / f"{name}.live"

    def write_record(self, name: str, pid: int) -> ProcessRecord:
        """Record a running process under `run/NAME.json` (atomic)."""
        record = ProcessRecord(name, pid, process_start_ticks(pid) or 0)
        write_atomically(self.run_dir / f"{name}.json", json.dumps(asdict(record)))
        return record

    def read_record(self, name: str) -> ProcessRecord | None:
        """Return the recorded process, or None when there is no (readable) record."""
        try:
            return ProcessRecord(**read_json(self.run_dir / f"{name}.json"))
        except (OSError, ValueError, TypeError):
            return None

    def remove_record(self, name: str) -> None:
        """Forget a process. Idempotent."""
        (self.run_dir / f"{name}.json").unlink(missing_ok=True)

    def write_failure(self, failure: ProcessFailure) -> None:
        """Record that a process does not stay up (atomic)."""
        path = self.run_dir / f"{failure.name}.failure.json"
        write_atomically(path, json.dumps(asdict(failure)))

    def read_failure(self, name: str) -> ProcessFailure | None:
        """Return why a process does not stay up; None while there is nothing to complain of."""
        try:
            return ProcessFailure(**read_json(self.run_dir / f"{name}.failure.json"))
        except (OSError, ValueError, TypeError):
            return None

    def remove_failure(self, name: str) -> None:
        """The process stays up. Idempotent."""
        (self.run_dir / f"{name}.failure.json").unlink(missing_ok=True)


def default_state_dir(environ: Mapping[str, str]) -> Path:
    """Return where `up` keeps its state when no `--state-dir` is given (XDG base directories).

    `settings.resolve_state_dir` is what a process asks for its own.
    """
    home = environ.get("HOME") or "~"
    base = environ.get("XDG_STATE_HOME") or f"{home}/.local/state"
    return Path(base).expanduser() / "exo-inference"


def find_servers_in_proc(root: Path) -> list[ProcessRecord]:
    """Return the servers of a state directory by their command lines, oldest first.

    For when a record is missing: a directory can be deleted while its processes run. Only processes
    of this user count, or of everybody for root.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if os.geteuid() not in (0, entry.stat().st_uid):
                continue  # a path that a stranger names is not even looked at: its disk may hang
            words = (entry / "cmdline").read_bytes().split(b"\0")
            name = _server_name(words, os.fsencode(root))
        except OSError:
            continue  # it has just ended
        ticks = process_start_ticks(int(entry.name)) if name is not None else None
        if name is not None and ticks is not None:
            found.append(ProcessRecord(name, int(entry.name), ticks))
    return sorted(found, key=lambda record: (record.start_ticks, record.pid))


def _server_name(words: list[bytes], root: bytes) -> str | None:
    """Tell from `python … -m MODULE … --state-dir ROOT …` which server this is."""
    pairs = list(itertools.pairwise(words))
    modules = (value for flag, value in pairs if flag == b"-m")
    name = next((_SERVER_MODULES[m] for m in modules if m in _SERVER_MODULES), None)
    roots = (value for flag, value in pairs if flag == b"--state-dir")
    return name if any(is_same_path(value, root) for value in roots) else None


def is_same_path(one: bytes, other: bytes) -> bool:
    """Whether two absolute paths are spelt alike, or name one file that is there.

    An older version kept symbolic links and `..` in the command lines of their servers.
    """
    if one == other:
        return True
    try:
        return one[:1] == other[:1] == b"/" and Path(os.fsdecode(one)).samefile(os.fsdecode(other))
    except OSError:
        return False


def process_start_ticks(pid: int) -> int | None:
    """Return when process `pid` started, in clock ticks since boot; None if it is not running.

    A zombie counts as not running. See proc_pid_stat(5), fields 3 and 22.
    """
    try:
        line = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field is the command in parentheses and may itself hold blanks and parentheses.
    fields = line.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal; one that a debugger holds was not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False


def file_version(path: Path) -> tuple[int, int, int] | None:
    """Return what tells a file from a later one of its name; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def read_file(path: Path) -> bytes:
    """Return what a regular file holds, and never wait for it, as one would for a named pipe.

    Raises:
        OSError: it is not there, cannot be read, is something else, or larger than `MAX_FILE_BYTES`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_FILE_BYTES:
        raise OSError(f"it is larger than {MAX_FILE_BYTES >> 20} MiB")
    return data


def read_json(path: Path) -> Any:
    """Return the JSON value in a file.

    Raises:
        OSError: see `read_file`.
        ValueError: it is not JSON in UTF-8, or nested deeper than can be read.
    """
    try:
        return json.loads(read_file(path))
    except RecursionError as exc:
        raise ValueError("it is nested too deeply") from exc


def write_atomically(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Replace `path` with `text` so that a reader sees the old file or the new one, whole."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(descriptor, mode)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)  # noqa: PTH105 -- both names are plain strings here
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
