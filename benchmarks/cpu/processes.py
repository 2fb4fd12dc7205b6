"""Processes of the contestants: each in a session of its own, stopped with all that it started."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.cpu.quiet import Watch

_START_SECONDS, _STOP_SECONDS = 600.0, 30.0


class Ended(Exception):
    """A process ended, or did not do what it was started for."""


def stop_on_signals() -> None:
    """Have what was started stopped where this process is ended, or its terminal is closed."""
    for name in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.default_int_handler)


@contextmanager
def started(
    command: Sequence[str],
    log: Path,
    watch: Watch,
    environment: Mapping[str, str] | None = None,
    *,
    has_pipes: bool = False,
) -> Iterator[subprocess.Popen[str]]:
    """Start a process and stop it at the end.

    Args:
        command: its words.
        log: what it prints, but for stdout where that is a pipe.
        watch: told that the process is ours.
        environment: variables besides our own.
        has_pipes: whether stdin and stdout are pipes.
    """
    with log.open("ab") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if has_pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if has_pipes else file,
            stderr=file,
            text=True,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    try:
        watch.sessions.add(process.pid)
        yield process
    finally:
        _stop(process)
        # Its number may become another's.
        watch.sessions.discard(process.pid)


def _stop(process: subprocess.Popen[str]) -> None:
    try:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was not read any more
                    pipe.close()
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
    finally:  # at once, where the user asks a second time
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def await_ready(port: int, process: subprocess.Popen[str]) -> None:
    """Return when the server of a process answers `/health`.

    Raises:
        Ended: it ended before, or was not ready in time.
    """
    limit = time.monotonic() + _START_SECONDS
    while time.monotonic() < limit and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.01)
    raise Ended("its server ended, or was not ready in time; its log says why")


def peak_mb(pid: int, root: Path = Path("/proc")) -> float:
    """Return the memory in MB that a process and all that it started held at most.

    What they hold now, pages of several once, and how much more each held at its own worst moment.
    """
    total = 0
    for each in _family(pid, root):
        with suppress(OSError):
            status = _table(root / str(each) / "status")
            total += status.get("VmHWM", 0) - status.get("VmRSS", 0)
            total += _table(root / str(each) / "smaps_rollup").get("Pss", 0)
    return total * 1.024e-3


def held_mb(pid: int, root: Path = Path("/proc")) -> float:
    """Return the memory in MB that a process and all that it started hold now, pages of several once."""
    total = 0
    for each in _family(pid, root):
        with suppress(OSError):
            total += _table(root / str(each) / "smaps_rollup").get("Pss", 0)
    return total * 1.024e-3


def _family(pid: int, root: Path) -> list[int]:
    try:
        children = (root / f"{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return []
    # A thread other than the first may have started some.
    for task in (root / f"{pid}/task").iterdir():
        if task.name != str(pid):
            with suppress(OSError):
                children += (task / "children").read_text(encoding="ascii").split()
    return [pid, *(each for child in children for each in _family(int(child), root))]


def _table(path: Path) -> dict[str, int]:
    """Return the lines `Name: number kB` of a file."""
    lines = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
    return {
        words[0].rstrip(":"): int(words[1])
        for words in lines
        if len(words) == 3 and words[2] == "kB"
    }
