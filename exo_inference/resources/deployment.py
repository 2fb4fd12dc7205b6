"""InferenceDeployment: engine replicas that serve one model behind one endpoint."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from typing import ClassVar, Literal

from pydantic import ConfigDict, Field, StrictInt
from pydantic.json_schema import SkipJsonSchema

from exo_inference.resources.base import (
    Condition,
    Resource,
    ResourceModel,
    cel_rules,
    immutable,
    keyed_list,
)

MAX_REPLICAS = 100
"""More than any machine of today runs; keeps a typing error from becoming a plan."""

RESTART_ANNOTATION = "inference.exo.dev/restarted-at"
"""When a user last asked to start replicas again that had failed; RFC 3339."""


ADMITTED_ANNOTATION = "inference.exo.dev/admitted-spec"
"""Digest of the specification that the API admitted, `--force` included; any other has to be judged."""

DEPLOYMENT_FINALIZER = "inference.exo.dev/replicas"
"""Held until no request is routed to the deployment and none of its replicas is left."""

MAX_PARAMETERS = 200
"""Items of `engineParameters`."""

_ANOTHER = "create another InferenceDeployment with it and delete this one"


_DIGEST_ENGINE = "exo"
"""An engine that does not count in digests: it was the default when the first ones were written."""


class EngineRef(ResourceModel):
    """Which engine, and which version's flags."""

    model_config = ConfigDict(
        # What is absent is chosen once; then it stays, too.
        json_schema_extra=cel_rules(
            (
                "!has(oldSelf.name) || (has(self.name) && self.name == oldSelf.name)",
                f"engine.name cannot be changed; {_ANOTHER}",
            )
        )
    )

    # A null is dropped by the API server, so that "absent" has one form.
    name: str | SkipJsonSchema[None] = Field(
        default=None,
        description="If absent, the controller writes what the platform runs on this gpuType.",
        json_schema_extra={"minLength": 1, "maxLength": 63},
    )
    version: str | None = Field(
        default=None,
        description="Release whose flags apply; the platform's own if absent.",
        json_schema_extra={"maxLength": 63},
    )


class DeploymentSpec(ResourceModel):
    """What is wanted. `model` is the source of an InferenceModel."""

    model_config = ConfigDict(
        json_schema_extra=cel_rules(
            immutable("model", _ANOTHER),
            immutable("gpuType", _ANOTHER),
            immutable("gpuCount", _ANOTHER),
            immutable("productName", _ANOTHER),
        )
    )

    model: str = Field(
        description="Source of an InferenceModel.",
        json_schema_extra={"minLength": 1, "maxLength": 4096},
    )
    gpu_type: str = Field(
        description="Family of GPUs.", json_schema_extra={"minLength": 1, "maxLength": 63}
    )
    gpu_count: StrictInt = Field(default=1, ge=1, description="GPUs per replica.")
    replicas: StrictInt = Field(
        default=1,
        ge=0,
        le=MAX_REPLICAS,
        description="Engines that share the load; leave it out where an autoscaler sets it.",
    )
    engine: EngineRef = Field(
        default_factory=EngineRef,
        # The object must be there for the rule that its name stays.
        json_schema_extra={"default": {}},
    )
    engine_parameters: tuple[str, ...] = Field(
        default=(),
        description="Flags of the engine, one per item.",
        json_schema_extra={"maxItems": MAX_PARAMETERS, "x-kubernetes-list-type": "atomic"},
    )
    product_name: str | None = Field(
        default=None,
        description="Identifier that usage is billed under.",
        json_schema_extra={"maxLength": 253},
    )

    @property
    def digest(self) -> str:
        """What is the same for specifications that differ in their replicas alone.

        Those an autoscaler may set. Fields at their defaults do not count, so that a later version
        with more fields has the same digest.
        """
        told = self.model_dump(mode="json", exclude_defaults=True, exclude={"replicas"})
        if self.engine.name == _DIGEST_ENGINE:
            del told["engine"]["name"]
            told = {key: value for key, value in told.items() if value != {}}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


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
    while true), `Available` (enough replicas ready), `Failed`, and `Ready`, which sums them up: all
    is as asked for. `observed_restart` is the value of `RESTART_ANNOTATION` that was acted on.
    `current_replicas` counts `replicas`, and `selector` finds their pods on a cluster: both are what
    an autoscaler asks for. `autoscaled_replicas` is the number wanted where an autoscaler sets it on
    the pods past `spec.replicas`, which has no effect then. `key_sha256` is the hash of the
    deployment's own key, by which the gateways of a cluster know it. `admitted_spec` is a digest of
    the specification that was judged last and found good.
    """

    conditions: tuple[Condition, ...] = Field(default=(), json_schema_extra=keyed_list("type"))
    observed_generation: int = 0
    observed_restart: str = ""
    replicas: tuple[ReplicaState, ...] = Field(default=(), json_schema_extra=keyed_list("name"))
    current_replicas: int = 0
    ready_replicas: int = 0
    autoscaled_replicas: int | None = None
    selector: str = ""
    url: str = ""
    key_sha256: str = ""
    admitted_spec: str = ""


class InferenceDeployment(Resource):
    """A deployment. Its name is a DNS label."""

    KIND: ClassVar[str] = "InferenceDeployment"
    PLURAL: ClassVar[str] = "inferencedeployments"

    kind: Literal["InferenceDeployment"] = "InferenceDeployment"
    spec: DeploymentSpec
    status: DeploymentStatus = Field(default_factory=DeploymentStatus)

    @property
    def restart(self) -> str:
        """When a user last asked to start replicas again that had failed; empty if never."""
        return self.metadata.annotations.get(RESTART_ANNOTATION, "")
