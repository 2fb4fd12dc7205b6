"""Which replica gets which GPUs. The records of the replicas are the only book that is kept.

A replica holds its GPUs from its first start until its directory is gone, crashes included. One
control plane knows only its own replicas: two on one machine do not see each other's.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from exo_inference.engine_names import GPU_ENGINE
from exo_inference.planner import Gpu
from exo_inference.platforms.base import DesiredDeployment, InstanceTypeInfo
from exo_inference.platforms.gpu_families import CPU_FAMILY, describe_gpu
from exo_inference.platforms.local.gpu_inventory import (
    SIMULATED_PREFIX,
    GpuDevice,
    GpuInventory,
)
from exo_inference.platforms.local.host import HostView
from exo_inference.platforms.local.replica_dir import ReplicaDir, ReplicaRecord, list_replicas
from exo_inference.platforms.replica_memory import HostRoom, format_size
from exo_inference.processor_speed import machine_cpu
from exo_inference.simulated_gpus import FLAG, SimulatedGpus
from exo_inference.state_dir import StateDir


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a replica cannot be placed. `final`: waiting does not help."""

    message: str
    final: bool


class Placement:
    """Hands out the GPUs of this machine."""

    def __init__(self, state_dir: StateDir, inventory: GpuInventory) -> None:
        self._state_dir = state_dir
        self._replicas_dir = state_dir.replicas_dir
        self._inventory = inventory
        self._lock = asyncio.Lock()

    async def find_obstacle(self, record: ReplicaRecord) -> Obstacle | None:
        """Say why a replica cannot be placed now; None when it can, or is already."""
        simulated = self._inventory.simulated(record.gpu_type)
        if record.gpus and simulated is None and is_simulated(record):
            text = (
                f"its {record.gpu_type} were simulated, and this control plane was started without "
                f"them. Run `down` and `up {FLAG} {record.gpu_type}=N`, or delete the deployment"
            )
            return Obstacle(text, final=True)
        if record.gpus:
            return None
        if record.gpu_type == CPU_FAMILY:
            if record.gpu_count == 1:
                return None
            text = f"a replica on the CPU has a gpu-count of 1, not {record.gpu_count}"
            return Obstacle(text, final=True)
        gpus = await self._inventory.list()
        family = [gpu for gpu in gpus if gpu.family == record.gpu_type]
        if len(family) < record.gpu_count:
            return Obstacle(_describe_lack(record, gpus, len(family)), final=True)
        free = _free(family, await self._records())
        if len(free) < record.gpu_count:
            text = (
                f"waiting for a free GPU: {record.gpu_count} {record.gpu_type} needed, "
                f"{len(free)} of {len(family)} free"
            )
            return Obstacle(text, final=False)
        return None

    def simulated(self, family: str) -> SimulatedGpus | None:
        """Return what a simulated family stands for; None for every other family."""
        return self._inventory.simulated(family)

    async def allocate(self, record: ReplicaRecord) -> ReplicaRecord | None:
        """Give a replica its GPUs and record that; None when there are too few."""
        if record.gpus or record.gpu_type == CPU_FAMILY:
            return record
        async with self._lock:
            gpus = await self._inventory.list()
            family = [gpu for gpu in gpus if gpu.family == record.gpu_type]
            free = _free(family, await self._records())
            if len(free) < record.gpu_count:
                return None
            chosen = replace(record, gpus=tuple(gpu.uuid for gpu in free[: record.gpu_count]))
            directory = ReplicaDir(self._replicas_dir / record.name)
            await asyncio.to_thread(directory.write_record, chosen)
            return chosen

    async def count_free_slots(
        self, desired: DesiredDeployment, own: Sequence[ReplicaRecord]
    ) -> int | None:
        """Return how many more replicas have free GPUs now; None on the CPU, which needs none.

        `own` are the deployment's replicas; those that wait for a GPU have a claim already.
        """
        if desired.spec.gpu_type == CPU_FAMILY:
            return None
        family = [
            gpu for gpu in await self._inventory.list() if gpu.family == desired.spec.gpu_type
        ]
        free = _free(family, await self._records())
        num_waiting = sum(1 for record in own if not record.gpus)
        return max(0, len(free) // max(1, desired.spec.gpu_count) - num_waiting)

    async def count_cpu_replicas(self, desired: DesiredDeployment) -> int:
        """Return how many replicas share the cores once all of `desired` run."""
        others = sum(
            1
            for record in await self._records()
            if record.gpu_type == CPU_FAMILY and record.uid != desired.uid
        )
        return others + max(1, desired.spec.replicas)

    async def instance_types(self, view: HostView) -> list[InstanceTypeInfo]:
        """Return the families of the machine; `cpu` comes last."""
        gpus = await self._inventory.list()
        records = await self._records()
        totals = Counter(gpu.family for gpu in gpus)
        free = Counter(gpu.family for gpu in _free(gpus, records))
        types = [
            _describe_family(family, total, free[family], _smallest(family, gpus))
            for family, total in sorted(totals.items())
        ]
        room = view.room
        cpu = await asyncio.to_thread(machine_cpu, room.total_bytes, self._state_dir)
        types.append(_describe_cpu(records, room, cpu))
        return [replace(each, room=room) for each in types]

    async def _records(self) -> list[ReplicaRecord]:
        return await asyncio.to_thread(self._read_records)

    def _read_records(self) -> list[ReplicaRecord]:
        records = (replica.record() for replica in list_replicas(self._replicas_dir))
        return [record for record in records if record is not None]


def _free(gpus: Sequence[GpuDevice], records: Sequence[ReplicaRecord]) -> list[GpuDevice]:
    taken = {uuid for record in records for uuid in record.gpus}
    return [gpu for gpu in gpus if gpu.uuid not in taken]


def _describe_lack(record: ReplicaRecord, gpus: Sequence[GpuDevice], num_found: int) -> str:
    if num_found:
        return (
            f"a replica needs {record.gpu_count} {record.gpu_type}, "
            f"and this machine has {num_found}. Choose a smaller gpu-count"
        )
    families = ", ".join([*sorted({gpu.family for gpu in gpus}), CPU_FAMILY])
    return f"this machine has no {record.gpu_type}; it has: {families}"


def is_simulated(record: ReplicaRecord) -> bool:
    """Whether a replica holds GPUs that are not there."""
    return any(uuid.startswith(SIMULATED_PREFIX) for uuid in record.gpus)


def _describe_family(family: str, total: int, free: int, gpu: GpuDevice) -> InstanceTypeInfo:
    text = f"{gpu.name}, {gpu.memory_mib} MiB"
    if gpu.simulates is None:
        return InstanceTypeInfo(
            family, total, free, text, gpu=describe_gpu(gpu.name, gpu.memory_mib)
        )
    return InstanceTypeInfo(
        family,
        total,
        free,
        f"{text} (simulated)",
        gpu=gpu.simulates.gpu,
        engine=GPU_ENGINE,
        simulated=True,
    )


def _describe_cpu(records: Sequence[ReplicaRecord], room: HostRoom, cpu: Gpu) -> InstanceTypeInfo:
    """Return the CPU: its cores, those that no replica computes on, and the memory that is left."""
    used = sum(1 for record in records if record.gpu_type == CPU_FAMILY)
    taken = sum(room.taken_by(uid) for uid in room.claimed)
    left = format_size(max(0, room.capacity_bytes - taken))
    text = (
        f"{room.num_cores} cores, shared by all replicas without a GPU; {left} of "
        f"{format_size(room.total_bytes)} of memory are left for replicas"
    )
    free = max(0, room.num_cores - used)
    return InstanceTypeInfo(CPU_FAMILY, room.num_cores, free, text, gpu=cpu, largest_node=1)


def _smallest(family: str, gpus: Sequence[GpuDevice]) -> GpuDevice:
    return min((gpu for gpu in gpus if gpu.family == family), key=lambda gpu: gpu.memory_mib)
