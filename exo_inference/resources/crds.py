"""CustomResourceDefinitions, made from the resource models: structural schemas, columns, names.

`scripts/generate_crds.py` writes them for the chart. A field, its bounds and its rules are said once,
in the model; here is only what the model cannot say: how kubectl shows a kind.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from exo_inference.resources.api_key import InferenceApiKey
from exo_inference.resources.base import API_GROUP, API_VERSION, Resource, cel_rules
from exo_inference.resources.deployment import InferenceDeployment
from exo_inference.resources.model import InferenceModel
from exo_inference.resources.operation import InferenceOperation

_DNS_LABEL = cel_rules(
    (
        "self.metadata.name.size() <= 63 && "
        "self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
        "metadata.name must be 1 to 63 lower-case letters, digits and '-', beginning and ending "
        "with a letter or digit",
    )
)
_COPIED = (
    "type",
    "format",
    "description",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "maxItems",
    "pattern",
    "enum",
    "required",
    "x-kubernetes-validations",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of `kubectl get`; `wide` ones are shown with `-o wide` alone."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False


@dataclass(frozen=True, slots=True)
class _Kind:
    resource: type[Resource]
    short_name: str
    columns: tuple[Column, ...]
    scale: dict[str, str] | None = None
    categories: tuple[str, ...] = ("exo",)


def _condition(type_: str, field: str = "status") -> str:
    return f'.status.conditions[?(@.type=="{type_}")].{field}'


_AGE = Column("Age", ".metadata.creationTimestamp", "date")
_KINDS = (
    _Kind(
        InferenceModel,
        "im",
        (
            Column("Source", ".spec.source"),
            Column("Ready", _condition("Ready")),
            Column("Bytes", ".status.sizeBytes", "integer", wide=True),
            Column("Message", _condition("Ready", "message"), wide=True),
            _AGE,
        ),
    ),
    _Kind(
        InferenceDeployment,
        "idep",
        (
            Column("Model", ".spec.model"),
            Column("GPU", ".spec.gpuType"),
            Column("GPUs", ".spec.gpuCount", "integer", wide=True),
            Column("Wanted", ".spec.replicas", "integer"),
            Column("Autoscaled", ".status.autoscaledReplicas", "integer", wide=True),
            Column("Ready", ".status.readyReplicas", "integer"),
            Column("Available", _condition("Available")),
            Column("Status", _condition("Ready", "reason")),
            Column("Message", _condition("Ready", "message"), wide=True),
            _AGE,
        ),
        scale={
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.currentReplicas",
            "labelSelectorPath": ".status.selector",
        },
    ),
    _Kind(
        InferenceApiKey,
        "ikey",
        (Column("Display Name", ".spec.displayName"), Column("Scope", ".spec.scope"), _AGE),
    ),
    _Kind(
        InferenceOperation,
        "iop",
        (
            Column("Kind", ".spec.subject.kind"),
            Column("Object", ".spec.subject.name"),
            Column("State", ".spec.result.state"),
            _AGE,
        ),
        categories=(),  # thousands of them would bury what `kubectl get exo` is asked for
    ),
)


def custom_resource_definitions() -> dict[str, dict[str, Any]]:
    """Return every definition by its name, `<plural>.<group>`."""
    return {f"{kind.resource.PLURAL}.{API_GROUP}": _definition(kind) for kind in _KINDS}


def _definition(kind: _Kind) -> dict[str, Any]:
    resource = kind.resource
    subresources: dict[str, Any] = {"status": {}}
    if kind.scale is not None:
        subresources["scale"] = kind.scale
    version = {
        "name": API_VERSION.partition("/")[2],
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [_column(column) for column in kind.columns],
        "schema": {"openAPIV3Schema": object_schema(resource)},
        "subresources": subresources,
    }
    names = {
        "kind": resource.KIND,
        "listKind": f"{resource.KIND}List",
        "plural": resource.PLURAL,
        "singular": resource.KIND.lower(),
        "shortNames": [kind.short_name],
        "categories": list(kind.categories),
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.PLURAL}.{API_GROUP}"},
        "spec": {"group": API_GROUP, "names": names, "scope": "Namespaced", "versions": [version]},
    }


def object_schema(resource: type[Resource]) -> dict[str, Any]:
    """Return the structural schema (OpenAPI v3) of one kind."""
    found = resource.model_json_schema(by_alias=True)
    definitions = found.get("$defs", {})
    properties = found["properties"]
    status = _structural(properties["status"], definitions)
    if "observedGeneration" in status["properties"]:
        # An object that nobody has looked at has observed generation 0 then, not none: kstatus, by which
        # Flux waits, takes an object without one for settled.
        status["default"] = {}
    return {
        "type": "object",
        "description": _summary(resource),
        "required": ["spec"],
        **_DNS_LABEL,
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": _structural(properties["spec"], definitions),
            "status": status,
        },
    }


def _structural(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without references and alternatives, as a CRD demands it."""
    schema = dict(schema)
    if reference := schema.pop("$ref", None):
        schema = {**definitions[reference.rpartition("/")[2]], **schema}
    nullable = False
    if alternatives := schema.pop("anyOf", None):
        (kept,) = [entry for entry in alternatives if entry.get("type") != "null"]
        nullable = len(alternatives) == 2
        # What stands beside the alternatives is about the field, so it goes before the type's own.
        inner = _structural(kept, definitions)
        return {**inner, **_copied(schema), **({"nullable": True} if nullable else {})}
    result = _copied(schema)
    if schema.get("default") is not None:
        result["default"] = schema["default"]
    if items := schema.get("items"):
        result["items"] = _structural(items, definitions)
    if properties := schema.get("properties"):
        result["properties"] = {
            name: _structural(part, definitions) for name, part in properties.items()
        }
    if isinstance(values := schema.get("additionalProperties"), dict):
        result["additionalProperties"] = _structural(values, definitions)
    if result.get("type") == "integer":
        result["format"] = "int64"
    return result


def _copied(schema: dict[str, Any]) -> dict[str, Any]:
    found = {key: schema[key] for key in _COPIED if key in schema}
    if "description" in found:
        found["description"] = inspect.cleandoc(found["description"]).split("\n\n")[0]
    return found


def _column(column: Column) -> dict[str, Any]:
    priority = {"priority": 1} if column.wide else {}
    return {"name": column.name, "type": column.type, "jsonPath": column.path, **priority}


def _summary(resource: type[Resource]) -> str:
    return inspect.cleandoc(resource.__doc__ or resource.KIND).split("\n\n")[0]
