"""Deployments: requests and answers of `/ai/deployment`."""

from __future__ import annotations

import re
from typing import Self

from pydantic import Field, StrictStr

from exo_inference.wire.base import Count, OpenEnum, Timestamp, WireModel

REPLACES = "replace-deployment"
"""Among the `features` of `GET /ai/status` where `PUT /ai/deployment/{id}` is known (additive)."""

CREATES_STOPPED = "create-stopped"
"""Among them where `POST /ai/deployment?stopped=stopped` creates with 0 replicas (additive)."""

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)


class DeploymentState(OpenEnum):
    """Where a deployment stands; derived by the controller, never stored."""

    CREATING = "creating"
    PREPARING = "preparing"
    DEPLOYING = "deploying"
    READY = "ready"
    SCALING = "scaling"
    UPDATING = "updating"
    ERROR = "error"


class ModelRef(WireModel):
    """A model by id, by name, or both."""

    id: StrictStr | None = None
    name: StrictStr | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the model that a text means: by its id if it is one, else by its name."""
        return cls(id=text.lower()) if _UUID.fullmatch(text) else cls(name=text)


class ReplicaView(WireModel):
    """One engine replica of a deployment (additive)."""

    name: str
    state: str
    details: str = ""
    pid: int | None = None
    restarts: int = 0


class LastChange(WireModel):
    """Who changed last what is wanted of a deployment (additive)."""

    at: Timestamp
    by: str = Field(description="id of the API key")
    fields: list[str]
    generation: int


class InEffect(WireModel):
    """What replicas of a deployment were made of that served (additive)."""

    model: str
    gpu_type: str
    gpu_count: Count
    inference_engine: str
    inference_engine_parameters: list[str]


class Deployment(WireModel):
    """A deployment as the API shows it. `list` leaves out details, parameters and version."""

    id: str
    name: str
    state: DeploymentState
    state_details: str | None = None
    deployment_url: str = ""
    model: ModelRef
    visibility: str = Field(default="private", description="private or public")
    gpu_type: str | None = None
    gpu_count: Count | None = None
    replicas: Count | None = None
    service_level: str | None = None
    inference_engine_parameters: list[str] | None = None
    inference_engine_version: str | None = None
    inference_engine: str | None = Field(
        default=None, description='additive: the engine that runs it, as "exo 0.1.0"'
    )
    ready_replicas: Count | None = Field(default=None, description="additive")
    replica_status: list[ReplicaView] | None = Field(default=None, description="additive")
    version: str | None = Field(
        default=None, description="additive: what If-Match takes; grows with what is wanted"
    )
    generation: int | None = Field(
        default=None, description="additive: number of the specification"
    )
    last_change: LastChange | None = Field(default=None, description="additive")
    last_in_effect: InEffect | None = Field(
        default=None,
        description="additive: what served last, while something else is asked for that has not served yet",
    )
    created_at: Timestamp | None = None
    updated_at: Timestamp | None = None


class DeploymentList(WireModel):
    """Answer of `GET /ai/deployment`."""

    deployments: list[Deployment] = Field(default_factory=list)


class CreateDeployment(WireModel):
    """Body of `POST /ai/deployment`. What is missing or out of range is reported by admission."""

    name: StrictStr
    model: ModelRef
    gpu_type: StrictStr
    gpu_count: Count
    replicas: Count = 1
    inference_engine_parameters: list[StrictStr] | None = None
    inference_engine_version: StrictStr | None = None
    inference_engine: StrictStr | None = Field(default=None, description="additive")
    product_name: StrictStr | None = None


class UpdateDeployment(WireModel):
    """Body of `PATCH /ai/deployment/{id}`: only the fields that are sent change."""

    name: StrictStr | None = None
    inference_engine_parameters: list[StrictStr] | None = None
    inference_engine_version: StrictStr | None = None


class ScaleDeployment(WireModel):
    """Body of `POST /ai/deployment/{id}/scale`."""

    replicas: Count


class DeploymentApiKey(WireModel):
    """Answer of `GET /ai/deployment/{id}/api-key`."""

    api_key: str = Field(repr=False)
