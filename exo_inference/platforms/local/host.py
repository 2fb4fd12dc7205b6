"""The machine as replicas share it: its memory, its pressure, its cores, and every replica on it. Reads only.

`LocalPlatform` looks before it starts anything and when it is asked what there is; what follows from
it is decided by `start_decision.py`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from exo_inference.host_memory import (
    HostMemory,
    Pressure,
    read_host_memory,
    read_pressure,
    sum_private_bytes,
    usable_cores,
)
from exo_inference.platforms.gpu_families import CPU_FAMILY
from exo_inference.platforms.local.replica_dir import ReplicaFacts, ReplicaRecord
from exo_inference.platforms.replica_memory import (
    STAND_IN_BYTES,
    HostRoom,
    ReplicaNeed,
    guess_need,
)


@dataclass(frozen=True, slots=True)
class HostReplica:
    """One replica on the machine.

    Attributes:
        claim_bytes: what it was started with, while it runs.
        held_bytes: what its processes hold now.
        seconds_starting: since it was started, while it runs and is not ready; None otherwise.
    """

    name: str
    uid: str
    need: ReplicaNeed
    running: bool = False
    draining: bool = False
    claim_bytes: int = 0
    held_bytes: int = 0
    seconds_starting: float | None = None
    simulated: bool = False

    @property
    def taken_bytes(self) -> int:
        """What it has, or may still take of what it was promised."""
        return max(self.claim_bytes, self.held_bytes) if self.running else 0


@dataclass(frozen=True, slots=True)
class HostView:
    """The machine at one moment."""

    memory: HostMemory
    pressure: Pressure | None = None
    num_cores: int = 1
    replicas: tuple[HostReplica, ...] = ()
    paused: bool = False

    @property
    def room(self) -> HostRoom:
        """Return the same as admission counts with it: by deployment."""
        held: dict[str, int] = {}
        claimed: dict[str, int] = {}
        for replica in self.replicas:
            held[replica.uid] = held.get(replica.uid, 0) + replica.held_bytes
            claimed[replica.uid] = claimed.get(replica.uid, 0) + replica.taken_bytes
        memory = self.memory
        return HostRoom(memory.total_bytes, memory.free_bytes, held, claimed, self.num_cores)


@dataclass(frozen=True, slots=True)
class Host:
    """Where the machine is looked at.

    Attributes:
        root: of the file system that tells of it; tests lay out their own.
        cores: that replicas may use.
    """

    root: Path = field(default_factory=lambda: Path("/"))
    cores: int = field(default_factory=usable_cores)

    def look(self, replicas: Sequence[ReplicaFacts], *, paused: bool = False) -> HostView:
        """Return the machine with these replicas on it. Reads /proc; for a thread."""
        sessions = {
            facts.process.engine_pid for facts in replicas if facts.running and facts.process
        }
        held = sum_private_bytes(sessions)
        return HostView(
            memory=read_host_memory(self.root),
            pressure=read_pressure(self.root),
            num_cores=self.cores,
            replicas=tuple(_host_replica(facts, held) for facts in replicas),
            paused=paused,
        )


def _host_replica(facts: ReplicaFacts, held: dict[int, int]) -> HostReplica:
    is_starting = facts.running and not facts.was_ready and not facts.draining
    return HostReplica(
        name=facts.name,
        uid=facts.record.uid,
        need=need_of(facts.record),
        running=facts.running,
        draining=facts.draining,
        claim_bytes=facts.launch.memory_bytes if facts.launch is not None else 0,
        held_bytes=held.get(facts.process.engine_pid, 0) if facts.process is not None else 0,
        seconds_starting=_seconds_running(facts) if is_starting else None,
        simulated=facts.record.gpu_type != CPU_FAMILY,
    )


def _seconds_running(facts: ReplicaFacts) -> float:
    """Return how long a run is on, by the kernel's count since boot: the clock may be set meanwhile."""
    ticks = facts.process.shim_start_ticks if facts.process is not None else None
    if ticks is None:
        return 0.0  # just started
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


def need_of(record: ReplicaRecord) -> ReplicaNeed:
    """Return what a replica needs; a guess for one that an older version made."""
    if len(record.memory) == 3:
        return ReplicaNeed(*record.memory)
    return guess_need(0) if record.gpu_type == CPU_FAMILY else ReplicaNeed(STAND_IN_BYTES)
