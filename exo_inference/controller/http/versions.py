"""Versions of a deployment: what a write was based on, and whose change it met.

`GET` returns the version as `ETag` and in the body; a write that sends it back in `If-Match` is refused
when somebody changed the deployment in between. Writes without it, as the vendor's clients send them, are
made on what is there. A version grows with what users want, never with what is observed. Who made the
last change is an annotation: it is written with the change itself. Called by the routes.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable
from datetime import UTC, datetime

from pydantic import ValidationError
from starlette.requests import Request

from exo_inference.controller.admission.problems import Refused
from exo_inference.controller.stores.base import ObjectNotFound, Store
from exo_inference.resources import (
    CHANGED_ANNOTATION,
    DeploymentSpec,
    InferenceDeployment,
    ObjectMeta,
)
from exo_inference.wire import LastChange

_VERSION = re.compile(r"([0-9]{1,18})-[0-9a-f]{8}")
_TAG = re.compile(r'\s*"([!#-~]{1,64})"\s*')
_MAX_TAGS = 10

_CATCH_UP_SECONDS = 2.0
_LOOK_SECONDS = 0.05
"""How long a version that another controller has just written is waited for, and how often is looked."""

_FIELDS: tuple[tuple[str, Callable[[DeploymentSpec], object]], ...] = (
    ("model", lambda spec: spec.model),
    ("gpu-type", lambda spec: spec.gpu_type),
    ("gpu-count", lambda spec: spec.gpu_count),
    ("replicas", lambda spec: spec.replicas),
    ("inference-engine", lambda spec: spec.engine.name),
    ("inference-engine-version", lambda spec: spec.engine.version),
    ("inference-engine-parameters", lambda spec: spec.engine_parameters),
    ("product-name", lambda spec: spec.product_name),
)


def version_of(metadata: ObjectMeta) -> str:
    """Return what tells a deployment as it is wanted from the same one before and after a change."""
    # A new name is no new specification, and so no new generation.
    name = hashlib.sha256(metadata.name.encode()).hexdigest()[:8]
    return f"{metadata.generation}-{name}"


def after_change(
    present: InferenceDeployment, metadata: ObjectMeta, spec: DeploymentSpec
) -> ObjectMeta:
    """Return the metadata that a deployment has once this is stored, as far as its version goes."""
    generation = present.metadata.generation + (spec != present.spec)
    return metadata.model_copy(update={"generation": generation})


def note_change(
    present: InferenceDeployment, metadata: ObjectMeta, spec: DeploymentSpec, *, by: str
) -> ObjectMeta:
    """Return the metadata with who changes what now; as it is where nothing changes.

    Args:
        present: the deployment as it is.
        metadata: what it gets.
        spec: what it becomes.
        by: the id of the key that signed the request.
    """
    fields = [name for name, read in _FIELDS if read(spec) != read(present.spec)]
    if metadata.name != present.metadata.name:
        fields.insert(0, "name")
    if not fields:
        return metadata
    generation = after_change(present, metadata, spec).generation
    change = LastChange(at=datetime.now(UTC), by=by[:64], fields=fields, generation=generation)
    text = change.model_dump_json(by_alias=True)
    annotations = {**metadata.annotations, CHANGED_ANNOTATION: text}
    return metadata.model_copy(update={"annotations": annotations})


def last_change(deployment: InferenceDeployment) -> LastChange | None:
    """Return who made the last change through the API; None where it was made past it, or nobody knows."""
    text = deployment.metadata.annotations.get(CHANGED_ANNOTATION, "")
    if len(text) > 1000:
        return None
    try:
        change = LastChange.model_validate_json(text)
    except ValidationError:
        return None
    return change if change.generation == deployment.metadata.generation else None


async def catch_up(store: Store, request: Request) -> None:
    """Wait a moment for what another controller has written, if the version says that there is more."""
    numbers = [int(m[1]) for tag in _read_tags(request) or () if (m := _VERSION.fullmatch(tag))]
    uid: str = request.path_params["id"].lower()
    deadline = asyncio.get_running_loop().time() + _CATCH_UP_SECONDS
    while numbers:
        try:
            present = await store.get(InferenceDeployment, uid)
        except ObjectNotFound:
            return
        is_there = present.metadata.generation >= min(numbers)
        if is_there or asyncio.get_running_loop().time() >= deadline:
            return
        await asyncio.sleep(_LOOK_SECONDS)


def check_unchanged(request: Request, present: InferenceDeployment) -> None:
    """Refuse a write that was based on another version than the present one.

    Raises:
        Refused: 412, with whose change it met; 400 for a header that cannot be read.
    """
    tags = _read_tags(request)
    found = version_of(present.metadata)
    if tags is None or "*" in tags or found in tags:
        return
    name = present.metadata.name
    raise Refused(
        412,
        "Deployment changed",
        f"the deployment {name!r} was changed since it was read (then {tags[0]}, now {found}): "
        f"{_tell(present)}; nothing was changed by this request",
        hint=f"Look at it with `exo dedicated-inference deployment show {name}`, and repeat the change "
        "if it is still wanted.",
    )


def _tell(present: InferenceDeployment) -> str:
    change = last_change(present)
    if change is None:
        return "the last change was made past this API, by kubectl or a controller of the cluster"
    fields = ", ".join(change.fields)
    return (
        f"the last change, of {fields}, was made with the key {change.by} at {change.at:%H:%M:%SZ}"
    )


def _read_tags(request: Request) -> list[str] | None:
    """Return the entity tags of `If-Match` (RFC 9110, 13.1.1); None where there are none."""
    headers = request.headers.getlist("if-match")
    if not headers:
        return None
    text = ",".join(headers)
    if text.strip() == "*":
        return ["*"]
    tags = [_TAG.fullmatch(part) for part in text.split(",", _MAX_TAGS)]
    if not all(tags):
        raise Refused(
            400,
            "Header not understood",
            f"If-Match must be * or a version in double quotes, found {text[:80]!r}",
            hint="Send the ETag of the GET as it came.",
        )
    return [tag[1] for tag in tags if tag is not None]
