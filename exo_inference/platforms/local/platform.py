"""`LocalPlatform`: makes the engine processes of this machine match one desired deployment.

The reconciler calls `apply` again and again; each call looks at the files of `replicas/`, asks the
engines for their health, takes the next safe step and returns what is so. Nothing needed for a
decision is kept in memory, so a controller may be killed at any line. The steps on single replicas
are in `lifecycle.py`; what to do is decided by pure functions (`rollout.py`, `restart_backoff.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform as machine
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from itertools import islice
from typing import Any

from exo_inference.engine_names import OWN_ENGINE
from exo_inference.engines import Engine, get_engine
from exo_inference.errors import PlatformError
from exo_inference.platforms.base import (
    DesiredDeployment,
    InstanceTypeInfo,
    LogLine,
    LogQuery,
    ObservedDeployment,
    ReplicaPhase,
)
from exo_inference.platforms.local.gpu_inventory import GpuInventory
from exo_inference.platforms.local.health import (
    Health,
    HealthHistory,
    check_health,
    read_measurements,
)
from exo_inference.platforms.local.host import Host, HostView, need_of
from exo_inference.platforms.local.lifecycle import Lifecycle, spec_hash
from exo_inference.platforms.local.logs import LogFollower, choose_lines, read_lines, tail_text
from exo_inference.platforms.local.observation import Sight, has_failed, observe
from exo_inference.platforms.local.placement import Placement
from exo_inference.platforms.local.processes import read_boot_id
from exo_inference.platforms.local.replica_dir import ReplicaDir, ReplicaFacts, list_replicas
from exo_inference.platforms.local.restart_backoff import decide_restart
from exo_inference.platforms.local.rollout import RolloutReplica, decide_rollout
from exo_inference.platforms.local.settings import LocalPlatformSettings
from exo_inference.platforms.local.simulation import Simulation, find_mismatch
from exo_inference.platforms.local.start_decision import (
    Wait,
    count_places,
    decide_start,
    find_standstill,
)
from exo_inference.platforms.local.stops import Part, StopHistory
from exo_inference.state_dir import StateDir

_DIAGNOSE_LINES = 200
_LOG_BATCH_LINES = 500
_FOLLOW_SECONDS = 0.25
_BUSY_SECONDS = 0.25
_IDLE_SECONDS = 1.0


_View = list[Sight]
"""All replicas of one deployment at one moment, oldest first."""


class LocalPlatform:
    """Engines as processes of this machine. One object per state directory and process.

    Args:
        state_dir: where everything is kept.
        engine: what every replica is a process of, a simulated one too; by default exo-engine.
        environment: the controller's own; None takes that of this process.
        simulation: GPU families that are offered without being there; by default none.
        host: where the machine's memory is read; by default that of this machine.
    """

    name = "local"
    rolls_back = False

    def __init__(
        self,
        state_dir: StateDir,
        *,
        settings: LocalPlatformSettings | None = None,
        engine: Engine | None = None,
        environment: Mapping[str, str] | None = None,
        simulation: Simulation | None = None,
        host: Host | None = None,
    ) -> None:
        self._state_dir = state_dir
        self._settings = settings or LocalPlatformSettings()
        self._engine = engine or get_engine(OWN_ENGINE)
        own = dict(os.environ if environment is None else environment)
        simulation = simulation or Simulation()
        inventory = GpuInventory(own, simulation.gpus)
        self._placement = Placement(state_dir, inventory)
        self._lifecycle = Lifecycle(
            state_dir, self._settings, self._engine, self._placement, own, simulation
        )
        self._host = host or Host()
        self._view: tuple[float, HostView] | None = None
        self._starting = asyncio.Lock()
        self._history = HealthHistory()
        self._stops = StopHistory()
        self._boot_id = read_boot_id()
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def apply(self, desired: DesiredDeployment) -> ObservedDeployment:
        """Take the next safe step towards `desired` and return what is so afterwards.

        Raises:
            PlatformError: the files of the replicas cannot be written.
        """
        async with self._locks[desired.uid], self._files_explained():
            self._lifecycle.reap()
            view = await self._look(desired)
            if await self._roll(desired, view):
                view = await self._look(desired)
            if await self._step(desired, view):
                view = await self._look(desired)
            return self._report(desired, view)

    @property
    def drain_seconds(self) -> float:
        """How long replicas that are removed may go on with their requests; then they are killed."""
        return self._settings.drain_grace_seconds

    async def delete(self, uid: str) -> bool:
        """Stop all replicas of a deployment and remove them; True when nothing is left.

        Raises:
            PlatformError: the files of the replicas cannot be written.
        """
        async with self._locks[uid], self._files_explained():
            self._lifecycle.reap()
            for facts in await self._load(uid):
                await self._lifecycle.drain(facts)
                await self._lifecycle.stop_or_remove(facts)
            return not await self._load(uid)

    async def deployments(self) -> set[str]:
        """Return the uids of all deployments of which anything is left."""
        return {facts.record.uid for facts in await self._load(None)}

    async def instance_types(self) -> list[InstanceTypeInfo]:
        """Return the families of this machine with what is free now; `cpu` comes last."""
        view = await self._look_at_machine(max_age_seconds=self._settings.view_seconds)
        return await self._placement.instance_types(view)

    async def measurements(self, replica: str) -> dict[str, Any] | None:
        """Return what the engine of a ready replica has measured; None where it does not say."""
        directory = self._state_dir.replicas_dir / replica
        return await read_measurements(directory, self._settings.health_timeout_seconds)

    async def logs(self, uid: str, query: LogQuery) -> AsyncIterator[LogLine]:
        """Yield log lines in order of time; with `follow`, until the caller stops."""
        node = machine.node()
        if query.follow and not query.previous:
            async for line in self._follow(uid, query, node):
                yield line
            return
        replicas = await asyncio.to_thread(self._choose, uid, query)
        lines = await asyncio.to_thread(read_lines, replicas, query, node)
        while batch := await asyncio.to_thread(lambda: list(islice(lines, _LOG_BATCH_LINES))):
            for line in batch:
                yield line

    async def _follow(self, uid: str, query: LogQuery, node: str) -> AsyncIterator[LogLine]:
        followers: dict[str, LogFollower] = {}
        first = True
        try:
            while True:
                lines = await asyncio.to_thread(self._poll_logs, uid, query, node, followers)
                for line in choose_lines(lines, query) if first else lines:
                    if query.since is None or line.time >= query.since:
                        yield line
                first = False
                await asyncio.sleep(_FOLLOW_SECONDS)
        finally:
            for follower in followers.values():
                follower.close()

    def _poll_logs(
        self, uid: str, query: LogQuery, node: str, followers: dict[str, LogFollower]
    ) -> list[LogLine]:
        replicas = {replica.name: replica for replica in self._choose(uid, query)}
        for name, replica in replicas.items():
            followers.setdefault(name, LogFollower(replica, node))
        lines: list[LogLine] = []
        for name, follower in list(followers.items()):
            while more := follower.poll():
                lines += more
            if name not in replicas:
                followers.pop(name).close()
        return sorted(lines, key=lambda line: line.time)

    def _choose(self, uid: str, query: LogQuery) -> list[ReplicaDir]:
        chosen = []
        for replica in list_replicas(self._state_dir.replicas_dir):
            record = replica.record()
            if record is None or record.uid != uid:
                continue
            if query.replica is None or query.replica == replica.name:
                chosen.append(replica)
        return chosen

    @contextlib.asynccontextmanager
    async def _files_explained(self) -> AsyncIterator[None]:
        """Turn errors of the file system, such as a full disk, into ours."""
        try:
            yield
        except OSError as error:
            raise PlatformError(
                f"cannot change the replicas in {self._state_dir.replicas_dir}: "
                f"{error.strerror or error}",
                hint="Check the free space and the owner of the state directory.",
            ) from error

    async def _load(self, uid: str | None) -> list[ReplicaFacts]:
        """Read all replicas of one deployment, or of all, oldest first."""
        return await asyncio.to_thread(self._lifecycle.load, uid)

    async def _look_at_machine(self, max_age_seconds: float = 0.0) -> HostView:
        """Return the machine with all replicas on it, as it was at most so long ago."""
        now = time.monotonic()
        if self._view is not None and now - self._view[0] < max_age_seconds:
            return self._view[1]
        facts = await self._load(None)
        paused = self._state_dir.paused_file.exists()
        view = await asyncio.to_thread(self._host.look, facts, paused=paused)
        self._view = (now, view)
        return view

    async def _look(self, desired: DesiredDeployment) -> _View:
        loaded = [
            await self._lifecycle.rename(facts, desired.name)
            for facts in await self._load(desired.uid)
        ]
        return list(await asyncio.gather(*(self._see(desired, facts) for facts in loaded)))

    async def _see(self, desired: DesiredDeployment, facts: ReplicaFacts) -> Sight:
        if facts.running:
            return await self._see_running(facts)
        self._history.forget(facts.name)
        self._stops.forget(facts.name)
        restart = decide_restart(
            facts,
            time.time(),
            self._boot_id,
            self._settings,
            restarted_at=desired.restarted_at,
        )
        failure = None
        if restart.crashed:
            directory = self._state_dir.replicas_dir / facts.name
            tail = await asyncio.to_thread(tail_text, directory, _DIAGNOSE_LINES)
            exit_code = facts.exit.exit_code if facts.exit else None
            failure = self._engine.diagnose(exit_code, tail)
        obstacle = await self._placement.find_obstacle(facts.record)
        obstacle = obstacle or find_mismatch(
            desired, self._placement.simulated(desired.spec.gpu_type)
        )
        message = obstacle.message if obstacle else self._lifecycle.obstacle(facts.name)
        wait = ""
        if not message and restart.wait_seconds <= 0:
            wait = await self._find_wait(facts)
        return Sight(
            facts,
            restart=restart,
            failure=failure,
            obstacle=message or wait,
            waits=bool(wait),
            final=obstacle is not None and obstacle.final,
        )

    async def _find_wait(self, facts: ReplicaFacts) -> str:
        """Say what of the machine a replica waits for; empty when nothing is in its way."""
        view = await self._look_at_machine(max_age_seconds=self._settings.view_seconds)
        decision = decide_start(view, facts.name, need_of(facts.record), self._settings)
        return decision.reason if isinstance(decision, Wait) else ""

    async def _start(self, desired: DesiredDeployment, sight: Sight) -> bool:
        """Start a replica if the machine has room for it now: one at a time decides."""
        facts = sight.facts
        async with self._starting:
            view = await self._look_at_machine()
            decision = decide_start(view, facts.name, need_of(facts.record), self._settings)
            if isinstance(decision, Wait):
                return False
            done = await self._lifecycle.start(desired, facts, sight.restart, decision)
            self._view = None
            return done

    async def _see_running(self, facts: ReplicaFacts) -> Sight:
        directory = self._state_dir.replicas_dir / facts.name
        stop = self._stops.look(facts.name, facts.process, time.monotonic())
        if stop is not None and stop.part is Part.ENGINE:
            health = Health(answered=False)  # not to be waited for
        else:
            health = await check_health(directory, self._settings.health_timeout_seconds)
        trend = self._history.record(facts.name, facts.run, health, time.monotonic())
        if health.ready and not facts.was_ready and facts.process is not None:
            facts = await self._lifecycle.mark_ready(facts)
        return Sight(facts, trend=trend, stop=stop)

    async def _roll(self, desired: DesiredDeployment, view: _View) -> bool:
        """Create and mark replicas as the rollout decides; True when anything was done."""
        spec = spec_hash(desired)
        replicas = [
            RolloutReplica(
                name=replica.name,
                current=replica.current,
                ready=replica.phase is ReplicaPhase.READY,
                draining=replica.phase is ReplicaPhase.DRAINING,
                created_at=sight.facts.record.created_at,
                waiting=replica.phase is ReplicaPhase.PENDING
                and (sight.waits or not sight.facts.record.gpus),
            )
            for sight in view
            for replica in [observe(sight, spec, self._settings)]
        ]
        settled = len(replicas) == desired.spec.replicas and all(
            r.current and r.ready for r in replicas
        )
        if settled:
            return False
        free_slots = await self._count_free_slots(desired, view)
        step = decide_rollout(replicas, desired.spec.replicas, free_slots)
        for sight in view:
            if sight.facts.name in step.drain:
                await self._lifecycle.drain(sight.facts)
        for _ in range(step.num_starts):
            await self._lifecycle.create(desired)
        return bool(step.drain or step.num_starts)

    async def _count_free_slots(self, desired: DesiredDeployment, view: _View) -> int:
        """Return how many more replicas could start, beside those that wait already."""
        machine = await self._look_at_machine()
        records, spec = [sight.facts.record for sight in view], spec_hash(desired)
        by_gpu = await self._placement.count_free_slots(desired, records)
        if not any(
            r.gpus and r.gpu_type == desired.spec.gpu_type and r.spec != spec for r in records
        ):
            # Replicas on other GPUs have none to give: the first new one waits for its own beside them.
            by_gpu = by_gpu or None
        num_waiting = sum(not sight.facts.running and not sight.facts.draining for sight in view)
        by_memory = max(0, count_places(machine, desired.need) - num_waiting)
        free_slots = by_memory if by_gpu is None else min(by_gpu, by_memory)
        # While nothing may start, nothing that serves goes for a successor.
        return max(1, free_slots) if find_standstill(machine, self._settings) else free_slots

    async def _step(self, desired: DesiredDeployment, view: _View) -> bool:
        """Take what each replica needs next; True when anything was done."""
        done = False
        for sight in view:
            facts = sight.facts
            if facts.draining:
                unused = facts.name in desired.unrouted or not facts.was_ready
                if unused or not facts.running:
                    done |= await self._lifecycle.stop_or_remove(facts)
            elif facts.running:
                await self._tend(sight)
            elif not sight.final and not has_failed(sight) and _is_due(sight):
                done |= await self._start(desired, sight)
        return done

    async def _tend(self, sight: Sight) -> None:
        """End a running replica that answers nothing any more; it is started again."""
        facts, stop, limits = sight.facts, sight.stop, self._settings
        silent = sight.trend.silent_seconds if sight.trend else 0.0
        stalled = sight.trend.stalled_seconds if sight.trend else 0.0
        if stop is not None and stop.seconds >= limits.stopped_seconds:
            if stop.part is Part.ENGINE:
                await self._lifecycle.kill(facts, f"{stop.reason}, and it was killed")
            else:
                self._lifecycle.wake_shim(facts)
        elif facts.was_ready and stalled >= limits.stalled_seconds:
            await self._lifecycle.kill(
                facts,
                f"the engine computed nothing for {stalled:.0f} s while it had work, and was killed",
            )
        elif facts.was_ready and silent >= limits.unresponsive_seconds:
            await self._lifecycle.kill(
                facts, "the engine did not answer its health check and was killed"
            )

    def _report(self, desired: DesiredDeployment, view: _View) -> ObservedDeployment:
        spec = spec_hash(desired)
        replicas = tuple(observe(sight, spec, self._settings) for sight in view)
        busy = any(
            replica.phase in (ReplicaPhase.STARTING, ReplicaPhase.DRAINING) for replica in replicas
        )
        waits = [
            max(0.05, sight.restart.wait_seconds)
            for sight in view
            if sight.restart is not None and not has_failed(sight)
        ]
        soonest = min([_BUSY_SECONDS if busy else _IDLE_SECONDS, *waits])
        return ObservedDeployment(replicas=replicas, next_check_seconds=soonest)


def _is_due(sight: Sight) -> bool:
    if sight.waits:
        return False
    return sight.restart is not None and sight.restart.wait_seconds <= 0
