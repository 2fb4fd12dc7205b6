"""Structural schemas (OpenAPI v3) of custom resources, made from the resource models.

A field, its bounds and its rules are said once, in the model. `scripts/generate_crds.py` writes the chart's
CustomResourceDefinitions with them, and the store checks by them what it reads.
"""

from __future__ import annotations

import inspect
from typing import Any

from exo_inference.resources.base import Resource, cel_rules

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


def _summary(resource: type[Resource]) -> str:
    return inspect.cleandoc(resource.__doc__ or resource.KIND).split("\n\n")[0]
