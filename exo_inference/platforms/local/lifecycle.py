"""The steps that can be taken on one replica: create, start, drain, stop, remove.

Every step may be repeated and may be cut off by a kill at any line; the next look at the files
shows how far it got. `LocalPlatform` says which step is due, this module takes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import secrets
import signal
import time
from collections.abc import Mapping
from dataclasses import astuple, replace
from pathlib import Path

from exo_inference.engines import Engine, ReplicaCommand
from exo_inference.errors import PlatformError
from exo_inference.host_memory import usable_cores
from exo_inference.platforms.base import DesiredDeployment
from exo_inference.platforms.gpu_families import CPU_FAMILY
from exo_inference.platforms.local.environment import engine_environment
from exo_inference.platforms.local.placement import Placement
from exo_inference.platforms.local.processes import (
    Children,
    end_strays,
    read_boot_id,
    signal_shim,
    spawn_shim,
)
from exo_inference.platforms.local.replica_dir import (
    SIMULATION_NAME,
    SOCKET_NAME,
    Launch,
    ReplicaDir,
    ReplicaFacts,
    ReplicaRecord,
    list_replicas,
    sweep,
)
from exo_inference.platforms.local.restart_backoff import RestartDecision
from exo_inference.platforms.local.settings import LocalPlatformSettings
from exo_inference.platforms.local.simulation import Simulation, simulation_document
from exo_inference.platforms.local.start_decision import Go
from exo_inference.simulated_gpus import SimulatedGpus
from exo_inference.state_dir import StateDir

logger = logging.getLogger(__name__)


def spec_hash(desired: DesiredDeployment) -> str:
    """Return what tells replicas of different specs apart; name and count do not matter."""
    parts = (
        desired.spec.model,
        desired.model_path,
        desired.spec.gpu_type,
        desired.spec.gpu_count,
        desired.engine,
        desired.spec.engine.version,
        list(desired.spec.engine_parameters),
        *([desired.roll] if desired.roll else []),
    )
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


class Lifecycle:
    """Takes steps on replicas. One object per platform."""

    def __init__(
        self,
        state_dir: StateDir,
        settings: LocalPlatformSettings,
        engine: Engine,
        placement: Placement,
        environment: Mapping[str, str],
        simulation: Simulation,
    ) -> None:
        self._replicas_dir = state_dir.replicas_dir
        self._home = state_dir.cache_dir
        self._settings = settings
        self._engine = engine
        self._placement = placement
        self._environment = environment
        self._simulation = simulation
        self._children = Children()
        self._obstacles: dict[str, str] = {}
        self._boot_id = read_boot_id()
        self._swept = False

    def reap(self) -> None:
        """Collect shims of this process that have ended."""
        self._children.reap()

    def load(self, uid: str | None) -> list[ReplicaFacts]:
        """Read all replicas of one deployment, or of all, oldest first."""
        if not self._swept:
            sweep(self._replicas_dir)
            self._swept = True
        loaded = (replica.facts(uid) for replica in list_replicas(self._replicas_dir))
        found = [facts for facts in loaded if facts is not None]
        return sorted(found, key=lambda facts: (facts.record.created_at, facts.name))

    def obstacle(self, name: str) -> str:
        """Return why the last attempt to start a replica came to nothing, else an empty text."""
        return self._obstacles.get(name, "")

    async def create(self, desired: DesiredDeployment) -> None:
        """Make a new replica of the desired spec; the next step starts it."""
        record = ReplicaRecord(
            name=f"{desired.name[:63]}-{secrets.token_hex(4)}",
            uid=desired.uid,
            deployment=desired.name,
            spec=spec_hash(desired),
            gpu_type=desired.spec.gpu_type,
            gpu_count=desired.spec.gpu_count,
            created_at=time.time(),
            memory=astuple(desired.need) if desired.need is not None else (),
        )
        await asyncio.to_thread(ReplicaDir.create, self._replicas_dir, record)
        logger.info("created replica %s", record.name)

    async def rename(self, facts: ReplicaFacts, deployment: str) -> ReplicaFacts:
        """Let a replica say what its deployment is called by now. Idempotent."""
        if facts.record.deployment == deployment:
            return facts
        record = replace(facts.record, deployment=deployment)
        replica = ReplicaDir(self._replicas_dir / facts.name)
        with contextlib.suppress(
            OSError
        ):  # a name is no reason to do nothing; the next look tries again
            await asyncio.to_thread(replica.write_record, record)
        return replace(facts, record=record)

    async def start(
        self,
        desired: DesiredDeployment,
        facts: ReplicaFacts,
        restart: RestartDecision | None,
        go: Go,
    ) -> bool:
        """Start a replica that does not run; False when it cannot be started now."""
        record = await self._placement.allocate(facts.record)
        if record is None:
            return False
        try:
            launch = await self._make_launch(desired, facts, record, restart, go)
            pid = await asyncio.to_thread(self._spawn, facts, launch)
        except PlatformError as error:
            self._obstacles[facts.name] = error.text
            return False
        except OSError as error:
            self._obstacles[facts.name] = f"the engine could not be started: {error}"
            logger.warning("cannot start replica %s: %s", facts.name, error)
            return False
        self._obstacles.pop(facts.name, None)
        if pid is None:
            return False
        self._children.add(pid)
        logger.info("started replica %s, run %d, shim %d", facts.name, launch.run, pid)
        return True

    async def _make_launch(
        self,
        desired: DesiredDeployment,
        facts: ReplicaFacts,
        record: ReplicaRecord,
        restart: RestartDecision | None,
        go: Go,
    ) -> Launch:
        directory = self._replicas_dir / facts.name
        gpus = self._placement.simulated(record.gpu_type)
        environment = engine_environment(
            self._environment,
            directory=directory,
            home=self._home,
            gpus=() if gpus else record.gpus,
            # The small model of a simulated replica keeps up with any GPU.
            num_threads=1 if gpus else await self._num_threads(desired),
        )
        command = ReplicaCommand(
            model_path=Path(desired.model_path),
            served_model_name=desired.spec.model,
            socket=SOCKET_NAME,
            gpu_type=desired.spec.gpu_type,
            gpu_count=desired.spec.gpu_count,
            parameters=desired.spec.engine_parameters,
            kv_cache_bytes=go.cache_bytes,
        )
        if gpus is not None:
            command = await asyncio.to_thread(self._simulate, desired, gpus, command, directory)
        return Launch(
            run=facts.run + 1,
            failures=restart.failures if restart else 0,
            boot_id=self._boot_id,
            spawned_at=time.time(),
            argv=self._engine.command(command),
            environment=environment,
            grace_seconds=self._settings.drain_grace_seconds,
            log_max_bytes=self._settings.log_max_bytes,
            log_max_files=self._settings.log_max_files,
            restarts=facts.restarts + (restart is not None and restart.crashed),
            nice=self._settings.engine_nice,
            memory_bytes=go.memory_bytes,
        )

    async def _num_threads(self, desired: DesiredDeployment) -> int:
        """Return the threads of one engine: replicas on the CPU share the cores."""
        num_sharing = 1
        if desired.spec.gpu_type == CPU_FAMILY:
            num_sharing = await self._placement.count_cpu_replicas(desired)
        return max(1, usable_cores() // num_sharing)

    def _simulate(
        self,
        desired: DesiredDeployment,
        gpus: SimulatedGpus,
        command: ReplicaCommand,
        directory: Path,
    ) -> ReplicaCommand:
        """Write what a replica pretends to be; return how the small model is started as that."""
        document = simulation_document(desired, gpus, self._simulation)
        ReplicaDir(directory).write_simulation(document)
        stand_in = self._simulation.stand_in
        return replace(command, model_path=stand_in, simulation=SIMULATION_NAME)

    def _spawn(self, facts: ReplicaFacts, launch: Launch) -> int | None:
        """Start the shim with the replica's lock; None when another run was faster."""
        replica = ReplicaDir(self._replicas_dir / facts.name)
        self._home.mkdir(mode=0o700, exist_ok=True)
        lock = replica.try_lock()
        if lock is None:
            return None
        try:
            end_strays(replica.path)
            replica.write_launch(launch)
            return spawn_shim(replica.path, lock)
        finally:
            os.close(lock)

    async def mark_ready(self, facts: ReplicaFacts) -> ReplicaFacts:
        """Remember that the present run was ready, so that it is drained before it is stopped."""
        replica = ReplicaDir(self._replicas_dir / facts.name)
        await asyncio.to_thread(replica.mark_ready, facts.run)
        return replace(facts, ready_run=facts.run)

    async def drain(self, facts: ReplicaFacts) -> None:
        """Take a replica out of service for good. Idempotent; nothing is stopped yet."""
        if not facts.draining:
            replica = ReplicaDir(self._replicas_dir / facts.name)
            await asyncio.to_thread(replica.mark_draining)
            logger.info("draining replica %s", facts.name)

    async def stop_or_remove(self, facts: ReplicaFacts) -> bool:
        """Ask a running replica to finish, or remove one that has; True when it is gone."""
        if facts.running:
            if facts.process is not None:
                signal_shim(facts.process, signal.SIGTERM)
            return False
        return await asyncio.to_thread(self._remove, facts.name)

    def _remove(self, name: str) -> bool:
        replica = ReplicaDir(self._replicas_dir / name)
        lock = replica.try_lock()
        if lock is None:
            return False
        try:
            end_strays(replica.path)
            replica.remove()
        finally:
            os.close(lock)
        self._obstacles.pop(name, None)
        logger.info("removed replica %s", name)
        return True

    async def kill(self, facts: ReplicaFacts, reason: str) -> None:
        """End a replica that does not answer, and say why; it counts as a crash and starts again."""
        if facts.process is None:
            return
        if facts.kill_reason != reason:
            replica = ReplicaDir(self._replicas_dir / facts.name)
            await asyncio.to_thread(replica.mark_killed, facts.run, reason)
            logger.warning("killing replica %s: %s", facts.name, reason)
        signal_shim(facts.process, signal.SIGQUIT)
        signal_shim(facts.process, signal.SIGCONT)  # it does nothing while it is stopped itself

    def wake_shim(self, facts: ReplicaFacts) -> None:
        """Let a shim go on that a signal has stopped: its engine serves, and must not wait for its log."""
        if facts.process is not None:
            logger.warning("waking the shim of replica %s: a signal has stopped it", facts.name)
            signal_shim(facts.process, signal.SIGCONT)
