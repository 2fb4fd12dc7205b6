"""What a platform is: it makes the world match one desired deployment, one safe step at a time.

The controller's reconciler calls it, and the routes for what there is and for logs. A platform keeps no
desired state of its own; what it observes it reads from the world (processes, pods), so that a restarted
controller finds all that runs. Implementations: `local/` (engines as processes of one machine) and
`kubernetes/` (one Helm release per deployment).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from exo_inference.engine_names import OWN_ENGINE
from exo_inference.errors import HubError
from exo_inference.planner.gpu_catalog import Gpu
from exo_inference.platforms.replica_memory import HostRoom, ReplicaNeed
from exo_inference.resources import DeploymentSpec, TokenSecretRef


class ReplicaPhase(StrEnum):
    """Where one replica stands."""

    STARTING = "starting"
    PENDING = "pending"
    """It waits for a GPU, for memory, or for its turn; nothing of it runs."""
    READY = "ready"
    DRAINING = "draining"
    BACKOFF = "backoff"
    """It crashed and will be started again."""
    FAILED = "failed"
    """It cannot work as configured; it is not started again by itself, only for a new spec or when asked."""


@dataclass(frozen=True, slots=True)
class DesiredDeployment:
    """Everything a platform needs to know of one deployment.

    Attributes:
        uid: the deployment's id; never changes.
        name: for people; in logs and process lists.
        spec: what was asked for; its model is what clients send as `model`.
        model_path: directory with the model's files, or `pvc:CLAIM[/DIRECTORY]` on a cluster.
        unrouted: names of replicas that the gateway no longer sends requests to. A platform
            stops a draining replica only when it is in here.
        restarted_at: when a user last asked to try again: replicas that failed before it, or wait
            after a crash, are started at once. It changes nothing about those that run.
        roll: another value than before replaces all replicas, one after the other, as another version
            would; empty as long as nobody asked.
        model_size_bytes: of all the model's files; 0 where it is not known.
        release: what the platform called it when it was first applied; empty before that.
        need: what a replica takes of the machine's memory, where that was planned.
        before: what was in effect last, where that is another version and the platform rolls back.
        refusal: why the platform went back to it from this one; empty where it did not.
    """

    uid: str
    name: str
    spec: DeploymentSpec
    model_path: str
    unrouted: frozenset[str] = frozenset()
    restarted_at: datetime | None = None
    model_size_bytes: int = 0
    release: str = ""
    roll: str = ""
    need: ReplicaNeed | None = None
    before: DesiredDeployment | None = None
    refusal: str = ""

    @property
    def engine(self) -> str:
        """The engine; nothing is applied before one is chosen."""
        return self.spec.engine.name or ""


@dataclass(frozen=True, slots=True)
class ObservedReplica:
    """One replica as it is now.

    Attributes:
        name: unique on the platform, never used again.
        current: it was started from the desired model, engine and parameters.
        details: for people: `loading weights 43 %`, or why it failed and the next step.
        address: `unix:PATH` relative to the state directory, or `http://HOST:PORT`; None until known.
        served: it was ready in its present run, or in its last where it does not run.
        cause: why it failed or crashed, without the next step; empty where the details say it.
        overdue: it makes no progress for longer than a start may take.
        models: the names that it answers to, of its model and of adapters; empty where not known.
        has_served: it was ready in any of its runs, as far as the platform knows.
    """

    name: str
    phase: ReplicaPhase
    current: bool
    details: str = ""
    address: str | None = None
    pid: int | None = None
    restarts: int = 0
    started_at: datetime | None = None
    served: bool = False
    cause: str = ""
    overdue: bool = False
    models: tuple[str, ...] = ()
    has_served: bool = False


@dataclass(frozen=True, slots=True)
class ObservedDeployment:
    """The replicas of a deployment, oldest first, and how soon it pays to look again.

    Attributes:
        failure: why what was asked for is not carried out, where no replica can say it: an update
            that was rolled back, a quota. Empty when nothing is wrong.
        selector: finds the replicas' pods on a cluster.
        autoscaled: the number that an autoscaler asks for, where one decides instead of what was desired.
        notice: what was noticed in this look alone and is being put right.
        release: what the platform calls it, to be given back with every later `DesiredDeployment`.
        refusal: why what was desired is not tried again while the version before has its place; given
            back likewise. Only of a platform that rolls back.
    """

    replicas: tuple[ObservedReplica, ...] = ()
    next_check_seconds: float = 2.0
    failure: str = ""
    selector: str = ""
    autoscaled: int | None = None
    notice: str = ""
    release: str = ""
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class InstanceTypeInfo:
    """One GPU family of the platform. `cpu` is a family too, on a machine without a GPU.

    Attributes:
        gpu: what the planner knows of it; None where its catalogue has no such GPU, and for `cpu`.
        engine: what runs there unless a deployment asks for another engine.
        simulated: the family is not there; its memory and speed are the planner's.
        engines: what else may run there; empty where it is exo-engine alone.
        largest_node: GPUs of the node that has most; None where all are on one machine.
        spans_nodes: a replica may have the GPUs of several nodes, where its engine can.
        room: memory of the one machine that all families are on; None on a cluster.
    """

    family: str
    total_gpus: int
    free_gpus: int
    description: str = ""
    gpu: Gpu | None = None
    engine: str = OWN_ENGINE
    simulated: bool = False
    engines: tuple[str, ...] = ()
    largest_node: int | None = None
    spans_nodes: bool = False
    room: HostRoom | None = None

    @property
    def possible_engines(self) -> tuple[str, ...]:
        """Every engine that a deployment may ask for there."""
        return tuple(sorted({OWN_ENGINE, self.engine, *self.engines}))

    @property
    def gpus_of_one_node(self) -> int:
        """The most GPUs that a replica on one node can have."""
        return self.total_gpus if self.largest_node is None else self.largest_node


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which log lines.

    Attributes:
        tail: the last so many lines over all chosen replicas; None is all.
        since: only lines at or after this moment.
        previous: of the process before the last restart instead of the present one.
        replica: of this replica only.
        follow: go on with new lines until the caller stops.
    """

    tail: int | None = 10
    since: datetime | None = None
    previous: bool = False
    replica: str | None = None
    follow: bool = False


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of one replica."""

    time: datetime
    node: str
    replica: str
    message: str


class Platform(Protocol):
    """The seam between the reconciler and the world. All methods may be called again at any time.

    Attributes:
        rolls_back: it takes a change that fails back itself, and says so in `ObservedDeployment.failure`.
    """

    name: str
    rolls_back: bool

    @property
    def drain_seconds(self) -> float:
        """How long replicas that are removed may go on with their requests; then they are killed."""
        ...

    async def apply(self, desired: DesiredDeployment) -> ObservedDeployment:
        """Take the next safe step towards `desired` and return what is so afterwards.

        Never blocks on a start or a drain: the caller comes back after `next_check_seconds`.

        Raises:
            PlatformError: the step cannot be taken now; the message says why.
        """
        ...

    async def delete(self, uid: str) -> bool:
        """Take the next step towards nothing being left of the deployment; True when so."""
        ...

    async def deployments(self) -> set[str]:
        """Return the uids of all deployments of which anything is left on the platform."""
        ...

    def logs(self, uid: str, query: LogQuery) -> AsyncIterator[LogLine]:
        """Yield log lines in order of time. Unknown uid: nothing."""
        ...

    async def instance_types(self) -> list[InstanceTypeInfo]:
        """Return the families a deployment may ask for, with what is free now."""
        ...

    async def measurements(self, replica: str) -> dict[str, Any] | None:
        """Return what the engine of a ready replica says that its start has measured.

        None where the engine does not say, or no longer answers. What it says is not checked.
        """
        ...


class ModelPhase(StrEnum):
    """Where a model's files stand on a platform that brings them itself."""

    PREPARING = "preparing"
    """Its volume or the download's pod is not there yet."""
    DOWNLOADING = "downloading"
    READY = "ready"
    FAILED = "failed"


