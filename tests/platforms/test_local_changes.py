"""Changes that must not be felt: updates and scaling under load, and controllers that are killed."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from exo_inference.platforms.base import DesiredDeployment, ReplicaPhase
from tests.desired_deployments import altered

if TYPE_CHECKING:
    from tests.platforms.conftest import Rig

DRIVER = Path(__file__).with_name("chaos_driver.py")


class Traffic:
    """Clients behind a gateway in miniature: it routes by its table and retries as ours does."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.table: list[str] = []
        self.answers: Counter[str] = Counter()
        self._stop = asyncio.Event()

    async def reconcile(self, desired: DesiredDeployment) -> bool:
        """Apply once, then publish the ready replicas; True when all is as desired."""
        observed = await self._rig.platform.apply(desired)
        self.table = [r.name for r in observed.replicas if r.phase is ReplicaPhase.READY]
        self.unrouted = frozenset(r.name for r in observed.replicas if r.name not in self.table)
        current = [r for r in observed.replicas if r.current and r.name in self.table]
        return len(current) == desired.spec.replicas == len(observed.replicas)

    async def settle(self, desired: DesiredDeployment) -> None:
        self.unrouted: frozenset[str] = frozenset()
        while not await self.reconcile(altered(desired, unrouted=self.unrouted)):
            await asyncio.sleep(0.05)

    async def client(self) -> None:
        while not self._stop.is_set():
            self.answers[await self._request()] += 1

    async def _request(self) -> str:
        for _ in range(3):
            if not self.table:
                return "no replica"
            replica = random.choice(self.table)
            try:
                answer = await self._ask(replica)
            except (FileNotFoundError, ConnectionRefusedError):
                continue
            if b"x-exo-draining" in answer:
                continue
            return answer.split(b"\r\n")[0].decode() or "dropped"
        return "gave up"

    async def _ask(self, replica: str) -> bytes:
        descriptor = os.open(self._rig.directory(replica), os.O_PATH)
        try:
            reader, writer = await asyncio.open_unix_connection(
                f"/proc/self/fd/{descriptor}/engine.sock"
            )
        finally:
            os.close(descriptor)
        writer.write(b"GET /work/0.03 HTTP/1.1\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer

    def stop(self) -> None:
        self._stop.set()


@pytest.mark.slow
async def test_updates_and_scaling_drop_no_request(rig: Rig) -> None:
    traffic = Traffic(rig)
    await traffic.settle(rig.desired(2, "--label", "one"))
    async with asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(traffic.client(), name=f"client-{number}")
        await traffic.settle(rig.desired(2, "--label", "two", "--start-seconds", "0.3"))
        await traffic.settle(rig.desired(4, "--label", "two", "--start-seconds", "0.3"))
        await traffic.settle(rig.desired(1, "--label", "two", "--start-seconds", "0.3"))
        await traffic.settle(rig.desired(1, "--label", "three"))
        traffic.stop()
    assert set(traffic.answers) == {"HTTP/1.1 200 X"}
    assert traffic.answers.total() > 50


async def test_update_to_a_broken_engine_drops_no_request(rig: Rig) -> None:
    traffic = Traffic(rig)
    await traffic.settle(rig.desired(2, "--label", "good"))
    broken = rig.desired(2, "--exit-code", "78")
    async with asyncio.TaskGroup() as group:
        group.create_task(traffic.client(), name="client")
        for _ in range(20):
            await traffic.reconcile(replace(broken, unrouted=traffic.unrouted))
            await asyncio.sleep(0.03)
        assert len(traffic.table) == 2
        await traffic.settle(rig.desired(2, "--label", "good"))
        traffic.stop()
    assert set(traffic.answers) == {"HTTP/1.1 200 X"}


@pytest.mark.parametrize(
    "num_kills", [1, pytest.param(50, marks=[pytest.mark.chaos, pytest.mark.timeout(600)])]
)
async def test_killed_controller_leaves_no_orphan_and_no_double(rig: Rig, num_kills: int) -> None:
    """Kill it at random moments of scaling and updating; the next one finds all and goes on."""
    chance = random.Random(num_kills)
    for _ in range(num_kills):
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(DRIVER), str(rig.state_dir.root), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"running\n"
        await asyncio.sleep(chance.uniform(0.0, 0.6))
        process.kill()
        await process.wait()
    rig.new_platform()
    desired = rig.desired(2, "--child", "--label", "end")
    observed = await rig.until_ready(desired)
    assert len(rig.processes()) == 2 * 3  # shim, engine and its child, each
    assert {r.pid for r in observed.replicas} <= set(rig.processes())
    names = {path.name for path in rig.state_dir.replicas_dir.iterdir()}
    assert names == {r.name for r in observed.replicas}
    while not await rig.platform.delete(desired.uid):
        await asyncio.sleep(0.02)
    assert rig.processes() == []
