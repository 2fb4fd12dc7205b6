"""Named fakes of the controller's outer world: a platform, a model source, a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from exo_inference.errors import PlatformError
from exo_inference.hub.base import (
    FetchCancelled,
    InvalidModelName,
    ModelFile,
    ModelGated,
    ModelNotFound,
    ModelUnusable,
    NoSpace,
    ProgressCallback,
    ResolvedModel,
    SourceUnreachable,
    TokenRejected,
)
from exo_inference.planner import Architecture, cpu_as_gpu, find_gpu
from exo_inference.platforms.base import (
    DesiredDeployment,
    InstanceTypeInfo,
    LogLine,
    LogQuery,
    ObservedDeployment,
    ObservedReplica,
    ReplicaPhase,
)


@dataclass
class FakeReplica:
    name: str
    made_from: tuple[object, ...]
    model: str = ""
    looks: int = 0
    draining: bool = False
    has_been_ready: bool = False
    failure: str | None = None
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))


FAMILIES = (
    InstanceTypeInfo("gpua5000", total_gpus=4, free_gpus=0),
    InstanceTypeInfo("cpu", total_gpus=2, free_gpus=2, description="two cores"),
)

GPU_FAMILIES = (
    InstanceTypeInfo("gpua5000", 4, 4, gpu=find_gpu("gpua5000"), engine="vllm", simulated=True),
    InstanceTypeInfo(
        "gpurtx6000pro", 8, 8, gpu=find_gpu("gpurtx6000pro"), engine="vllm", simulated=True
    ),
    InstanceTypeInfo("gpu2", 2, 2, gpu=find_gpu("gpu2"), engine="vllm", simulated=True),
    InstanceTypeInfo("cpu", total_gpus=2, free_gpus=2, gpu=cpu_as_gpu(16 * 2**30)),
)
"""Families whose GPUs the planner knows; put them into `FakePlatform.families`."""


@dataclass
class FakePlatform:
    """Replicas that become ready after so many looks, and stop only once they are unrouted."""

    name: str = "fake"
    rolls_back: bool = False
    looks_until_ready: int = 2
    drain_seconds: float = 60.0
    has_endless_requests: bool = False
    cannot_delete: str | None = None
    refuses: str | None = None
    fails: str | None = None
    fails_model: str | None = None
    slots: int | None = None
    rolled_back: str | None = None
    refusal: str = ""
    replicas: dict[str, list[FakeReplica]] = field(default_factory=dict)
    applied: list[DesiredDeployment] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    log_lines: list[LogLine] = field(default_factory=list)
    is_log_endless: bool = False
    is_log_quiet: bool = False
    open_logs: int = 0
    families: tuple[InstanceTypeInfo, ...] = FAMILIES
    count: int = 0
    autoscaled: int | None = None
    measured: dict[str, Any] | None = None
    measured_replicas: list[str] = field(default_factory=list)

    async def apply(self, desired: DesiredDeployment) -> ObservedDeployment:
        self.applied.append(desired)
        if self.refuses is not None:
            raise PlatformError(self.refuses, hint="Wait.")
        mine = self.replicas.setdefault(desired.uid, [])
        made_from = (
            desired.model_path,
            desired.spec.engine.version,
            desired.spec.engine_parameters,
            desired.roll,
        )
        for replica in [r for r in mine if r.draining and r.name in desired.unrouted]:
            mine.remove(replica)
            self.stopped.append(replica.name)
        for replica in mine:
            replica.looks += 1
            if desired.restarted_at is not None:
                replica.failure = self.fails
        current = [r for r in mine if r.made_from == made_from and not r.draining]
        wanted = desired.spec.replicas if self.autoscaled is None else self.autoscaled
        while len(current) < wanted:
            if self.slots is not None and len(mine) >= self.slots:  # no room beside the old one
                self.stopped.append(mine.pop(0).name)
            self.count += 1
            failure = "wings are missing" if desired.spec.model == self.fails_model else self.fails
            replica = FakeReplica(
                f"{desired.name}-{self.count}", made_from, desired.spec.model, failure=failure
            )
            mine.append(replica)
            current.append(replica)
        for replica in current[wanted:]:
            replica.draining = True
        if all(self._phase(r) == ReplicaPhase.READY for r in current[:wanted]):
            for replica in mine:
                replica.draining = replica.draining or replica.made_from != made_from
        seen = tuple(self._observe(r, made_from) for r in mine)
        return ObservedDeployment(
            seen,
            next_check_seconds=0.02,
            failure=self.rolled_back,
            autoscaled=self.autoscaled,
            refusal=self.refusal,
        )

    def _phase(self, replica: FakeReplica) -> ReplicaPhase:
        if replica.draining:
            return ReplicaPhase.DRAINING
        if replica.failure is not None:
            return ReplicaPhase.FAILED
        if replica.looks >= self.looks_until_ready:
            replica.has_been_ready = True
        return ReplicaPhase.READY if replica.has_been_ready else ReplicaPhase.STARTING

    def _observe(self, replica: FakeReplica, made_from: tuple[object, ...]) -> ObservedReplica:
        phase = self._phase(replica)
        details = {ReplicaPhase.STARTING: "loading weights 43 %"}.get(phase, replica.failure or "")
        return ObservedReplica(
            name=replica.name,
            phase=phase,
            current=replica.made_from == made_from,
            details=details,
            address=f"unix:replicas/{replica.name}/engine.sock",
            started_at=replica.started_at,
            models=(replica.model,),
            has_served=replica.has_been_ready,
        )

    async def delete(self, uid: str) -> bool:
        if self.cannot_delete is not None:
            raise PlatformError(self.cannot_delete)
        if self.has_endless_requests:
            return not self.replicas.get(uid)
        mine = self.replicas.pop(uid, [])
        self.stopped += [replica.name for replica in mine]
        return not mine

    async def deployments(self) -> set[str]:
        return set(self.replicas)

    async def logs(self, uid: str, query: LogQuery) -> AsyncIterator[LogLine]:
        if uid not in self.replicas:
            return
        lines = [line for line in self.log_lines if query.replica in (None, line.replica)]
        for line in lines if query.tail is None else lines[len(lines) - query.tail :]:
            if query.since is None or line.time >= query.since:
                yield line
        self.open_logs += 1
        try:
            while query.follow and self.is_log_endless:
                if not self.is_log_quiet:
                    yield log_line(99)
                await asyncio.sleep(0.01)
        finally:
            self.open_logs -= 1

    async def instance_types(self) -> list[InstanceTypeInfo]:
        return list(self.families)

    async def measurements(self, replica: str) -> dict[str, Any] | None:
        self.measured_replicas.append(replica)
        return self.measured


def log_line(number: int) -> LogLine:
    start = datetime(2026, 11, 20, 20, 0, tzinfo=UTC)
    time = start + timedelta(seconds=number)
    return LogLine(time, node="node-1", replica="chat-1", message=f"line {number}")


@dataclass
class FakeSource:
    """Models by name; a few names stand for each way a source can fail."""

    size_bytes: int = 3 * 1024**2
    is_slow: bool = False
    unreachable: bool = False
    disk_full: bool = False
    reports: bool = True
    resolved: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    fetches: int = 0

    def find(self, name: str) -> FakeSource:
        if "/" not in name:
            raise InvalidModelName(f"{name!r} is not the name of a model", hint="Use ORG/NAME.")
        return self

    async def resolve(
        self, source: str, *, revision: str | None, token: str | None
    ) -> ResolvedModel:
        self.resolved.append((source, revision, token))
        failures = {
            "missing/model": ModelNotFound("there is no model missing/model on the Hub"),
            "gated/model": ModelGated("gated/model asks for its licence to be accepted"),
            "empty/model": ModelUnusable("empty/model holds no safetensors files"),
        }
        if self.unreachable:
            raise SourceUnreachable("cannot reach the Hub")
        if source in failures:
            raise failures[source]
        if token == "hf_bad":
            raise TokenRejected("the Hub does not accept the token")
        if source.startswith("stalled/"):
            await asyncio.sleep(3600)
        file = ModelFile("model.safetensors", self.size_bytes)
        return ResolvedModel(source, revision or "commit-1", (file,))

    async def fetch(
        self,
        model: ResolvedModel,
        directory: Path,
        *,
        token: str | None,
        progress: ProgressCallback,
    ) -> Path:
        self.fetches += 1
        if self.reports:
            progress(model.size_bytes // 4)
        while self.is_slow:
            await asyncio.sleep(0.01)
            progress(model.size_bytes // 2)
        if self.disk_full:
            raise NoSpace("the disk is full")
        if model.source == "damaged/model":
            raise ModelUnusable("model.safetensors is damaged: its SHA-256 differs")
        progress(model.size_bytes)
        (directory / "model.safetensors").write_bytes(b"x")
        return directory


@dataclass
class FakeHub:
    """What the Hub says of models that are not here; as good as offline where it knows nothing."""

    known: dict[str, Architecture] = field(default_factory=dict)
    asked: list[tuple[str, str | None, str | None]] = field(default_factory=list)

    async def fetch(
        self, name: str, *, revision: str | None = None, token: str | None = None
    ) -> Architecture:
        self.asked.append((name, revision, token))
        if name not in self.known:
            raise SourceUnreachable("cannot reach the Hub", hint="Check the network.")
        return self.known[name]


@dataclass
class FakeGateway:
    """Applies tables only when told to."""

    version: int | None = None

    async def applied_version(self) -> int | None:
        return self.version


__all__ = [
    "GPU_FAMILIES",
    "FakeGateway",
    "FakeHub",
    "FakePlatform",
    "FakeReplica",
    "FakeSource",
    "FetchCancelled",
    "log_line",
]
