"""Whether all replicas together fit into the memory of the one machine they share. Pure.

`deployment.py` asks before a change is recorded, and the store once more inside the transaction that
records it, with the deployments as they then are: what was admitted is the reservation, so that two
changes at once never both take the last room. Families of a cluster say nothing of a machine; there
the scheduler judges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from exo_inference.controller.admission.problems import Issue, refuse
from exo_inference.planner import Plan
from exo_inference.platforms.base import InstanceTypeInfo
from exo_inference.platforms.replica_memory import (
    PROCESS_BYTES,
    STAND_IN_BYTES,
    HostRoom,
    ReplicaNeed,
    Share,
    choose_cache,
    count_fitting,
    format_size,
    guess_need,
    left_bytes,
    read_need,
    tokenizer_bytes,
)
from exo_inference.resources import MEMORY_ANNOTATION, InferenceDeployment, InferenceModel, Resource
from exo_inference.resources.settled_spec import spec_before, with_spec_before
from exo_inference.wire import PlanProblem

CPU_FAMILY = "cpu"

Guard = Callable[[Sequence[Resource]], None]
"""Judges a write inside its transaction, by all objects of the kind; raises Refused."""


@dataclass(frozen=True, slots=True)
class Reservations:
    """The machine and everything that was admitted to it.

    Attributes:
        room: None where no machine is shared: on a cluster.
        shares: of all deployments that are to stay, with what each was admitted with.
        on_cpu: replicas of each deployment that compute on the CPU, by its uid.
    """

    room: HostRoom | None = None
    shares: tuple[Share, ...] = ()
    on_cpu: Mapping[str, int] = field(default_factory=dict)

    def beside(self, uid: str | None) -> tuple[Share, ...]:
        """Return what the others were admitted with."""
        return tuple(share for share in self.shares if share.uid != uid)

    def planned(self, uid: str | None) -> int:
        """Return what a deployment itself was admitted with."""
        return sum(share.planned_bytes for share in self.shares if share.uid == uid)

    def with_deployments(
        self, deployments: Iterable[InferenceDeployment], sizes: Mapping[str, int]
    ) -> Reservations:
        """Return the same machine with these deployments on it.

        Args:
            deployments: all there are.
            sizes: bytes of the models' files, by name.
        """
        staying = [d for d in deployments if d.metadata.deletion_timestamp is None]
        shares = tuple(_share(each, sizes) for each in staying)
        on_cpu = {
            each.metadata.uid: each.spec.replicas
            for each in staying
            if each.spec.gpu_type == CPU_FAMILY
        }
        return replace(self, shares=shares, on_cpu=on_cpu)


def read_reservations(
    families: Sequence[InstanceTypeInfo],
    deployments: Sequence[InferenceDeployment],
    models: Sequence[InferenceModel],
) -> Reservations:
    """Return the machine that the families are on, and what was admitted to it."""
    room = next((each.room for each in families if each.room is not None), None)
    if room is None:
        return Reservations()
    return Reservations(room).with_deployments(deployments, model_sizes(models))


def model_sizes(models: Sequence[InferenceModel]) -> dict[str, int]:
    """Return the bytes of the models' files, by name."""
    return {model.spec.source: model.status.size_bytes for model in models}


def need_of(deployment: InferenceDeployment, model_bytes: int) -> ReplicaNeed:
    """Return what a replica of a deployment was admitted with; a guess where that was not recorded."""
    recorded = read_need(deployment.metadata.annotations.get(MEMORY_ANNOTATION, ""))
    if recorded is not None:
        return recorded
    if deployment.spec.gpu_type != CPU_FAMILY:
        return ReplicaNeed(STAND_IN_BYTES)
    return guess_need(model_bytes)


def _share(deployment: InferenceDeployment, sizes: Mapping[str, int]) -> Share:
    need = need_of(deployment, sizes.get(deployment.spec.model, 0))
    before = spec_before(deployment)
    if before is not None:  # until the new one serves, that one may come back
        then = need_of(with_spec_before(deployment, before), sizes.get(before.model, 0))
        need = max(need, then, key=lambda each: each.least_bytes)
    return Share(deployment.metadata.uid, need, deployment.spec.replicas)


def is_guess(found: Plan | None, family: InstanceTypeInfo) -> bool:
    """Whether nothing was planned, so that the need follows the size of the model's files as it is known."""
    computes_here = family.gpu is not None and family.gpu.vendor == "cpu"
    return computes_here and (found is None or found.basis is None)


