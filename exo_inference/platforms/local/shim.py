"""The parent of one engine process: holds the replica's lock, keeps its log, records its end.

Run by file path as `python -I -S shim.py REPLICA_DIR`; imports the standard library alone, so that
it starts in a few milliseconds. The platform takes the replica's lock before it starts a shim and
hands it over as descriptor 3: whether a replica runs is decided by that lock and nothing else, so
there is no moment at which a killed controller leaves an engine that nobody knows.

It reads `launch.json`, writes `process.json` when the engine runs and `exit.json` when it has
ended, and does not decide anything: whether to start again is the platform's business. SIGTERM is
forwarded, and after the grace the whole process group is killed. If the shim itself is killed, the
kernel kills the engine. Where memory runs out the kernel takes an engine first, never the control
plane; and processor and disk go to the control plane first.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

LOCK_FD = 3
MARKER = "EXO_REPLICA_DIR"
"""Environment variable that every process of a replica inherits; finds strays in /proc."""

_PR_SET_PDEATHSIG = 1
_OOM_SCORE = b"1000"
"""The most there is: the kernel looks among these processes first when it has to kill one."""

_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IOPRIO_LOWEST = 2 << 13 | 7
"""Best effort, the lowest level (ioprio_set(2)); idle could wait for ever on a busy disk."""

_READ_BYTES = 65536
_FAILURE_TAIL_BYTES = 256 * 1024
_LAST_OUTPUT_SECONDS = 1.0
_COUNT_SECONDS = 5.0


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Replace `path` atomically with a JSON document, readable by its owner alone."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(descriptor)
    temporary.replace(path)


def start_ticks(pid: int) -> int | None:
    """Return field 22 of `/proc/PID/stat`, which tells a reused pid from the process meant."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def find_processes(directory: Path) -> list[int]:
    """Return the pids of this user's processes that carry the marker of a replica, however it is spelt."""
    marker = f"{MARKER}=".encode()
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            variables = (entry / "environ").read_bytes().split(b"\0")
            marked = next((v for v in variables if v.startswith(marker)), None)
            if marked and _is_same(Path(os.fsdecode(marked[len(marker) :])), directory):
                pids.append(int(entry.name))
    return pids


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one == other or (one.name == other.name and one.samefile(other))
    except OSError:
        return False


def step_back(nice: int) -> None:
    """Let the rest of the machine go before this process: in memory, processor and disk."""
    for name, text in (("oom_score_adj", _OOM_SCORE), ("autogroup", str(nice).encode())):
        with contextlib.suppress(OSError):
            Path("/proc/self", name).write_bytes(text)
    with contextlib.suppress(OSError):
        os.nice(nice)
    number = _IOPRIO_SET.get(os.uname().machine)
    if number is not None:
        ctypes.CDLL(None).syscall(number, 1, 0, _IOPRIO_LOWEST)


def count_oom_kills(root: Path = Path("/")) -> int:
    """Return how often the kernel killed in this control group, or on this machine, for lack of memory."""
    files = [root / "proc/vmstat"]
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            own = path.lstrip("/")
            if "memory" in controllers.split(","):
                files.insert(0, root / "sys/fs/cgroup/memory" / own / "memory.oom_control")
            elif number == "0":
                files.insert(0, root / "sys/fs/cgroup" / own / "memory.events")
    for file in files:
        with contextlib.suppress(OSError):
            for line in file.read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill" and count.strip().isdecimal():
                    return int(count)
    return 0


class KillCount:
    """Tells whether the kernel has killed for lack of memory within the last seconds."""

    def __init__(self, count: Callable[[], int] = count_oom_kills) -> None:
        self._count = count
        self._looked_at = time.monotonic()
        self._before = self._last = count()

    def look(self) -> None:
        """Note the count every few seconds, so that kills of long ago are not laid to this engine."""
        if time.monotonic() - self._looked_at >= _COUNT_SECONDS:
            self._before, self._last = self._last, self._count()
            self._looked_at = time.monotonic()

    def recent(self) -> int:
        """Return the kills since the last look but one."""
        return max(0, self._count() - self._before)