class TokenSecretUnusable(HubError):
    """The Secret that a model names for the Hub's token is not there, or holds none."""


@dataclass(frozen=True, slots=True)
class DesiredModel:
    """Everything a platform needs to know to bring a model's files.

    Attributes:
        uid: the model's id; never changes.
        name: of the InferenceModel; a label.
        source: what to fetch, pinned by `revision`.
        size_bytes: of all its files.
        token: of the Hub; None for a model that needs none. It is kept in a Secret.
        token_secret: a Secret of the user's that has it; `token` is None then.
        attempt: another number tries a failed download again.
        release: what the platform called it when it was first applied; empty before that.
    """

    uid: str
    name: str
    source: str
    revision: str
    size_bytes: int
    token: str | None = None
    attempt: int = 0
    token_secret: TokenSecretRef | None = None
    release: str = ""


@dataclass(frozen=True, slots=True)
class ObservedModel:
    """A model's files as they are now.

    Attributes:
        path: what `DesiredDeployment.model_path` takes, once ready.
        details: for people: why it failed or waits, and the next step.
        final: of a failure: trying again does not help.
        release: what the platform calls it, to be given back with every later `DesiredModel`.
    """

    phase: ModelPhase
    path: str | None = None
    downloaded_bytes: int = 0
    details: str = ""
    final: bool = False
    release: str = ""


class ModelPlatform(Protocol):
    """The seam for platforms that bring models themselves. As with `Platform`, nothing blocks."""

    async def apply_model(self, desired: DesiredModel) -> ObservedModel:
        """Take the next step towards the files being there, and return what is so.

        Raises:
            PlatformError: the step cannot be taken now; the message says why.
        """
        ...

    async def delete_model(self, uid: str) -> bool:
        """Take the next step towards nothing being left of the model; True when so."""
        ...

    async def find_loss(self, path: str) -> str:
        """Return why the files of a model that was ready are not there any more; empty if they are.

        Raises:
            StoreError: the platform does not answer.
        """
        ...

    async def models(self) -> set[str]:
        """Return the uids of all models of which anything is left on the platform."""
        ...

    async def read_token(self, secret: TokenSecretRef) -> str:
        """Return the Hub's token that a user's Secret holds.

        Raises:
            TokenSecretUnusable: it is not there, or holds none.
            StoreError: the API was away.
        """
        ...
