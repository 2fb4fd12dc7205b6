"""The files of one replica: what the platform and its shim know, and nothing else.

A replica is a directory. `ReplicaDir` reads and writes it; the platform decides. Every file is
replaced atomically, so that a reader sees all or nothing after a kill at any line::

    NAME/
      record.json        what it was made for, and its GPUs       (platform)
      lock               held while the shim lives                (platform, then shim)
      launch.json        the run: its number, argv, environment   (platform, before each start)
      simulation.json    what it pretends to be, if it does       (platform, before each start)
      process.json       pids of shim and engine                  (shim)
      exit.json          how the run ended                        (shim)
      ready              number of the last run that became ready (platform)
      killed.json        why the platform killed the run          (platform)
      draining           it is to be stopped and removed          (platform)
      engine.sock        where the engine listens                 (engine)
      engine.log*  previous.log*  first-failure.log  shim.log
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import secrets
import shutil
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from exo_inference.state_dir import write_atomically

logger = logging.getLogger(__name__)

SOCKET_NAME = "engine.sock"
SIMULATION_NAME = "simulation.json"
MODEL_FLAG = "--served-model-name"
"""What the name follows, on the engine's command line, that clients send as `model`. It is the platform's own."""

_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL, os.EX_OSERR)
"""What an engine ends with when it is killed, or when its core process was."""

_Document = TypeVar("_Document")


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """What a replica was made for.

    Attributes:
        deployment: its name; a rename is written here, and `name` stays.
        spec: hash of everything that makes two replicas interchangeable.
        gpus: UUIDs of the GPUs it holds; empty on the CPU, or while it waits for some.
        memory: what it takes of the machine's, as `ReplicaNeed` has it; empty from older versions.
    """

    name: str
    uid: str
    deployment: str
    spec: str
    gpu_type: str
    gpu_count: int
    created_at: float
    gpus: tuple[str, ...] = ()
    memory: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Launch:
    """One run of the engine, as the shim is told.

    Attributes:
        run: 1 for the first start of this replica.
        failures: crashes in a row before this run.
        restarts: starts because the run before had crashed, this one included.
        boot_id: of the kernel; runs of an earlier boot ended without a word.
        memory_bytes: what it was promised of the machine's memory.
    """

    run: int
    failures: int
    boot_id: str
    spawned_at: float
    argv: tuple[str, ...]
    environment: dict[str, str]
    grace_seconds: float
    log_max_bytes: int
    log_max_files: int
    restarts: int = 0
    nice: int = 0
    memory_bytes: int = 0

    @property
    def models(self) -> tuple[str, ...]:
        """The names that the engine answers to; empty where its command line does not say."""
        words = iter(self.argv)
        return tuple(next(words, "") for word in words if word == MODEL_FLAG)


@dataclass(frozen=True, slots=True)
class Process:
    """The processes of one run."""

    run: int
    shim_pid: int
    shim_start_ticks: int | None
    engine_pid: int
    engine_start_ticks: int | None
    started_at: float


@dataclass(frozen=True, slots=True)
class Exit:
    """How one run ended.

    Attributes:
        stop_asked: the shim was told to stop it.
        killed: it did not end when it was asked to, or was not wanted to go on.
        oom_kills: how often the kernel killed for lack of memory in the last seconds of the run.
    """

    run: int
    exit_code: int
    stop_asked: bool
    killed: bool
    started_at: float
    finished_at: float
    oom_kills: int = 0

    @property
    def out_of_memory(self) -> bool:
        """Whether the kernel killed it, or a part of it, because memory ran out."""
        return self.oom_kills > 0 and not self.killed and self.exit_code in _KILLED

    @property
    def killed_from_outside(self) -> bool:
        """Whether a person or a program killed it, which says nothing about it."""
        asked = self.stop_asked or self.killed
        return self.exit_code == -signal.SIGKILL and not asked and not self.out_of_memory


@dataclass(frozen=True, slots=True)
class Kill:
    """Why the platform killed one run."""

    run: int
    reason: str


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """Everything that is known of one replica at one moment.

    Attributes:
        running: the shim lives. `process` and `exit` are those of the present run or None.
        ready_run: the last run that was seen ready, 0 for none.
        kill_reason: why the platform has killed this run; empty where it did not.
    """

    record: ReplicaRecord
    running: bool
    launch: Launch | None
    process: Process | None
    exit: Exit | None
    draining: bool
    ready_run: int
    kill_reason: str = ""

    @property
    def name(self) -> str:
        """The replica's name."""
        return self.record.name

    @property
    def run(self) -> int:
        """Number of the present or last run, 0 before the first."""
        return self.launch.run if self.launch else 0

    @property
    def restarts(self) -> int:
        """How often it was started again after a crash; a stop that was asked for is none."""
        return self.launch.restarts if self.launch else 0

    @property
    def was_ready(self) -> bool:
        """Whether requests may have been sent to the present run."""
        return self.run > 0 and self.ready_run == self.run