class RotatingLog:
    """Appends timestamped lines to a file and keeps a bounded number of older ones.

    A full disk must not stop the engine: lines that cannot be written are counted and dropped.
    """

    def __init__(self, path: Path, *, max_bytes: int, max_files: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._lost_lines = 0
        self._torn = False
        self._open()

    def _open(self) -> None:
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = os.fstat(self._fd).st_size

    def write(self, text: bytes) -> None:
        """Append one line."""
        if self._lost_lines:
            note = b"exo-shim: %d lines were lost: the disk was full" % self._lost_lines
            if not self._append(note):
                self._lost_lines += 1
                return
            self._lost_lines = 0
        if not self._append(text):
            self._lost_lines += 1

    def _append(self, text: bytes) -> bool:
        seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
        clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        line = b"%s.%06dZ %s\n" % (clock.encode(), nanoseconds // 1000, text)
        try:
            if self._size + len(line) > self._max_bytes and self._size:
                self._rotate()
            written = os.write(self._fd, b"\n" + line if self._torn else line)
        except OSError:
            return False
        self._size += written
        self._torn = written < len(line)
        return not self._torn

    def _rotate(self) -> None:
        os.close(self._fd)
        rotate_files(self._path, self._max_files)
        self._open()


def rotate_files(path: Path, max_files: int) -> None:
    """Shift `path` to `path.1`, `path.1` to `path.2` and so on; the oldest goes."""
    for index in range(max_files - 1, 0, -1):
        older = path.with_name(f"{path.name}.{index}")
        newer = path if index == 1 else path.with_name(f"{path.name}.{index - 1}")
        with contextlib.suppress(FileNotFoundError):
            newer.replace(older)
    path.unlink(missing_ok=True)


def set_aside(max_files: int) -> None:
    """Keep the log of the run before as `previous.log*`; what was kept before goes."""
    for index in range(max_files):
        suffix = f".{index}" if index else ""
        current, previous = Path(f"engine.log{suffix}"), Path(f"previous.log{suffix}")
        previous.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            current.replace(previous)


class Shim:
    """Starts one engine and stays until it has ended."""

    def __init__(self, directory: Path, launch: dict[str, Any]) -> None:
        self._directory = directory
        self._launch = launch
        self._partial = b""
        self._deadline: float | None = None
        self._stop_asked = False
        self._killed = False
        self._engine_pid = 0
        self._kills = KillCount()
        self._log = RotatingLog(
            Path("engine.log"),
            max_bytes=launch["log_max_bytes"],
            max_files=launch["log_max_files"],
        )

    def run(self) -> None:
        """Start the engine, keep its log, and record how it ended."""
        started = time.time()
        output = self._start()
        process = {
            "run": self._launch["run"],
            "shim_pid": os.getpid(),
            "shim_start_ticks": start_ticks(os.getpid()),
            "engine_pid": self._engine_pid,
            "engine_start_ticks": start_ticks(self._engine_pid),
            "started_at": started,
        }
        write_json(Path("process.json"), process)
        status = self._watch(output)
        self._end_group()
        os.waitpid(self._engine_pid, 0)
        self._read_rest(output)
        self._record(started, os.waitstatus_to_exitcode(status))

    def _start(self) -> int:
        self._wakeup_read, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        # A stop waits until there is an engine to forward it to, and one that this process no longer
        # takes for itself: what came between its fork and its reset of handlers would be lost.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGQUIT, self._on_kill)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        libc = ctypes.CDLL(None, use_errno=True)
        output, engine_output = os.pipe2(os.O_CLOEXEC)
        shim_pid = os.getpid()
        self._engine_pid = os.fork()
        if self._engine_pid == 0:
            self._become_engine(libc, shim_pid, engine_output, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(engine_output)
        os.set_blocking(output, False)
        return output

    def _become_engine(
        self, libc: ctypes.CDLL, shim_pid: int, output: int, mask: set[int | signal.Signals]
    ) -> None:
        """Turn the forked child into the engine; never returns."""
        argv = self._launch["argv"]
        try:
            os.setsid()
            step_back(self._launch.get("nice", 0))
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != shim_pid:
                os._exit(126)  # the shim died before the kernel knew what to do then
            signal.set_wakeup_fd(-1)
            for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.execve(argv[0], argv, self._launch["environment"])  # noqa: S606 -- no shell
        except OSError as error:
            os.write(output, f"exo-shim: cannot start {argv[0]}: {error.strerror}\n".encode())
            os._exit(127 if isinstance(error, FileNotFoundError) else 126)
        except BaseException as error:
            os.write(output, f"exo-shim: cannot start {argv[0]}: {error!r}\n".encode())
            os._exit(126)

    def _on_stop(self, _number: int, _frame: FrameType | None) -> None:
        if self._stop_asked:
            return
        self._stop_asked = True
        self._deadline = time.monotonic() + self._launch["grace_seconds"]
        os.kill(self._engine_pid, signal.SIGTERM)

    def _on_kill(self, _number: int, _frame: FrameType | None) -> None:
        self._deadline = time.monotonic()

    def _watch(self, output: int) -> int:
        """Copy output until the engine's main process has ended; return its wait status."""
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            selector.register(self._wakeup_read, selectors.EVENT_READ)
            while True:
                status = self._ended()
                if status is not None:
                    return status
                self._kills.look()
                remaining = _COUNT_SECONDS
                if self._deadline is not None:
                    remaining = min(remaining, max(0.0, self._deadline - time.monotonic()))
                for key, _ in selector.select(remaining):
                    if key.fd == self._wakeup_read:
                        os.read(self._wakeup_read, 4096)
                    elif self._copy(output) == b"":
                        selector.unregister(output)
                if self._deadline is not None and time.monotonic() >= self._deadline:
                    self._killed = True
                    self._deadline = None
                    self._end_group()

    def _ended(self) -> int | None:
        # Left unreaped, so that its process group's number cannot be given to anyone else yet.
        flags = os.WEXITED | os.WNOWAIT | os.WNOHANG
        info = os.waitid(os.P_PID, self._engine_pid, flags)
        if info is None:
            return None
        return info.si_status << 8 if info.si_code == os.CLD_EXITED else info.si_status

    def _end_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._engine_pid, signal.SIGKILL)
        for pid in find_processes(self._directory):
            if pid != os.getpid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _copy(self, output: int) -> bytes | None:
        """Log what is there; return it, b"" at the end, None when there is nothing now."""
        try:
            data = os.read(output, _READ_BYTES)
        except BlockingIOError:
            return None
        text = self._partial + data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._partial = text.split(b"\n")
        if len(self._partial) > _READ_BYTES or (not data and self._partial):
            lines.append(self._partial)
            self._partial = b""
        for line in lines:
            if line.strip():
                self._log.write(line)
        return data

    def _read_rest(self, output: int) -> None:
        end = time.monotonic() + _LAST_OUTPUT_SECONDS
        while time.monotonic() < end:
            data = self._copy(output)
            if data == b"":
                return
            if data is None:
                time.sleep(0.01)

    def _record(self, started: float, exit_code: int) -> None:
        if not self._stop_asked:
            self._keep_first_failure()
        document = {
            "run": self._launch["run"],
            "exit_code": exit_code,
            "stop_asked": self._stop_asked,
            "killed": self._killed,
            "oom_kills": self._kills.recent(),
            "started_at": started,
            "finished_at": time.time(),
        }
        write_json(Path("exit.json"), document)

    def _keep_first_failure(self) -> None:
        kept = Path("first-failure.log")
        if kept.exists():
            return
        with contextlib.suppress(OSError):
            data = Path("engine.log").read_bytes()[-_FAILURE_TAIL_BYTES:]
            temporary = Path(".first-failure.log")
            temporary.write_bytes(data)
            temporary.replace(kept)


def main(argv: list[str]) -> None:
    """Run one engine in the replica directory named on the command line."""
    directory = Path(argv[1])
    os.umask(0o077)
    os.set_inheritable(LOCK_FD, False)
    with contextlib.suppress(PermissionError):
        os.setsid()
    os.chdir(directory)
    launch = json.loads(Path("launch.json").read_text())
    set_aside(launch["log_max_files"])
    Shim(directory, launch).run()


if __name__ == "__main__":
    main(sys.argv)
