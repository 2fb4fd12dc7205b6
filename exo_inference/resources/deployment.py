"""InferenceDeployment: engine replicas that serve one model behind one endpoint."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal

from pydantic import Field, StrictInt

from exo_inference.resources.base import Condition, Resource, ResourceModel

MAX_REPLICAS = 100
"""More than any machine of today runs; keeps a typing error from becoming a plan."""

RESTART_ANNOTATION = "inference.exo.dev/restarted-at"
"""When a user last asked to start replicas again that had failed; RFC 3339."""


class EngineRef(ResourceModel):
    """Which engine, and which version's flags; None lets the platform choose."""

    name: str = "exo"
    version: str | None = None


class DeploymentSpec(ResourceModel):
    """What is wanted. `model` is the source of an InferenceModel."""

    model: str
    gpu_type: str
    gpu_count: StrictInt = Field(default=1, ge=1)
    replicas: StrictInt = Field(default=1, ge=0, le=MAX_REPLICAS)
    engine: EngineRef = Field(default_factory=EngineRef)
    engine_parameters: tuple[str, ...] = ()
    product_name: str | None = None


class ReplicaState(ResourceModel):
    """One replica as last observed. `state`: starting, ready, draining, backoff or failed."""

    name: str
    state: str
    details: str = ""
    pid: int | None = None
    restarts: int = 0
    started_at: datetime | None = None


class DeploymentStatus(ResourceModel):
    """What is so.

    Conditions: `Admitted`, `ModelReady`, `Progressing` (reason Deploying, Scaling or Updating
    while true), `Available` (enough replicas ready), `Failed`. `observed_restart` is the value of
    `RESTART_ANNOTATION` that was acted on.
    """

    conditions: tuple[Condition, ...] = ()
    observed_generation: int = 0
    observed_restart: str = ""
    replicas: tuple[ReplicaState, ...] = ()
    ready_replicas: int = 0
    url: str = ""


class InferenceDeployment(Resource):
    """A deployment. Its name is a DNS label."""

    KIND: ClassVar[str] = "InferenceDeployment"

    kind: Literal["InferenceDeployment"] = "InferenceDeployment"
    spec: DeploymentSpec
    status: DeploymentStatus = Field(default_factory=DeploymentStatus)

    @property
    def restart(self) -> str:
        """When a user last asked to start replicas again that had failed; empty if never."""
        return self.metadata.annotations.get(RESTART_ANNOTATION, "")