class ReplicaDir:
    """One replica's directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        """The replica's name."""
        return self.path.name

    @classmethod
    def create(cls, parent: Path, record: ReplicaRecord) -> ReplicaDir:
        """Make a new replica; it appears whole or not at all."""
        temporary = parent / f".new-{record.name}"
        temporary.mkdir(mode=0o700)
        _write(temporary / "record.json", record)
        (temporary / "lock").touch(mode=0o600)
        return cls(temporary.rename(parent / record.name))

    def facts(self, uid: str | None = None) -> ReplicaFacts | None:
        """Read the replica; None when it is not (or no longer) one, or of another deployment."""
        record = self.record()
        if record is None or uid not in (None, record.uid):
            return None
        running = self.is_running()  # before the rest: the shim writes exit.json, then lets go
        launch = _read(self.path / "launch.json", Launch)
        run = launch.run if launch else 0
        process = self.process()
        ended = _read(self.path / "exit.json", Exit)
        kill = _read(self.path / "killed.json", Kill)
        return ReplicaFacts(
            record=record,
            running=running,
            launch=launch,
            process=process if process and process.run == run else None,
            exit=ended if ended and ended.run == run and not running else None,
            draining=(self.path / "draining").exists(),
            ready_run=self._read_ready_run(),
            kill_reason=kill.reason if kill and kill.run == run else "",
        )

    def record(self) -> ReplicaRecord | None:
        """Read what the replica was made for; None when it is not one."""
        return _read(self.path / "record.json", ReplicaRecord)

    def process(self) -> Process | None:
        """Read the processes of the last run whose engine was started."""
        return _read(self.path / "process.json", Process)

    def is_running(self) -> bool:
        """Whether a shim holds the lock."""
        descriptor = self.try_lock()
        if descriptor is None:
            return (self.path / "lock").exists()
        os.close(descriptor)
        return False

    def try_lock(self) -> int | None:
        """Take the replica's lock; return its descriptor, or None if it is held (or gone)."""
        try:
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor

    def write_launch(self, launch: Launch) -> None:
        """Record the run that is about to start."""
        (self.path / SOCKET_NAME).unlink(missing_ok=True)
        _write(self.path / "launch.json", launch)

    def write_simulation(self, document: Mapping[str, Any]) -> None:
        """Write what the next run pretends to be."""
        write_atomically(self.path / SIMULATION_NAME, json.dumps(document, indent=1))

    def write_record(self, record: ReplicaRecord) -> None:
        """Write anew what the replica was made for: it has got its GPUs, or another name."""
        _write(self.path / "record.json", record)

    def mark_ready(self, run: int) -> None:
        """Remember that this run was ready."""
        write_atomically(self.path / "ready", str(run))

    def mark_killed(self, run: int, reason: str) -> None:
        """Remember why this run is killed; before it is."""
        _write(self.path / "killed.json", Kill(run, reason))

    def mark_draining(self) -> None:
        """Remember that the replica is on its way out. Idempotent."""
        with contextlib.suppress(FileNotFoundError):
            (self.path / "draining").touch(mode=0o600)

    def remove(self) -> None:
        """Remove the directory; what is left of it after a kill is swept later. Idempotent."""
        trash = self.path.with_name(f".trash-{self.name}-{secrets.token_hex(4)}")
        with contextlib.suppress(FileNotFoundError):
            self.path.rename(trash)
            shutil.rmtree(trash, ignore_errors=True)

    def _read_ready_run(self) -> int:
        try:
            return int((self.path / "ready").read_text())
        except (OSError, ValueError):
            return 0


def list_replicas(parent: Path) -> list[ReplicaDir]:
    """Return all replicas of a state directory, in order of name."""
    try:
        entries = sorted(parent.iterdir())
    except FileNotFoundError:
        return []
    return [ReplicaDir(entry) for entry in entries if not entry.name.startswith(".")]


def sweep(parent: Path) -> None:
    """Remove what a kill left half made or half removed. Called once, before anything is made."""
    for pattern in (".new-*", ".trash-*"):
        for path in parent.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def _write(path: Path, document: Any) -> None:
    write_atomically(path, json.dumps(asdict(document)))


def _read(path: Path, kind: type[_Document]) -> _Document | None:
    """Read a document; None when it is absent. Unknown keys of a newer version are ignored."""
    try:
        values = json.loads(path.read_bytes())
        names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
        known = {name: value for name, value in values.items() if name in names}
        known = {name: tuple(v) if isinstance(v, list) else v for name, v in known.items()}
        return kind(**known)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        logger.warning("cannot read %s: %s", path, error)
        return None
