"""Processes of a replica that a signal has stopped: they end no connection, and answer nothing for ever."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from exo_inference.platforms.base import ObservedDeployment, ReplicaPhase
from exo_inference.platforms.local.replica_dir import Process, ReplicaDir
from exo_inference.platforms.local.shim import find_processes
from exo_inference.platforms.local.stops import Part, StopHistory
from exo_inference.state_dir import is_stopped, process_start_ticks

from .conftest import LONG_BACK_OFF, Rig


def process_of(rig: Rig, name: str) -> Process:
    process = ReplicaDir(rig.directory(name)).process()
    assert process is not None
    return process


async def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    async with asyncio.timeout(5):
        while not is_stopped(pid):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("part", ["main", "child"])
async def test_stopped_engine_is_replaced_and_the_reason_is_told(rig: Rig, part: str) -> None:
    rig.new_platform(stopped_seconds=3600)
    desired = rig.desired(1, "--child")
    [replica] = (await rig.until_ready(desired)).replicas
    process = process_of(rig, replica.name)
    others = set(find_processes(rig.directory(replica.name))) - {
        process.shim_pid,
        process.engine_pid,
    }
    pid = process.engine_pid if part == "main" else others.pop()
    await stop(pid)
    said = f"process {pid} of the engine was stopped by a signal (SIGSTOP)"
    [seen] = (await rig.platform.apply(desired)).replicas
    assert seen.phase is ReplicaPhase.STARTING, "it gets no more requests from the first look on"
    assert seen.details.startswith(f"{said}; it is started again after")
    rig.new_platform(stopped_seconds=0.1, **LONG_BACK_OFF)
    down = await rig.until(desired, lambda now: now.replicas[0].phase is ReplicaPhase.BACKOFF)
    assert f"{said}, and it was killed. It crashed once" in down.replicas[0].details
    rig.new_platform()

    def is_new(observed: ObservedDeployment) -> bool:
        [one] = observed.replicas
        return one.phase is ReplicaPhase.READY and one.pid != replica.pid

    assert (await rig.until(desired, is_new)).replicas[0].restarts == 1


async def test_engine_that_was_killed_gets_no_requests_while_it_ends(rig: Rig) -> None:
    """It has answered a moment ago, and a short silence is else no reason to take it out of service."""
    desired = rig.desired()
    [replica] = (await rig.until_ready(desired)).replicas
    directory = ReplicaDir(rig.directory(replica.name))
    directory.mark_killed(process_of(rig, replica.name).run, "it was killed")
    [seen] = (await rig.platform.apply(desired)).replicas
    assert (seen.phase, seen.details) == (ReplicaPhase.STARTING, "it was killed")


async def test_engine_that_goes_on_in_time_is_left_alone(rig: Rig) -> None:
    rig.new_platform(stopped_seconds=60.0)
    desired = rig.desired()
    [replica] = (await rig.until_ready(desired)).replicas
    await stop(process_of(rig, replica.name).engine_pid)
    [seen] = (await rig.platform.apply(desired)).replicas
    assert seen.phase is ReplicaPhase.STARTING
    os.kill(process_of(rig, replica.name).engine_pid, signal.SIGCONT)
    [again] = (await rig.until_ready(desired)).replicas
    assert (again.pid, again.restarts) == (replica.pid, 0)


@pytest.mark.parametrize("also_engine", [False, True], ids=["alone", "with its engine"])
async def test_stopped_shim_is_woken(rig: Rig, also_engine: bool) -> None:
    rig.new_platform(stopped_seconds=0.2)
    desired = rig.desired()
    [replica] = (await rig.until_ready(desired)).replicas
    process = process_of(rig, replica.name)
    await stop(process.shim_pid)
    if also_engine:
        await stop(process.engine_pid)

    def is_well(observed: ObservedDeployment) -> bool:
        [one] = observed.replicas
        is_new = one.pid != replica.pid
        return one.phase is ReplicaPhase.READY and (
            is_new if also_engine else not is_stopped(process.shim_pid)
        )

    [seen] = (await rig.until(desired, is_well)).replicas
    assert seen.restarts == (1 if also_engine else 0)


def test_process_with_a_pid_used_again_is_not_looked_at() -> None:
    ticks = process_start_ticks(os.getpid())
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    try:
        os.waitpid(child, os.WUNTRACED)
        history = StopHistory()
        right = process_start_ticks(child)
        ours = Process(1, os.getpid(), ticks, child, right, 0.0)
        found = history.look("r", ours, 10.0)
        assert found is not None
        assert (found.part, found.pid, found.seconds) == (Part.ENGINE, child, 0.0)
        again = history.look("r", ours, 12.5)
        assert again is not None
        assert again.seconds == 2.5
        assert history.look("r", Process(1, child, 1, child, 1, 0.0), 13.0) is None
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
