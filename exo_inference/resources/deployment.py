"""InferenceDeployment: engine replicas that serve one model behind one endpoint."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import datetime
from typing import ClassVar, Literal

from pydantic import ConfigDict, Field, StrictInt
from pydantic.json_schema import SkipJsonSchema

from exo_inference.resources.base import (
    Condition,
    Resource,
    ResourceModel,
    cel_rules,
    keyed_list,
)

MAX_REPLICAS = 100
"""More than any machine of today runs; keeps a typing error from becoming a plan."""

RESTART_ANNOTATION = "inference.exo.dev/restarted-at"
"""When a user last asked to start replicas again that had failed; RFC 3339."""

ROLL_ANNOTATION = "inference.exo.dev/rolled-at"
"""When a user last asked for new replicas in place of all that run, and by which request; any other value asks again."""

ADMITTED_ANNOTATION = "inference.exo.dev/admitted-spec"
"""What the API admitted last, `--force` included: only who has its key can write it (`controller/reconcile/late_admission.py`)."""

MEMORY_ANNOTATION = "inference.exo.dev/replica-memory"
"""What one replica was admitted with on a machine that replicas share, as `ReplicaNeed.text` writes it."""

MEMORY_BEFORE_ANNOTATION = "inference.exo.dev/replica-memory-before"
"""The same of the specification that was in effect before the present one: its digest, a blank, and that text."""

CHANGED_ANNOTATION = "inference.exo.dev/changed"
"""Who made the last change through the API, when, and of which fields; JSON."""

DEPLOYMENT_FINALIZER = "inference.exo.dev/replicas"
"""Held until no request is routed to the deployment and none of its replicas is left."""

MAX_PARAMETERS = 200
"""Items of `engineParameters`."""

_DIGEST_ENGINE = "exo"
"""An engine that does not count in digests: it was the default when the first ones were written."""


class EngineRef(ResourceModel):
    """Which engine, and which version's flags."""

    model_config = ConfigDict(
        # What is absent is chosen once; taken away, it could be chosen otherwise.
        json_schema_extra=cel_rules(
            (
                "!has(oldSelf.name) || has(self.name)",
                "engine.name cannot be taken away; name the engine that shall run",
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
        """The beginning of the full one: tells the specifications of one deployment apart."""
        return self.full_digest[:16]

    @property
    def full_digest(self) -> str:
        """What is the same for specifications that differ in their replicas alone.

        Those an autoscaler may set. Fields at their defaults do not count, so that a later version
        with more fields has the same digest.
        """
        given = self.model_dump(mode="json", exclude_defaults=True, exclude={"replicas"})
        if self.engine.name == _DIGEST_ENGINE:
            del given["engine"]["name"]
            given = {key: value for key, value in given.items() if value != {}}
        return hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()


class ReplicaState(ResourceModel):
    """One replica as last observed. `state`: pending, starting, ready, draining, backoff or failed.

    `models`: the names that it answers to, where these are others than the deployment's model alone.
    """

    name: str
    state: str
    details: str = ""
    pid: int | None = None
    restarts: int = 0
    started_at: datetime | None = None
    models: tuple[str, ...] | None = None


class DeploymentStatus(ResourceModel):
    """What is so.

    Conditions: `Admitted`, `ModelReady`, `Progressing` (reason Deploying, Scaling or Updating
    while true), `Available` (enough replicas ready), `Failed`, and `Ready`, which sums them up: all
    is as asked for.

    Attributes:
        observed_restart: the value of `RESTART_ANNOTATION` that was acted on.
        current_replicas: counts `replicas`; an autoscaler asks for it, and for `selector`.
        autoscaled_replicas: the number wanted where an autoscaler sets it on the pods past
            `spec.replicas`, which has no effect then.
        selector: finds the pods of `replicas` on a cluster.
        key_sha256: hash of the deployment's own key, by which the gateways of a cluster know it.
        admitted_spec: full digest of the specification that was judged last and found good;
            earlier versions wrote its beginning.
        uid: the id that it was taken over with; it does not change any more.
        release: what it was installed as; it does not change any more.
        settled_spec: the specification that was in effect last, as JSON, so that a change can be
            taken back.
        refused_spec: digest of one that was taken back.
        refused_restart: the restart that had been asked for by then.
        refused_reason: why it was taken back.
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
    uid: str = ""
    release: str = ""
    settled_spec: str = ""
    refused_spec: str = ""
    refused_restart: str = ""
    refused_reason: str = ""


_TIME = re.compile(r"[0-9T:.+-]{10,40}Z?")


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


class InferenceDeployment(Resource):
    """A deployment. Its name is a DNS label."""

    KIND: ClassVar[str] = "InferenceDeployment"
    PLURAL: ClassVar[str] = "inferencedeployments"

    kind: Literal["InferenceDeployment"] = "InferenceDeployment"
    spec: DeploymentSpec
    status: DeploymentStatus = Field(default_factory=DeploymentStatus)

    @property
    def restart(self) -> str:
        """When a user last asked to start replicas again that had failed; empty if never.

        What is no time does not count: the annotation may hold anything that whoever wrote it liked.
        """
        asked = self.metadata.annotations.get(RESTART_ANNOTATION, "")
        return asked if _TIME.fullmatch(asked) and _is_time(asked) else ""

    @property
    def roll(self) -> str:
        """Which of the requests for new replicas is the last; empty if there was none.

        A digest: the annotation may hold anything that whoever wrote it liked.
        """
        asked = self.metadata.annotations.get(ROLL_ANNOTATION, "")
        return hashlib.sha256(asked.encode()).hexdigest()[:16] if asked else ""
