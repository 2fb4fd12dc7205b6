"""Reads the logs of replicas: merged by time, from the end, and followed across rotation.

The shim writes `TIME TEXT` lines to `engine.log` and shifts full files to `.1`, `.2`; the log of
the run before is `previous.log*`. Called by `LocalPlatform.logs`, which runs all of this in threads;
nothing here blocks for longer than a read.
"""

from __future__ import annotations

import contextlib
import heapq
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from exo_inference.platforms.base import LogLine, LogQuery
from exo_inference.platforms.local.replica_dir import ReplicaDir

_BLOCK_BYTES = 65536
_FOLLOW_BYTES = 4 * 1024 * 1024
_EPOCH = datetime.fromtimestamp(0, UTC)


def read_lines(replicas: Sequence[ReplicaDir], query: LogQuery, node: str) -> Iterator[LogLine]:
    """Yield the lines that a query without `follow` asks for, in order of time."""
    streams = [_read_replica(replica, query, node) for replica in replicas]
    merged = heapq.merge(*streams, key=lambda line: line.time)
    return choose_lines(merged, query)


def choose_lines(lines: Iterable[LogLine], query: LogQuery) -> Iterator[LogLine]:
    """Apply `since` and `tail` to lines that are in order of time."""
    if query.since is not None:
        since = query.since
        lines = (line for line in lines if line.time >= since)
    return iter(lines if query.tail is None else deque(lines, maxlen=query.tail))


def tail_text(directory: Path, num_lines: int) -> list[str]:
    """Return the last lines of a replica's present log without their times, oldest first."""
    return [line.partition(" ")[2] for line in _last_lines(_files(directory, "engine"), num_lines)]


def _read_replica(replica: ReplicaDir, query: LogQuery, node: str) -> Iterator[LogLine]:
    files = _choose_files(replica, previous=query.previous)
    if query.tail is not None:
        lines: Iterable[str] = _last_lines(files, query.tail)
    else:
        lines = _all_lines(files)
    return _parse(lines, replica.name, node)


def _choose_files(replica: ReplicaDir, *, previous: bool) -> list[Path]:
    """Return the files of a run, oldest first.

    The previous run of a replica that does not run now is the one that just ended. The first
    failure comes before it, unless the run that failed first is the one shown.
    """
    if not previous:
        return _files(replica.path, "engine")
    chosen = _files(replica.path, "previous" if replica.is_running() else "engine")
    first = replica.path / "first-failure.log"
    if first.exists() and _first_line(first) not in [_first_line(path) for path in chosen]:
        return [first, *chosen]
    return chosen


def _files(directory: Path, stem: str) -> list[Path]:
    """Return the files of one log that exist, oldest first."""
    numbered = sorted(
        (path for path in directory.glob(f"{stem}.log.*") if path.suffix[1:].isdigit()),
        key=lambda path: -int(path.suffix[1:]),
    )
    newest = directory / f"{stem}.log"
    return [*numbered, newest] if newest.exists() else numbered


def _first_line(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.readline()
    except OSError:
        return b""


def _all_lines(files: Sequence[Path]) -> Iterator[str]:
    for path in files:
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            for line in file:
                yield line.decode("utf-8", "replace").rstrip("\n")


def _last_lines(files: Sequence[Path], num_lines: int) -> list[str]:
    """Return the last lines over all files, reading no more than it must."""
    lines: list[str] = []
    for path in reversed(files):
        missing = num_lines - len(lines)
        if missing <= 0:
            break
        with contextlib.suppress(FileNotFoundError):
            lines = _tail_file(path, missing) + lines
    return lines


def _tail_file(path: Path, num_lines: int) -> list[str]:
    with path.open("rb") as file:
        position = file.seek(0, os.SEEK_END)
        data = b""
        while position > 0 and data.count(b"\n") <= num_lines:
            step = min(_BLOCK_BYTES, position)
            position -= step
            file.seek(position)
            data = file.read(step) + data
    lines = data.decode("utf-8", "replace").split("\n")
    return [line for line in lines if line][-num_lines:]


def _parse(
    lines: Iterable[str], replica: str, node: str, last: datetime = _EPOCH
) -> Iterator[LogLine]:
    """Split off the times, which never run backwards: merging relies on that."""
    for line in lines:
        clock, _, message = line.partition(" ")
        try:
            last = max(last, datetime.fromisoformat(clock))
        except (ValueError, TypeError):
            message = line  # the rest of a line that was torn, by a full disk for example
        yield LogLine(time=last, node=node, replica=replica, message=message)


class LogFollower:
    """Reads one replica's present log and what is added to it, across rotation and restarts.

    The file being read stays open, so what was written before it was renamed or removed is not
    lost. Not to be called from two threads at once.
    """

    def __init__(self, replica: ReplicaDir, node: str) -> None:
        self._replica = replica
        self._node = node
        self._partial = b""
        self._descriptor: int | None = None
        self._last = _EPOCH

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def poll(self) -> list[LogLine]:
        """Return what was written since the last call; at first, all that is there.

        At most some megabytes at once: call again until there is nothing.
        """
        data = b""
        while len(data) < _FOLLOW_BYTES:
            if self._descriptor is None and not self._open_first():
                break
            assert self._descriptor is not None, "opened above"
            # Looked up before the read: if there is a newer file by then, this one is complete.
            newer = self._newer_file()
            block = os.read(self._descriptor, _BLOCK_BYTES)
            data += block
            if not block:
                if newer is None:
                    break
                self.close()
                self._open(newer)
        *complete, self._partial = (self._partial + data).split(b"\n")
        lines = (line.decode("utf-8", "replace") for line in complete if line)
        parsed = list(_parse(lines, self._replica.name, self._node, self._last))
        self._last = parsed[-1].time if parsed else self._last
        return parsed

    def _open(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def _open_first(self) -> bool:
        files = _files(self._replica.path, "engine")
        if files:
            self._open(files[0])
        return self._descriptor is not None

    def _newer_file(self) -> Path | None:
        """Return the file that follows the open one; None when that is the newest."""
        assert self._descriptor is not None, "only called while a file is open"
        own = os.fstat(self._descriptor)
        files = _files(self._replica.path, "previous") + _files(self._replica.path, "engine")
        for index, path in enumerate(files):
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), own):
                    return files[index + 1] if index + 1 < len(files) else None
        present = _files(self._replica.path, "engine")
        return present[0] if present else None
