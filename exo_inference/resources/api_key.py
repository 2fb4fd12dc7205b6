"""InferenceApiKey: a Bearer key for one deployment or for all. It has its value's hash alone."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from exo_inference.resources.base import (
    Condition,
    Resource,
    ResourceModel,
    keyed_list,
    object_name,
)

PUBLIC_SCOPE = "public"
"""The scope that opens every deployment."""


class ApiKeySpec(ResourceModel):
    """What the key opens: `scope` is `PUBLIC_SCOPE`, a deployment's uid, or on a cluster its name.

    `sha256` is which key: the hash of its value in hex. It is part of what is wanted, so that a key
    is complete in one write, and a rotation is one write, too.
    """

    display_name: str = Field(json_schema_extra={"minLength": 1, "maxLength": 50})
    scope: str = Field(
        description="public, or the uid or the name of an InferenceDeployment.",
        json_schema_extra={"minLength": 1, "maxLength": 63},
    )
    sha256: str = Field(
        description="SHA-256 of the key's value, in hex.",
        json_schema_extra={"pattern": "^[0-9a-f]{64}$"},
    )


class ApiKeyStatus(ResourceModel):
    """What is so."""

    conditions: tuple[Condition, ...] = Field(default=(), json_schema_extra=keyed_list("type"))


class InferenceApiKey(Resource):
    """A scoped inference key. The API gives no display name twice; the first one names the object."""

    KIND: ClassVar[str] = "InferenceApiKey"
    PLURAL: ClassVar[str] = "inferenceapikeys"

    kind: Literal["InferenceApiKey"] = "InferenceApiKey"
    spec: ApiKeySpec
    status: ApiKeyStatus = Field(default_factory=ApiKeyStatus)


def api_key_object_name(display_name: str) -> str:
    """Return the `metadata.name` of the key with this display name."""
    return object_name(display_name)