def planned_need(found: Plan | None, family: InstanceTypeInfo, model_bytes: int) -> ReplicaNeed:
    """Return what one replica takes of the machine's memory, by its plan."""
    if family.gpu is None or family.gpu.vendor != "cpu":
        return ReplicaNeed(STAND_IN_BYTES)
    if found is None or found.basis is None:
        return guess_need(model_bytes)
    parts = [part for part in found.components if part.is_in_budget]
    processes = PROCESS_BYTES + tokenizer_bytes(found.basis.setting.model.vocab_size)
    fixed = processes + sum(part.high for part in parts if part.name != "kv_cache")
    asked = found.parameters
    if asked.kv_cache_memory_bytes is not None or asked.num_gpu_blocks_override is not None:
        cache = max(0, found.available_kv_bytes_per_gpu)
        return ReplicaNeed(fixed, cache, cache)
    block = max(1, found.kv_block_size)
    blocks = -(-found.basis.setting.max_model_len // block) * found.max_num_seqs
    most = int(blocks * block * found.kv_bytes_per_token)
    return ReplicaNeed(fixed, min(found.needed_kv_bytes_per_gpu, most), most)


def with_room_left(
    families: Sequence[InstanceTypeInfo], reservations: Reservations, uid: str | None
) -> tuple[InstanceTypeInfo, ...]:
    """Return the families with the memory that is left for one more replica on the CPU."""
    if reservations.room is None:
        return tuple(families)
    left = max(1, left_bytes(reservations.room, reservations.beside(uid)) - PROCESS_BYTES)
    return tuple(
        replace(each, gpu=each.gpu.with_memory(min(left, each.gpu.reported_bytes)))
        if each.gpu is not None and each.gpu.vendor == "cpu"
        else each
        for each in families
    )


@dataclass(frozen=True, slots=True)
class ReservationRequest:
    """One deployment that asks for memory of the machine.

    Attributes:
        reservations: the machine, and what was admitted to it.
        uid: of the deployment; None for a new one.
        replicas: how many of them.
        offered: the families of the machine.
        model_bytes: of the model's files, 0 where nobody knows.
    """

    reservations: Reservations
    uid: str | None
    replicas: int
    offered: tuple[InstanceTypeInfo, ...] = ()
    model_bytes: int = 0

    def families(self) -> tuple[InstanceTypeInfo, ...]:
        """Return the families with what is left of the machine's memory beside all others.

        Nothing is taken of what is left by a deployment that is stopped, which is judged by the whole machine.
        """
        if self.replicas == 0:
            return with_room_left(self.offered, replace(self.reservations, shares=()), self.uid)
        return with_room_left(self.offered, self.reservations, self.uid)

    def need(self, found: Plan | None, gpu_type: str) -> ReplicaNeed | None:
        """Return what one replica takes by its plan; None where no machine is shared."""
        family = next((each for each in self.offered if each.family == gpu_type), None)
        if self.reservations.room is None or family is None:
            return None
        return planned_need(found, family, self.model_bytes)

    def is_guess(self, found: Plan | None, gpu_type: str) -> bool:
        """Whether `need` is a guess, which is not to be recorded."""
        return any(each.family == gpu_type and is_guess(found, each) for each in self.offered)

    def share(self, need: ReplicaNeed) -> Share:
        """Return what the deployment asks for altogether."""
        return Share(self.uid or "", need, self.replicas)

    def cache_bytes(self, need: ReplicaNeed) -> int:
        """Return the size of the KV cache as the platform would give it; 0 where it was asked for."""
        if self.reservations.room is None or need.most_cache_bytes <= need.cache_bytes:
            return 0
        replicas = max(1, self.replicas)
        left = left_bytes(self.reservations.room, self.reservations.beside(self.uid))
        return choose_cache(need, left - replicas * need.least_bytes, replicas)


def find_shortage(reservations: Reservations, wanted: Share) -> Issue | None:
    """Say why so many replicas do not fit beside what was admitted; None where they do.

    A change that takes no more than before is never refused.
    """
    room, others = reservations.room, reservations.beside(wanted.uid)
    if room is None or wanted.planned_bytes <= reservations.planned(wanted.uid):
        return None
    most = count_fitting(room, others, wanted.need)
    if wanted.replicas <= most:
        return None
    left = format_size(max(0, left_bytes(room, others)))
    replicas = "1 replica needs" if wanted.replicas == 1 else f"{wanted.replicas} replicas need"
    each = "" if wanted.replicas == 1 else f" ({format_size(wanted.need.least_bytes)} each)"
    fitting = f"at most {most} fit" if most else "not one fits"
    text = (
        f"{replicas} {format_size(wanted.planned_bytes)} of this machine's memory{each}, and {left} "
        f"of {format_size(room.total_bytes)} are left beside what was admitted before: {fitting}"
    )
    return Issue(text, "$['replicas']", text, 412)


def describe_ways_out(reservations: Reservations, wanted: Share) -> tuple[str, ...]:
    """Return what to ask for instead, one line each."""
    room = reservations.room
    most = 0 if room is None else count_fitting(room, reservations.beside(wanted.uid), wanted.need)
    fewer = (f"ask for {most} or fewer replicas",) if most else ()
    return (
        *fewer,
        "give each replica less, as with --max-model-len, --max-num-seqs or --kv-cache-memory-bytes",
        "scale down or delete other deployments",
        "use --force: replicas that do not fit wait until there is room",
    )


def warning(code: str, detail: str) -> PlanProblem:
    """Return something about the number of replicas that refuses nothing."""
    return PlanProblem(code=code, detail=detail, refuses=False, location="$['replicas']")


def find_cpu_oversubscription(reservations: Reservations, wanted: Share) -> list[PlanProblem]:
    """Warn of more replicas on the CPU than the machine has cores."""
    room = reservations.room
    if room is None:
        return []
    others = sum(count for uid, count in reservations.on_cpu.items() if uid != wanted.uid)
    total = others + wanted.replicas
    if total <= room.num_cores or wanted.replicas == 0:
        return []
    cores = "1 core" if room.num_cores == 1 else f"{room.num_cores} cores"
    detail = (
        f"{total} replicas on the CPU share {cores}: each computes with one thread and gets a part of "
        "a core, so more replicas serve no more requests"
    )
    return [warning("cores", detail)]


def make_guard(
    reservations: Reservations, wanted: Share, sizes: Mapping[str, int], title: str
) -> Guard | None:
    """Return what holds a write back, in its own transaction, if the room has gone meanwhile.

    Args:
        reservations: the machine, and what was admitted to it.
        wanted: what is to be recorded.
        sizes: bytes of the models' files, by name.
        title: of the refusal.
    """
    if reservations.room is None:
        return None

    def guard(stored: Sequence[Resource]) -> None:
        present = [each for each in stored if isinstance(each, InferenceDeployment)]
        now = reservations.with_deployments(present, sizes)
        if (shortage := find_shortage(now, wanted)) is not None:
            raise refuse(title, [shortage], ways_out=describe_ways_out(now, wanted))

    return guard
