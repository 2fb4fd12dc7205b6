"""InferenceApiKey: a Bearer key for one deployment or for all. Its value is kept as a hash alone."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import ConfigDict, Field

from exo_inference.resources.base import (
    Condition,
    Resource,
    ResourceModel,
    cel_rules,
    immutable,
    keyed_list,
    object_name,
)

PUBLIC_SCOPE = "public"
"""The scope that opens every deployment."""

_ANOTHER = "create another InferenceApiKey"


class ApiKeySpec(ResourceModel):
    """What the key opens: `scope` is `PUBLIC_SCOPE` or a deployment's uid.

    `sha256` is which key: the hash of its value in hex. It is part of what is wanted, so that a key
    is complete in one write; the value is shown once and kept nowhere.
    """

    model_config = ConfigDict(
        json_schema_extra=cel_rules(
            immutable("displayName", _ANOTHER),
            immutable("scope", _ANOTHER),
            immutable("sha256", _ANOTHER),
        )
    )

    display_name: str = Field(json_schema_extra={"minLength": 1, "maxLength": 50})
    scope: str = Field(
        description="public, or the uid of an InferenceDeployment.",
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
    """A scoped inference key. The API gives no display name twice, so it names the object, too."""

    KIND: ClassVar[str] = "InferenceApiKey"
    PLURAL: ClassVar[str] = "inferenceapikeys"

    kind: Literal["InferenceApiKey"] = "InferenceApiKey"
    spec: ApiKeySpec
    status: ApiKeyStatus = Field(default_factory=ApiKeyStatus)


def api_key_object_name(display_name: str) -> str:
    """Return the `metadata.name` of the key with this display name."""
    return object_name(display_name)
