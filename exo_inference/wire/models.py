"""Models: requests and answers of `/ai/model`."""

from __future__ import annotations

from pydantic import Field, SecretStr, StrictStr

from exo_inference.wire.base import Count, OpenEnum, Timestamp, WireModel


class ModelState(OpenEnum):
    """Where a model stands; derived by the controller, never stored."""

    CREATED = "created"
    CREATING = "creating"
    DOWNLOADING = "downloading"
    READY = "ready"
    ERROR = "error"


class Model(WireModel):
    """A model as the API shows it."""

    id: str
    name: str
    state: ModelState
    model_size: Count = 0
    state_details: str | None = Field(default=None, description="additive")
    downloaded_bytes: Count | None = Field(default=None, description="additive")
    revision: str | None = Field(default=None, description="additive: the commit it is pinned to")
    created_at: Timestamp
    updated_at: Timestamp


class ModelList(WireModel):
    """Answer of `GET /ai/model`."""

    models: list[Model] = Field(default_factory=list)


class CreateModel(WireModel):
    """Body of `POST /ai/model`."""

    name: StrictStr
    huggingface_token: SecretStr | None = None
    revision: StrictStr | None = Field(default=None, description="additive")
