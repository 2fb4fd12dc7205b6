"""What all resources share: metadata, conditions, and the camelCase form of YAML and CRDs.

What only the schema of a CRD says (rules in CEL, keys of lists) stands beside the field it is about
and is ignored by pydantic; `structural_schema.py` collects it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr
from pydantic.alias_generators import to_camel

API_GROUP = "inference.exo.dev"
API_VERSION = f"{API_GROUP}/v1alpha1"


def cel_rules(*rules: tuple[str, str]) -> dict[str, Any]:
    """Return the schema extension for rules in CEL, each an expression and its message."""
    found = [{"rule": rule, "message": message} for rule, message in rules]
    return {"x-kubernetes-validations": found}


def keyed_list(*keys: str) -> dict[str, Any]:
    """Return the schema extension for a list whose items are told apart by these fields."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


def immutable(path: str, next_step: str) -> tuple[str, str]:
    """Return the rule that a field stays as it was created, for the object that has it.

    Args:
        path: the field below `spec`, as in YAML; the last part is the field.
        next_step: what to do instead.
    """
    field = path.rpartition(".")[2]
    same = f"has(self.{field}) == has(oldSelf.{field})"
    rule = f"{same} && (!has(self.{field}) || self.{field} == oldSelf.{field})"
    return rule, f"{path} cannot be changed; {next_step}"


def object_name(text: str) -> str:
    """Return a `metadata.name` for an object that has one text of its own: readable, one per text."""
    slug = re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")[:48].rstrip("-")
    return f"{slug}-{hashlib.sha256(text.encode()).hexdigest()[:10]}".lstrip("-")


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


def find_condition(conditions: Sequence[Condition], type_: str) -> Condition | None:
    """Return the condition of this type, if there is one."""
    return next((entry for entry in conditions if entry.type == type_), None)


def is_true(conditions: Sequence[Condition], type_: str) -> bool:
    """Whether a condition of this type is there and holds."""
    found = find_condition(conditions, type_)
    return found is not None and found.status == ConditionStatus.TRUE


class UidProblem(NamedTuple):
    """Why an object is not known by the uid that it asks for: the reason of a condition, and its words."""

    reason: str
    message: str


class ObjectMeta(ResourceModel):
    """Identity and life cycle of an object.

    `generation` grows when `spec` changes, `resource_version` with every write. Where objects can ask for
    a uid, the store says in `uid_problem` why one does not have it; nothing is done for such an object.
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
    _uid_problem: UidProblem | None = PrivateAttr(default=None)
    _object_name: str = PrivateAttr(default="")

    @property
    def uid_problem(self) -> UidProblem | None:
        """Why the object does not have the uid that it asks for; no part of what is stored."""
        return self._uid_problem

    @property
    def object_name(self) -> str:
        """The name of the object in the store, which a cluster keeps after a rename."""
        return self._object_name or self.name

    def without_finalizer(self, finalizer: str) -> ObjectMeta:
        """Return the metadata that holds its object for others alone."""
        left = tuple(each for each in self.finalizers if each != finalizer)
        return self.model_copy(update={"finalizers": left})

    def kept_as(self, object_name: str) -> ObjectMeta:
        """Return the metadata of the object that has this name in the store."""
        found = self.model_copy()
        found._object_name = object_name
        return found

    def known_as(self, uid: str, problem: UidProblem | None) -> ObjectMeta:
        """Return the metadata of the object under this uid."""
        found = self.model_copy(update={"uid": uid})
        found._uid_problem = problem
        return found


class Resource(ResourceModel):
    """Base of the kinds. A subclass sets `KIND` and `PLURAL` and adds `spec` and `status`."""

    KIND: ClassVar[str]
    PLURAL: ClassVar[str]

    api_version: str = API_VERSION
    kind: str
    metadata: ObjectMeta
