"""Which processes are others', and what is rejected for them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.cpu.processes import peak_mb, started
from benchmarks.cpu.quiet import (
    LARGEST_SHARE,
    Measured,
    Process,
    Watch,
    read_pace,
    read_processes,
    stolen_ticks,
    ticks_of_others,
)


def write_stat(root: Path, pid: int, parent: int, session: int, ticks: tuple[int, ...]) -> None:
    (root / str(pid)).mkdir()
    words = ["S", parent, 0, session, *[0] * 7, *ticks, *[0] * 5]
    text = f"{pid} (a (name) with) brackets) " + " ".join(map(str, words))
    (root / str(pid) / "stat").write_text(text)


def test_processes_are_read_whatever_their_names_hold(tmp_path: Path) -> None:
    write_stat(tmp_path, 7, 1, 5, (1, 20, 300, 4000))
    (tmp_path / "self").mkdir()
    (tmp_path / "8").mkdir()  # has ended meanwhile
    assert read_processes(tmp_path) == {7: Process(1, 5, 4321)}


def test_others_are_all_but_us_our_children_and_our_sessions() -> None:
    processes = {
        1: Process(0, 1, 1),
        10: Process(1, 10, 100),
        11: Process(10, 10, 1_000),  # a child of ours
        12: Process(11, 12, 10_000),  # and one of that
        13: Process(1, 20, 100_000),  # lost its parent, but is in a session that we began
        14: Process(1, 14, 2),
        15: Process(99, 15, 4),  # its parent ended meanwhile
    }
    assert ticks_of_others(processes, own=10, sessions={20}) == 7


def test_a_process_that_ended_leaves_its_time_with_its_parent() -> None:
    before = {1: Process(0, 1, 10), 5: Process(1, 5, 7)}
    after = {1: Process(0, 1, 19)}  # 5 ended after 2 more
    assert ticks_of_others(after, own=99) - ticks_of_others(before, own=99) == 2


def test_time_of_the_hypervisor_is_read() -> None:
    assert stolen_ticks("cpu  1 2 3 4 5 6 7 88 0 0\ncpu0 1\n") == 88
    assert stolen_ticks("cpu 1 2 3 4\n") == 0


@pytest.mark.parametrize(("others", "is_quiet"), [(0.0, True), (0.08, True), (0.0801, False)])
def test_what_others_may_use(others: float, is_quiet: bool) -> None:
    assert LARGEST_SHARE == 0.08
    assert Measured(1, others).is_quiet is is_quiet


def test_a_disturbed_measurement_is_made_again_and_the_last_one_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch, shares, made = Watch(), [0.5, 0.09, 0.02, 0.7], []

    def measure(run: object) -> Measured[int]:
        made.append(run)
        return Measured(len(made), shares[len(made) - 1])

    monkeypatch.setattr(watch, "measure", measure)
    assert watch.measure_quietly(lambda: 0, attempts=5) == Measured(3, 0.02)
    made.clear()
    assert watch.measure_quietly(lambda: 0, attempts=2) == Measured(2, 0.09)


@pytest.mark.parametrize(("pace", "is_quiet"), [(1.0, True), (0.85, True), (0.8499, False)])
def test_how_slow_the_machine_may_be(pace: float, is_quiet: bool) -> None:
    assert Measured(1, 0.0, pace).is_quiet is is_quiet


def test_the_pace_is_the_slower_of_before_and_after_of_the_best_of_all() -> None:
    looks = [3.0] * 9 + [4.0]  # the first ones
    looks += [4.0, 2.0]  # slower after
    looks += [5.0, 5.0]  # faster than ever
    looks += [4.0, 5.0]
    watch = Watch(iter(looks).__next__)
    assert [watch.measure(lambda: 0).pace for _ in range(3)] == [0.5, 1.0, 0.8]


def test_a_watch_of_a_shared_host_takes_any_pace() -> None:
    looks = [4.0] * 10 + [1.0, 1.0]
    measured = Watch(iter(looks).__next__, slowest_pace=0.0).measure(lambda: 0)
    assert measured.pace == 0.25
    assert measured.is_quiet is (measured.others <= LARGEST_SHARE)


def test_the_pace_is_read_of_all_cores() -> None:
    assert read_pace() > 0


def test_a_process_that_we_started_is_not_others(tmp_path: Path) -> None:
    watch = Watch()
    command = [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"]
    with started(command, tmp_path / "log", watch, has_pipes=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        assert watch.sessions == {process.pid}
        assert os.getsid(process.pid) == process.pid
        assert 1 < peak_mb(process.pid) < 1000
        everything = read_processes()
        without = ticks_of_others(
            {process.pid: everything[process.pid]}, os.getpid(), watch.sessions
        )
        assert without == 0
    assert process.returncode is not None
    assert watch.sessions == set()


def test_what_was_started_is_stopped_while_the_pace_is_read(tmp_path: Path) -> None:
    """With what it started itself; it goes on while something is measured."""
    script = (
        "import itertools, subprocess, sys, threading;"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True);"
        "busy = threading.Thread(target=lambda: all(True for _ in itertools.count()), daemon=True);"
        "busy.start(); print(child.pid, flush=True); sys.stdin.read(); child.kill()"
    )
    seen: list[set[str]] = []

    def look() -> float:
        seen.append(set().union(*map(states_of, pids)))
        return 1.0

    watch = Watch(look)
    command = [sys.executable, "-c", script]
    with started(command, tmp_path / "log", watch, has_pipes=True) as process:
        assert process.stdout is not None
        pids = [process.pid, int(process.stdout.readline())]
        within = watch.measure(lambda: set().union(*map(states_of, pids))).result
        after = set().union(*map(states_of, pids))
    assert all(states == {"T"} for states in seen)
    assert len(seen) == 12
    assert "T" not in within | after


def states_of(pid: int) -> set[str]:
    """Return the states of a process's threads."""
    threads = Path(f"/proc/{pid}/task").glob("*/stat")
    return {each.read_text().rpartition(")")[2].split()[0] for each in threads}


def test_what_a_process_left_behind_is_stopped_with_it(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys; child = subprocess.Popen(['sleep', '600']);"
        "print(child.pid, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script]
    with started(command, tmp_path / "log", Watch(), has_pipes=True) as process:
        assert process.stdout is not None
        child = os.pidfd_open(int(process.stdout.readline()))
    ended, _, _ = select.select([child], [], [], 60.0)
    os.close(child)
    assert ended == [child]


_STARTS = """
import sys, time
from pathlib import Path
from benchmarks.cpu.processes import started, stop_on_signals
from benchmarks.cpu.quiet import Watch

stop_on_signals()
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
with started([sys.executable, "-c", deaf], Path(sys.argv[1]), Watch(), has_pipes=True) as process:
    process.stdout.readline()
    print(process.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_who_is_ended_twice_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    """The first signal has it wait for what it started, which does not listen; the second has it wait no longer."""
    command = [sys.executable, "-c", _STARTS, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as bench:
        assert bench.stdout is not None
        child = int(bench.stdout.readline())
        ended = time.monotonic() + 20
        while bench.poll() is None and time.monotonic() < ended:
            bench.send_signal(getattr(signal, name))
            time.sleep(0.5)
        assert bench.returncode == -signal.SIGINT
    assert not Path(f"/proc/{child}").exists()
