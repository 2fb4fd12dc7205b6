"""How a resource is kept as a Kubernetes object, and how it is read back. Pure.

The name and the uid of a resource need not be the object's own. A deployment can be renamed, an
object cannot: the new name is an annotation. A uid is chosen before the object exists, so that what
is stored ahead can name it; it is bound to the object's name, and so a copy of the object under
another name does not have it (`identity.py`). Objects that kubectl or a GitOps tool made have the
cluster's uid.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from exo_inference.kubernetes_api.identity import (
    SEAL_ANNOTATION,
    SUCCESSOR_ANNOTATION,
    UID_ANNOTATION,
    Age,
    Claim,
    Identity,
    Seal,
    identify,
    sealed_annotation,
)
from exo_inference.resources import (
    API_GROUP,
    API_VERSION,
    InferenceDeployment,
    InferenceModel,
    Resource,
    model_object_name,
)

UID_LABEL = f"{API_GROUP}/uid"
"""Finds an object, and what is stored beside it, by its uid."""

NAME_ANNOTATION = f"{API_GROUP}/name"
CREATED_ANNOTATION = f"{API_GROUP}/created-at"
"""To the microsecond, as Kubernetes counts seconds and lists are oldest first."""

_HIDDEN = frozenset(
    {
        UID_ANNOTATION,
        SEAL_ANNOTATION,
        NAME_ANNOTATION,
        CREATED_ANNOTATION,
        "kubectl.kubernetes.io/last-applied-configuration",
    }
)


_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Stored:
    """One object of the cluster.

    Attributes:
        name, uid: the object's own.
        version: its resourceVersion; they are whole numbers that grow (KEP-5504).
        identity: what it says of the uid that clients know it by; others may have that one.
        resource: what it means; None if it cannot be read, and `problem` says why.
        seal: what it has of its seal, whosever that is.
        heir: name of the object that may have its uid when it is gone.
    """

    name: str
    uid: str
    version: int
    age: Age
    identity: Identity
    resource: Resource | None
    problem: str = ""
    seal: str = ""
    heir: str = ""

    @property
    def resource_uid(self) -> str:
        """The uid that it has or asks for."""
        return self.identity.uid

    def claim(self, kind: str) -> Claim:
        """Return what it has to say where uids are given out."""
        resource = self.resource
        is_idle = resource is None or resource.metadata.deletion_timestamp is not None
        what, heir = (f"{kind} {name}" for name in (self.name, self.heir or self.name))
        return Claim(self.uid, self.identity, self.age, what, is_idle, heir)

    @property
    def is_renamed(self) -> bool:
        """Whether the resource has another name than the object."""
        return self.resource is not None and self.resource.metadata.name != self.name


def read_object(kind: type[Resource], raw: Mapping[str, Any], seal: Seal | None = None) -> Stored:
    """Read one object as the API server gives it; one that makes no sense is a `problem`.

    Args:
        kind: what it is.
        raw: the object.
        seal: of the controllers; None where seals cannot be checked.
    """
    meta = raw["metadata"]
    annotations = meta.get("annotations", {})
    name, uid = meta["name"], meta["uid"]
    identity = identify(raw, kind.KIND, seal)
    age = Age(meta["creationTimestamp"], annotations.get(CREATED_ANNOTATION, ""), name)
    resource, problem = _validate(kind, raw, identity.uid)
    if resource is not None and resource.metadata.name != name:
        resource = resource.model_copy(update={"metadata": resource.metadata.kept_as(name)})
    version = int(meta["resourceVersion"])
    heir = str(annotations.get(SUCCESSOR_ANNOTATION, ""))
    return Stored(
        name, uid, version, age, identity, resource, problem,
        seal=annotations.get(SEAL_ANNOTATION, ""), heir=heir if _NAME.fullmatch(heir) else "",
    )  # fmt: skip


def resource_uid(raw: Mapping[str, Any]) -> str:
    """Return the uid that an object has or asks for."""
    return identify(raw).uid


def _validate(
    kind: type[Resource], raw: Mapping[str, Any], uid: str
) -> tuple[Resource | None, str]:
    """Return the resource, or why there is none.

    A status that makes no sense is left out: it was observed, and is observed again. A spec that
    makes no sense is what someone wants, and must not be taken for something else.
    """
    parts = {
        "apiVersion": raw["apiVersion"],
        "kind": kind.KIND,
        "metadata": _metadata(kind, raw, uid),
        "spec": raw.get("spec"),
    }
    try:
        return kind.model_validate({**parts, "status": raw.get("status") or {}}), ""
    except ValidationError:
        pass
    try:
        return kind.model_validate(parts), ""
    except ValidationError as exc:
        (first, *_) = exc.errors(include_url=False, include_input=False)
        return None, f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def new_object(resource: Resource, now: datetime, seal: Seal | None = None) -> dict[str, Any]:
    """Return the object to create; the resource has a uid, which is sealed where that can be."""
    meta = resource.metadata
    sealed = {}
    if seal is not None:
        sealed[SEAL_ANNOTATION] = sealed_annotation(resource.KIND, meta.name, meta.uid, seal)
    return {
        "apiVersion": API_VERSION,
        "kind": resource.KIND,
        "metadata": {
            "name": meta.name,
            "labels": {**meta.labels, UID_LABEL: meta.uid},
            "annotations": {
                **meta.annotations,
                UID_ANNOTATION: f"{meta.name}/{meta.uid}",
                CREATED_ANNOTATION: now.astimezone(UTC).isoformat(timespec="microseconds"),
                **sealed,
            },
            "finalizers": list(meta.finalizers),
        },
        "spec": dump_part(resource, "spec"),
    }


def plan_change(stored: Stored, wanted: Resource) -> dict[str, Any]:
    """Return the merge patch that makes an object as wanted: what differs, and nothing else.

    Fields that are as they were stay out of it, so their owners (a GitOps tool, an autoscaler) stay
    their owners. Empty if nothing differs.
    """
    assert stored.resource is not None, "only what was read can be changed"
    old, new = stored.resource.metadata, wanted.metadata
    annotations = _difference(old.annotations, new.annotations)
    if new.name != old.name:
        annotations[NAME_ANNOTATION] = None if new.name == stored.name else new.name
    metadata: dict[str, Any] = {
        "labels": _difference(old.labels, new.labels),
        "annotations": annotations,
    }
    metadata = {key: value for key, value in metadata.items() if value}
    if new.finalizers != old.finalizers:
        metadata["finalizers"] = list(new.finalizers)
    patch = {
        "metadata": metadata,
        "spec": _difference(dump_part(stored.resource, "spec"), dump_part(wanted, "spec")),
    }
    return {key: value for key, value in patch.items() if value}


def dump_part(resource: Resource, part: str, *, with_nulls: bool = False) -> dict[str, Any]:
    """Return `spec` or `status` in its form in YAML."""
    dumped: dict[str, Any] = getattr(resource, part).model_dump(
        mode="json", by_alias=True, exclude_none=not with_nulls
    )
    return dumped


def _metadata(kind: type[Resource], raw: Mapping[str, Any], uid: str) -> dict[str, Any]:
    meta = raw["metadata"]
    annotations = meta.get("annotations", {})
    labels = meta.get("labels", {})
    return {
        "name": _name(kind, raw),
        "uid": uid,
        "generation": meta.get("generation", 1),
        "resourceVersion": meta["resourceVersion"],
        "creationTimestamp": meta["creationTimestamp"],
        "updateTimestamp": _update_time(meta),
        "deletionTimestamp": meta.get("deletionTimestamp"),
        "finalizers": meta.get("finalizers", ()),
        "labels": {key: value for key, value in labels.items() if key != UID_LABEL},
        "annotations": {key: value for key, value in annotations.items() if key not in _HIDDEN},
    }


def _name(kind: type[Resource], raw: Mapping[str, Any]) -> str:
    meta = raw["metadata"]
    annotations = meta.get("annotations", {})
    if kind is InferenceDeployment:
        renamed = str(annotations.get(NAME_ANNOTATION, ""))  # which is a label of pods, too
        return renamed if _NAME.fullmatch(renamed) else str(meta["name"])
    source = raw.get("spec", {}).get("source")
    if kind is InferenceModel and isinstance(source, str):
        return model_object_name(source)  # the name in a manifest is for its reader alone
    return str(meta["name"])


def _update_time(meta: Mapping[str, Any]) -> str:
    """Return when spec or metadata were last written; who wrote what is recorded with its time."""
    times = [
        entry["time"]
        for entry in meta.get("managedFields", ())
        if entry.get("subresource") != "status" and "time" in entry
    ]
    return str(max(times, default=meta["creationTimestamp"]))


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch from one mapping to another."""
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if inner := _difference(before, value):
                patch[key] = inner
        elif key not in old or before != value:
            patch[key] = value
    return patch
