"""InferenceModel: an open-weight model that deployments may use."""

from __future__ import annotations

from collections.abc import Sequence
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

MODEL_FINALIZER = "inference.exo.dev/model-files"
"""Held until the files are gone and no deployment uses them."""

_ANOTHER = "create another InferenceModel"


class TokenSecretRef(ResourceModel):
    """A key of a Secret of the same namespace."""

    name: str = Field(
        description="Name of the Secret.",
        json_schema_extra={
            "minLength": 1,
            "maxLength": 253,
            "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        },
    )
    key: str = Field(
        default="token",
        description="Its key, which holds the token alone.",
        json_schema_extra={"minLength": 1, "maxLength": 253, "pattern": "^[-._a-zA-Z0-9]+$"},
    )


class ModelSpec(ResourceModel):
    """What is wanted.

    Attributes:
        source: the name users know it by: `org/name` on the Hub, `org/name:TYPE` for a GGUF file there, `file:///path`, or `exo/…` built in.
        revision: branch, tag or commit; None is the source's default.
        token_secret: where the Hub's token is, on a cluster; goes before one that the API was given.
    """

    model_config = ConfigDict(
        json_schema_extra=cel_rules(immutable("source", _ANOTHER), immutable("revision", _ANOTHER))
    )

    source: str = Field(
        description="org/name on the Hub, org/name:TYPE for a GGUF file there, file:///path, or exo/... built in.",
        json_schema_extra={"minLength": 1, "maxLength": 4096},
    )
    revision: str | None = Field(
        default=None,
        description="Branch, tag or commit; the source's own default if absent.",
        json_schema_extra={"maxLength": 200},
    )
    token_secret: TokenSecretRef | None = Field(
        default=None,
        description="Secret with the Hub's token, for gated and private models; on a cluster alone.",
    )


class ModelStatus(ResourceModel):
    """What is so.

    Conditions: `Resolved` (found and permitted), `Downloaded`, `Ready`. `uid` is the id that it was taken
    over with, and `release` what it was installed as: neither changes any more.
    """

    conditions: tuple[Condition, ...] = Field(default=(), json_schema_extra=keyed_list("type"))
    observed_generation: int = 0
    revision: str | None = None
    size_bytes: int = 0
    downloaded_bytes: int = 0
    path: str | None = None
    uid: str = ""
    release: str = ""


class InferenceModel(Resource):
    """A model. `metadata.name` is a slug of the source; `spec.source` is the name on the wire."""

    KIND: ClassVar[str] = "InferenceModel"
    PLURAL: ClassVar[str] = "inferencemodels"

    kind: Literal["InferenceModel"] = "InferenceModel"
    spec: ModelSpec
    status: ModelStatus = Field(default_factory=ModelStatus)


def find_older_model(
    model: InferenceModel, models: Sequence[InferenceModel]
) -> InferenceModel | None:
    """Return the model of the same source that is used in place of this one; None for the oldest.

    Args:
        model: whose duplicate is looked for.
        models: all there are, oldest first.
    """
    oldest = next((each for each in models if each.spec.source == model.spec.source), model)
    return None if oldest.metadata.uid == model.metadata.uid else oldest


def model_object_name(source: str) -> str:
    """Return the `metadata.name` of the model with this source: readable, and one per source."""
    return object_name(source)
