"""Scoped inference keys: requests and answers of `/ai/api-key`."""

from __future__ import annotations

from pydantic import Field, StrictStr

from exo_inference.wire.base import Timestamp, WireModel


class ApiKey(WireModel):
    """A key without its value. `scope` is `public` (every deployment) or a deployment's id."""

    id: str
    org_uuid: str
    name: str
    scope: str
    created_at: Timestamp
    updated_at: Timestamp


class CreatedApiKey(ApiKey):
    """Answer of `POST /ai/api-key`."""

    value: str = Field(repr=False)


class ApiKeyList(WireModel):
    """Answer of `GET /ai/api-key`."""

    ai_api_keys: list[ApiKey]


class CreateApiKey(WireModel):
    """Body of `POST /ai/api-key`."""

    name: StrictStr
    scope: StrictStr


class UpdateApiKey(WireModel):
    """Body of `PATCH /ai/api-key/{id}`: only the fields that are sent change."""

    name: StrictStr | None = None
    scope: StrictStr | None = None


class ApiKeyValue(WireModel):
    """Answer of `GET /ai/api-key/{id}/reveal` and of `POST /ai/api-key/{id}/rotate`."""

    value: str = Field(repr=False)
