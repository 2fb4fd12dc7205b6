"""Logs: merged by time, kept over restarts, rotated at a bound, and followed across all of that."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from exo_inference.platforms.base import LogLine, LogQuery, ReplicaPhase
from exo_inference.platforms.local.logs import LogFollower, read_lines
from exo_inference.platforms.local.replica_dir import ReplicaDir, ReplicaRecord
from exo_inference.platforms.local.shim import RotatingLog, set_aside

if TYPE_CHECKING:
    from tests.platforms.conftest import Rig

UID = "11111111-1111-4111-8111-111111111111"
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def replicas(tmp_path: Path) -> tuple[ReplicaDir, ReplicaDir]:
    return make(tmp_path, "a"), make(tmp_path, "b")


def make(parent: Path, name: str) -> ReplicaDir:
    return ReplicaDir.create(parent, ReplicaRecord(name, UID, "chat", "s", "cpu", 1, 0.0))


def write(path: Path, *entries: tuple[int, str]) -> None:
    """Write lines, each so many seconds after the start."""
    with path.open("a") as file:
        for seconds, text in entries:
            clock = (START + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            file.write(f"{clock} {text}\n")


def read(replicas: tuple[ReplicaDir, ...], **query: object) -> list[str]:
    asked = LogQuery(**{"tail": None, **query})  # type: ignore[arg-type]
    return [line.message for line in read_lines(replicas, asked, "node")]


def test_lines_of_all_replicas_are_merged_by_time(replicas: tuple[ReplicaDir, ReplicaDir]) -> None:
    write(replicas[0].path / "engine.log", (1, "a1"), (4, "a4"))
    write(replicas[1].path / "engine.log", (2, "b2"), (3, "b3"), (5, "b5"))
    assert read(replicas) == ["a1", "b2", "b3", "a4", "b5"]
    assert read(replicas, tail=2) == ["a4", "b5"]
    assert read(replicas, since=START + timedelta(seconds=3)) == ["b3", "a4", "b5"]
    assert read(replicas, since=START + timedelta(seconds=2), tail=2) == ["a4", "b5"]
    lines = list(read_lines(replicas, LogQuery(tail=1), "here"))
    assert lines == [LogLine(START + timedelta(seconds=5), "here", "b", "b5")]


def test_rotated_files_are_read_oldest_first(replicas: tuple[ReplicaDir, ReplicaDir]) -> None:
    directory = replicas[0].path
    write(directory / "engine.log.2", (1, "one"))
    write(directory / "engine.log.1", (2, "two"))
    write(directory / "engine.log", (3, "three"))
    assert read(replicas) == ["one", "two", "three"]
    assert read(replicas, tail=2) == ["two", "three"]


def test_tail_of_a_long_log_reads_over_block_borders(
    replicas: tuple[ReplicaDir, ReplicaDir],
) -> None:
    write(replicas[0].path / "engine.log", *((n, f"{n} " + "x" * 500) for n in range(1000)))
    numbers = [int(text.split()[0]) for text in read(replicas, tail=700)]
    assert numbers == list(range(300, 1000))


def test_previous_run_of_a_stopped_replica_is_the_one_that_ended(
    replicas: tuple[ReplicaDir, ReplicaDir],
) -> None:
    directory = replicas[0].path
    write(directory / "previous.log", (1, "run 1"))
    write(directory / "engine.log", (2, "run 2"))
    assert read(replicas, previous=True) == ["run 2"]
    lock = replicas[0].try_lock()
    assert lock is not None
    try:
        assert read(replicas, previous=True) == ["run 1"]
    finally:
        os.close(lock)


def test_previous_begins_with_the_first_failure_when_that_was_another_run(
    replicas: tuple[ReplicaDir, ReplicaDir],
) -> None:
    directory = replicas[0].path
    write(directory / "first-failure.log", (1, "the first failure"))
    write(directory / "engine.log", (2, "the last failure"))
    assert read(replicas, previous=True) == ["the first failure", "the last failure"]
    (directory / "engine.log").unlink()
    write(directory / "engine.log", (1, "the first failure"))
    assert read(replicas, previous=True) == ["the first failure"]


def test_torn_line_is_shown_with_the_time_before_it(
    replicas: tuple[ReplicaDir, ReplicaDir],
) -> None:
    write(replicas[0].path / "engine.log", (1, "whole"))
    with (replicas[0].path / "engine.log").open("ab") as file:
        file.write(b"2026-01-\n\xff\xfe not text\n")
    lines = list(read_lines(replicas, LogQuery(tail=None), "node"))
    assert [line.message for line in lines] == ["whole", "2026-01-", "\ufffd\ufffd not text"]
    assert {line.time for line in lines} == {START + timedelta(seconds=1)}


@pytest.fixture
def in_replica(
    replicas: tuple[ReplicaDir, ReplicaDir], monkeypatch: pytest.MonkeyPatch
) -> ReplicaDir:
    monkeypatch.chdir(replicas[0].path)
    return replicas[0]


def test_log_is_rotated_at_its_bound_and_the_oldest_goes(in_replica: ReplicaDir) -> None:
    log = RotatingLog(Path("engine.log"), max_bytes=1000, max_files=3)
    for number in range(200):
        log.write(b"line %d" % number)
    files = sorted(path.name for path in in_replica.path.glob("engine.log*"))
    assert files == ["engine.log", "engine.log.1", "engine.log.2"]
    assert all((in_replica.path / name).stat().st_size <= 1000 for name in files)
    shown = read((in_replica,))
    assert shown == [f"line {number}" for number in range(200 - len(shown), 200)]


def test_restart_keeps_the_log_of_the_run_before_and_no_older(in_replica: ReplicaDir) -> None:
    for run in (1, 2, 3):
        set_aside(3)
        log = RotatingLog(Path("engine.log"), max_bytes=1000, max_files=3)
        log.write(b"run %d" % run)
    assert "run 3" in (in_replica.path / "engine.log").read_text()
    assert "run 2" in (in_replica.path / "previous.log").read_text()


def test_lines_that_a_full_disk_swallows_are_counted(
    in_replica: ReplicaDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RotatingLog(Path("engine.log"), max_bytes=1000, max_files=3)
    log.write(b"before")
    with monkeypatch.context() as full:
        full.setattr(os, "write", _disk_full)
        log.write(b"lost")
        log.write(b"lost too")
    log.write(b"after")
    assert read((in_replica,)) == [
        "before",
        "exo-shim: 2 lines were lost: the disk was full",
        "after",
    ]


def _disk_full(_descriptor: int, _data: bytes) -> int:
    raise OSError(28, "No space left on device")


def test_follower_loses_and_repeats_nothing_over_rotations_and_a_restart(
    in_replica: ReplicaDir,
) -> None:
    follower = LogFollower(in_replica, "node")
    seen: list[str] = []
    number = 0
    for run in range(3):
        set_aside(3)
        log = RotatingLog(Path("engine.log"), max_bytes=2000, max_files=3)
        for _ in range(30):
            for _ in range(10):
                log.write(b"line %d" % number)
                number += 1
            if run != 1 or number % 50 == 0:
                seen += [line.message for line in follower.poll()]
    follower.close()
    assert seen == [f"line {index}" for index in range(number)]


def test_follower_reads_the_rest_of_a_removed_replica(
    replicas: tuple[ReplicaDir, ReplicaDir],
) -> None:
    replica = replicas[0]
    write(replica.path / "engine.log", (1, "first"))
    follower = LogFollower(replica, "node")
    assert [line.message for line in follower.poll()] == ["first"]
    write(replica.path / "engine.log", (2, "last words"))
    replica.remove()
    assert [line.message for line in follower.poll()] == ["last words"]
    assert follower.poll() == []
    follower.close()


async def test_logs_of_a_crash_can_be_read_after_the_restart(rig: Rig) -> None:
    desired = rig.desired(1, "--log-lines", "3")
    replica = (await rig.until_ready(desired)).replicas[0]
    before = await collect(rig, LogQuery(tail=None))
    assert before[-3:] == ["line 0", "line 1", "line 2"]
    (rig.directory(replica.name) / "crash").write_text("70")
    await rig.until(desired, lambda now: now.replicas[0].restarts == 1)
    await rig.until_ready(desired)
    previous = await collect(rig, LogQuery(tail=1, previous=True))
    assert previous == ["exo-engine: error: it crashed on request"]
    present = await collect(rig, LogQuery(tail=None))
    assert "exo-engine: error: it crashed on request" not in present
    kept = (rig.directory(replica.name) / "first-failure.log").read_text()
    assert "it crashed on request" in kept


async def test_follow_shows_what_a_new_replica_says(rig: Rig) -> None:
    await rig.until_ready(rig.desired(1, "--label", "first"))
    lines: asyncio.Queue[LogLine] = asyncio.Queue()

    async def follow() -> None:
        async for line in rig.platform.logs(UID, LogQuery(tail=1, follow=True)):
            lines.put_nowait(line)

    task = asyncio.create_task(follow(), name="follow")
    first = await asyncio.wait_for(lines.get(), 5)
    await rig.until_ready(rig.desired(2, "--label", "first"))
    second = await asyncio.wait_for(lines.get(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert first.replica != second.replica
    assert second.message == "hello from first"
    assert second.node


async def test_logs_of_one_replica_and_of_an_unknown_deployment(rig: Rig) -> None:
    observed = await rig.until_ready(rig.desired(2))
    name = observed.replicas[1].name
    lines = [line async for line in rig.platform.logs(UID, LogQuery(tail=None, replica=name))]
    assert {line.replica for line in lines} == {name}
    assert [line async for line in rig.platform.logs("nobody", LogQuery(tail=None))] == []
    assert observed.replicas[0].phase is ReplicaPhase.READY


async def collect(rig: Rig, query: LogQuery) -> list[str]:
    return [line.message async for line in rig.platform.logs(UID, query)]
