"""Servers that hang are killed and started again; one that is adopted hands over its listener."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from exo_inference.liveness import answering_probes, probe
from exo_inference.state_dir import StateDir, is_stopped
from exo_inference.supervisor.server_process import RestartPolicy, ServerCommand, SupervisedProcess
from exo_inference.supervisor.supervisor import Supervisor, SupervisorSettings
from exo_inference.supervisor.watchdog import HangDetector, WatchPolicy

POLICY = WatchPolicy(interval_seconds=1, answer_seconds=2, stopped_seconds=5, silent_seconds=30)

# A server that answers its supervisor; "deaf" ends that, and goes on running.
SERVER = """
import asyncio, socket, sys
from pathlib import Path
from exo_inference.liveness import answering_probes
from exo_inference.local_settings import take_inherited_listener
root, mode = sys.argv[1:]
async def main():
    listener = take_inherited_listener()
    async with answering_probes(Path(root) / "run/gateway.live", listener):
        print("up", flush=True)
        if mode == "deaf":
            await asyncio.sleep(0.5)
            import time; time.sleep(3600)
        await asyncio.sleep(3600)
asyncio.run(main())
"""


def looks(*seen: tuple[bool | None, bool], seconds: float = 1.0) -> list[str]:
    detector = HangDetector(POLICY)
    return [detector.observe(answered=a, stopped=s, elapsed_seconds=seconds) for a, s in seen]


def test_server_that_answers_does_not_hang():
    assert not any(looks(*[(True, False)] * 100))


def test_stopped_server_hangs_after_five_seconds():
    *before, last = looks((True, False), *[(False, True)] * 5)
    assert not any(before)
    assert "stopped by a signal 5 s ago" in last


def test_server_that_goes_on_again_in_time_is_left_alone():
    assert not any(looks(*([(False, True)] * 4 + [(True, False)]) * 3))


def test_silent_server_hangs_after_half_a_minute():
    *before, last = looks((True, False), *[(False, False)] * 30)
    assert not any(before)
    assert "not answered for 30 s" in last


def test_server_of_an_older_version_that_never_answers_is_left_alone():
    assert not any(looks(*[(False, False)] * 1000))


def test_server_whose_socket_file_somebody_deleted_is_left_alone():
    assert not any(looks((True, False), *[(None, False)] * 1000))


def test_time_in_which_the_machine_stood_still_does_not_count():
    assert not any(looks((True, False), *[(False, False)] * 9, seconds=3600.0))
    assert looks((True, False), *[(False, False)] * 10, seconds=3600.0)[-1]


def test_is_stopped_reads_the_state_of_a_process():
    assert not is_stopped(os.getpid())
    assert not is_stopped(1 << 30)


async def test_answer_brings_the_very_socket_that_listens(tmp_path: Path):
    path = tmp_path / ("long" * 30) / "server.live"
    path.parent.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with answering_probes(path, listener):
            assert path.stat().st_mode & 0o777 == 0o600
            sign = await asyncio.to_thread(probe, path, 5.0)
            with sign.listener as taken:
                assert taken.getsockname() == listener.getsockname()
                listener.close()
                with socket.create_connection(taken.getsockname(), timeout=5):
                    taken.accept()[0].close()
            sign = await asyncio.to_thread(probe, path, 5.0)
            assert sign.listener is None  # it is closed: nothing else is handed over in its place
    assert not path.exists()
    assert probe(path, 1.0) is None


@pytest.fixture
async def server(tmp_path: Path):
    """Runs servers, as a supervisor does, on a port that is free."""
    state = StateDir(tmp_path / "state")
    state.create()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = probe.getsockname()[:2]
    policy = RestartPolicy(first_seconds=0.02, max_seconds=0.1, stable_seconds=0.5)
    quick = WatchPolicy(
        interval_seconds=0.05, answer_seconds=0.2, stopped_seconds=0.3, silent_seconds=3600
    )
    tasks = []

    def run(mode: str = "steady") -> SupervisedProcess:
        argv = (sys.executable, "-c", SERVER, str(state.root), mode)
        # On a busy machine a server that is well may be silent for half a second.
        watch = replace(quick, silent_seconds=0.5) if mode == "deaf" else quick
        process = SupervisedProcess(
            state, ServerCommand("gateway", argv, listen=address), policy, watch
        )
        tasks.append((process, asyncio.create_task(process.run())))
        return process

    yield run, state, address
    for process, _ in tasks:
        await process.stop(grace_seconds=0.1, hurry=asyncio.Event())
    for _, task in tasks:
        task.cancel()
    await asyncio.gather(*(task for _, task in tasks), return_exceptions=True)


async def pid_of(state: StateDir, other_than: int = 0) -> int:
    """Wait until the server answers, and is another one than that."""
    async with asyncio.timeout(60):
        while True:
            record = state.read_record("gateway")
            sign = await asyncio.to_thread(probe, state.live_socket("gateway"), 0.2)
            if sign is not None and sign.listener is not None:
                sign.listener.close()
            if record and record.alive and record.pid != other_than and sign is not None:
                return record.pid
            await asyncio.sleep(0.02)


async def test_stopped_server_is_killed_and_started_again(server, caplog):
    run, state, _ = server
    run()
    pid = await pid_of(state)
    os.kill(pid, signal.SIGSTOP)
    assert await pid_of(state, other_than=pid)
    assert f"gateway (pid {pid}) hangs: it was stopped by a signal" in caplog.text


async def test_server_whose_loop_is_stuck_is_killed_and_started_again(server, caplog):
    run, state, _ = server
    run("deaf")
    pid = await pid_of(state)
    assert await pid_of(state, other_than=pid)
    assert f"gateway (pid {pid}) hangs: it has not answered" in caplog.text


async def test_port_of_an_adopted_server_refuses_nobody_while_it_is_started_again(server):
    run, state, address = server
    first = run()
    pid = await pid_of(state)
    # The first supervisor is killed: it starts nothing any more, and its descriptors are closed.
    first._stopping = True
    first._close_listener()
    second = run()
    async with asyncio.timeout(60):
        await second.settled.wait()
    assert second.adopted
    os.kill(pid, signal.SIGKILL)
    for _ in range(200):  # from before its end is seen until after its restart
        with socket.create_connection(address, timeout=5):
            await asyncio.sleep(0.002)
    with contextlib.suppress(ProcessLookupError):
        assert await pid_of(state, other_than=pid)


async def test_server_killed_again_and_again_once_it_answers_is_started_at_once(server):
    """Kills from outside say nothing about its start: neither the wait grows nor is the port given up."""
    run, state, address = server
    run()
    pid = 0
    for _ in range(8):
        pid = await pid_of(state, other_than=pid)
        os.kill(pid, signal.SIGKILL)
        with socket.create_connection(address, timeout=5):
            pass
    await pid_of(state, other_than=pid)
    failure = state.read_failure("gateway")  # forgotten once it has run for half a second
    assert failure is None or failure.attempts == 1


async def test_supervisor_is_recorded_once_it_holds_what_adopted_servers_listen_on(server):
    """`up` waits for the record: a server killed right after it must leave somebody who listens."""
    run, state, address = server
    first = run()
    pid = await pid_of(state)
    first._stopping = True
    first._close_listener()
    os.kill(pid, signal.SIGSTOP)
    watching = WatchPolicy(answer_seconds=4.0)
    supervisor = Supervisor(state, [first.command], SupervisorSettings(watching=watching))
    (second,) = supervisor._servers
    task = asyncio.create_task(supervisor.run())
    try:
        async with asyncio.timeout(60):
            while not second.adopted:
                await asyncio.sleep(0.01)
            assert state.read_record("supervisor") is None
            os.kill(pid, signal.SIGCONT)
            while state.read_record("supervisor") is None:
                await asyncio.sleep(0.01)
        assert second._listener.getsockname() == address
    finally:
        supervisor.request_stop()
        await task
