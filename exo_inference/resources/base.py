"""What all resources share: metadata, conditions, and the camelCase form of YAML and CRDs."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

API_VERSION = "inference.exo.dev/v1alpha1"


class ResourceModel(BaseModel):
    """Base of every part of a resource: camelCase outside, frozen, unknown keys refused."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        serialize_by_alias=True,
    )


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(ResourceModel):
    """One observation about an object, as the Kubernetes API conventions define it.

    `type` is an adjective or past participle (`Available`), `reason` is CamelCase for machines,
    `message` is for people and names the next step where something is wrong.
    """

    type: str
    status: ConditionStatus
    reason: str
    message: str = ""
    observed_generation: int = 0
    last_transition_time: datetime | None = None


class ObjectMeta(ResourceModel):
    """Identity and life cycle of an object.

    `generation` grows when `spec` changes, `resource_version` with every write.
    """

    name: str
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    update_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    finalizers: tuple[str, ...] = ()
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class Resource(ResourceModel):
    """Base of the kinds. A subclass sets `KIND` and adds `spec` and `status`."""

    KIND: ClassVar[str]

    api_version: str = API_VERSION
    kind: str
    metadata: ObjectMeta
