"""InferenceApiKey: a Bearer key for one deployment or for all. Its value is stored as a hash."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from exo_inference.resources.base import Resource, ResourceModel

PUBLIC_SCOPE = "public"
"""The scope that opens every deployment."""


class ApiKeySpec(ResourceModel):
    """What the key opens: `scope` is `PUBLIC_SCOPE` or a deployment's uid."""

    display_name: str
    scope: str


class ApiKeyStatus(ResourceModel):
    """The SHA-256 of the value in hex; the value itself is shown once and kept nowhere."""

    sha256: str = ""


class InferenceApiKey(Resource):
    """A scoped inference key."""

    KIND: ClassVar[str] = "InferenceApiKey"

    kind: Literal["InferenceApiKey"] = "InferenceApiKey"
    spec: ApiKeySpec
    status: ApiKeyStatus = Field(default_factory=ApiKeyStatus)
