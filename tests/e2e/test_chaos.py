"""`kill -9` at random moments, fifty times, under load: nothing acknowledged is lost, nothing hangs.

Set EXO_CHAOS_SEED to repeat a run's choices (its timing is the machine's), EXO_CHAOS_KILLS to
change how many.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from exo_inference import AsyncClient
from exo_inference.state_dir import StateDir, process_start_ticks

from .chaos_writes import BLOCKS, Writer
from .conftest import Stack, processes_of, run_exo, start_stack
from .kills import Kill, describe, kill_and_wait
from .load import Load, Outcome

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

NUM_KILLS = int(os.environ.get("EXO_CHAOS_KILLS", "50"))
SETTLE_SECONDS = 120.0
ROLL_EVERY = 12


@dataclass
class Killer:
    """Kills random processes of one control plane."""

    state: StateDir
    uid: str
    chance: random.Random
    kills: list[Kill] = field(default_factory=list)

    async def run(self, client: AsyncClient) -> None:
        """Kill until enough were killed; now and then roll the deployment in between."""
        while len(self.kills) < NUM_KILLS:
            await asyncio.sleep(self.chance.uniform(0.3, 3.0))
            target = self._choose()
            if target is None:
                continue
            name, part, pid = target
            with contextlib.suppress(ProcessLookupError):
                self.kills.append(await kill_and_wait(pid, name, part))
                print(
                    f"  {len(self.kills):3d}/{NUM_KILLS} kill -9 {part} of {name} ({pid})",
                    flush=True,
                )
                if len(self.kills) % ROLL_EVERY == 0:
                    await self._roll(client)

    async def _roll(self, client: AsyncClient) -> None:
        """Replace every engine by a rolling update. Whether it is acknowledged does not matter."""
        flags = [BLOCKS, f"--max-num-seqs={16 + len(self.kills)}"]
        with contextlib.suppress(Exception):
            await client.deployments.update(self.uid, engine_parameters=flags)

    def _choose(self) -> tuple[str, str, int] | None:
        kind = self.chance.choice(("controller", "gateway", "engine"))
        if kind != "engine":
            record = self.state.read_record(kind)
            return (kind, "server", record.pid) if record and record.alive else None
        engines = [replica for replica in self._replicas() if self._may_be_killed(replica)]
        if not engines:
            return None
        replica = self.chance.choice(engines)
        part = self.chance.choice(("engine", "engine", "core", "shim"))
        try:  # its deployment may be scaled down or deleted meanwhile, or it may end
            process = json.loads((replica / "process.json").read_text())
            children = Path(f"/proc/{process['engine_pid']}/task/{process['engine_pid']}/children")
            pids = children.read_text().split() if part == "core" else []
        except OSError:
            return None
        if part == "core":
            return (replica.name, part, int(self.chance.choice(pids))) if pids else None
        pid, ticks = process[f"{part}_pid"], process[f"{part}_start_ticks"]
        return (replica.name, part, pid) if process_start_ticks(pid) == ticks else None

    def _replicas(self) -> list[Path]:
        return sorted(p.parent for p in self.state.replicas_dir.glob("[!.]*/process.json"))

    def _may_be_killed(self, replica: Path) -> bool:
        """Leave one ready replica of the deployment under load, or nobody could answer."""
        with contextlib.suppress(OSError, ValueError, StopIteration):
            routes = json.loads(self.state.routes_file.read_text())["routes"]
            route = next(r for r in routes if r["deployment-id"] == self.uid)
            ready = {r["name"] for r in route["replicas"]}
            alive = {name for name in ready if self._is_up(self.state.replicas_dir / name)}
            return len(alive - {replica.name}) > 0
        return False

    def _is_up(self, replica: Path) -> bool:
        with contextlib.suppress(OSError, ValueError, KeyError):
            process = json.loads((replica / "process.json").read_text())
            return all(
                process_start_ticks(process[f"{part}_pid"]) == process[f"{part}_start_ticks"]
                for part in ("engine", "shim")
            )
        return False


@pytest.fixture
def chaos_stack(tmp_path: Path) -> Iterator[Stack]:
    stack = start_stack(tmp_path / "chaos")
    yield stack
    run_exo(stack.state_dir, "down", check=False)
    assert processes_of(stack.state_dir) == {}, "down left processes behind"
    assert [*stack.state_dir.rglob("*.sock"), *(stack.state_dir / "run").iterdir()] == []


def replica_of(request_id: str, log: str) -> str | None:
    """Return which replica had a request, as the gateway logged it at its end."""
    match = re.search(
        rf'^.*"request_id": "{re.escape(request_id)}".*"broken".*$', log, re.MULTILINE
    )
    return json.loads(match[0])["replica"] if match else None


def unexplained(failures: list[Outcome], kills: list[Kill], log: str) -> list[Outcome]:
    """Return the failures that were not in flight on a process when it was killed."""
    found = []
    for failure in failures:
        replica = replica_of(failure.id, log)
        gateway = any(kill.cut(failure) for kill in kills if kill.name == "gateway")
        # A connection made while the gateway is down waits for it, so none is refused.
        if failure.refused or not (
            gateway or any(kill.met(failure) for kill in kills if kill.name == replica)
        ):
            found.append(failure)
    return found


def assert_no_orphans(state: StateDir) -> None:
    """Every process of the state directory is known: a server, a shim, an engine, or its child.

    A server that is being started is recorded a moment after it runs, so a look may be too early.
    """
    deadline = time.monotonic() + SETTLE_SECONDS
    while strays := find_strays(state):
        assert time.monotonic() < deadline, f"orphans: {strays}"
        time.sleep(0.2)


def find_strays(state: StateDir) -> dict[int, str]:
    records = [state.read_record(name) for name in ("supervisor", "controller", "gateway")]
    known = {record.pid for record in records if record}
    for path in state.replicas_dir.glob("[!.]*/process.json"):
        with contextlib.suppress(FileNotFoundError):  # its deployment is being deleted
            process = json.loads(path.read_text())
            known |= {process["shim_pid"], process["engine_pid"]}
    strays = {}
    for pid, command in processes_of(state.root).items():
        ancestors = [pid]
        while ancestors[-1] > 1 and not known & set(ancestors):
            ancestors.append(parent_of(ancestors[-1]))
        if not known & set(ancestors):
            strays[pid] = command
    return strays


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


async def start_deployment(client: AsyncClient) -> str:
    model = await client.models.create("exo/tiny-chat")
    await client.models.wait_until_ready(model.reference.id, timeout=60)
    created = await client.deployments.create(
        "steady", model="exo/tiny-chat", gpu_type="cpu", replicas=2, engine_parameters=[BLOCKS]
    )
    await client.deployments.wait_until_ready(created.reference.id, timeout=600)
    return created.reference.id


async def restart_supervisor(
    stack: Stack, state: StateDir, variables: dict[str, str] | None = None
) -> None:
    """Kill the supervisor, too; `up` must adopt what runs and double nothing."""
    names = ("controller", "gateway")
    async with asyncio.timeout(SETTLE_SECONDS):  # the last kill may have been of one of them
        while not all((record := state.read_record(name)) and record.alive for name in names):
            await asyncio.sleep(0.05)
    before = {name: state.read_record(name).pid for name in names}
    os.kill(state.read_record("supervisor").pid, signal.SIGKILL)
    await asyncio.to_thread(stack.exo, "up", variables=variables)
    assert {name: state.read_record(name).pid for name in names} == before


async def test_kill_9_at_random_moments_loses_nothing(chaos_stack: Stack) -> None:
    seed = int(os.environ.get("EXO_CHAOS_SEED", random.randrange(1 << 32)))
    print(f"\n  EXO_CHAOS_SEED={seed}")
    chance = random.Random(seed)
    state, zero = StateDir(chaos_stack.state_dir), time.time()
    async with AsyncClient(state_dir=state.root) as client:
        uid = await start_deployment(client)
        load = Load(f"{chaos_stack.gateway}/{uid}/v1", await client.deployments.reveal_api_key(uid))
        writer = Writer(client, random.Random(chance.random()))
        killer = Killer(state, uid, random.Random(chance.random()))
        stop = asyncio.Event()
        async with load.running(), asyncio.TaskGroup() as group:
            group.create_task(writer.run(stop), name="writer")
            await killer.run(client)
            stop.set()
        print(f"  requests: {load.summary()}")
        print(f"  writes: {dict(writer.counts)}")
        print(f"  kills: {dict(Counter(kill.part for kill in killer.kills))}")
        log = (state.logs_dir / "gateway.log").read_text()
        wrong = [
            describe(failure, killer.kills, state, zero)
            for failure in unexplained(load.failures, killer.kills, log)
        ]
        assert not wrong, f"EXO_CHAOS_SEED={seed}\n" + "\n".join(wrong)
        await writer.check({uid}, seconds=SETTLE_SECONDS)
        await restart_supervisor(chaos_stack, state)
        assert_no_orphans(state)
        afterwards = Load(load.url, load.key)
        async with afterwards.running():
            await asyncio.sleep(1)
        assert afterwards.failures == []
        assert afterwards.outcomes
