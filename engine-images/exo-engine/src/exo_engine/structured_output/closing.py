"""Objects that say which properties they have, and not whether others may be there, get no others.

JSON Schema allows anything beside; whoever writes a schema for an answer rarely means it, and a model that is led
into a property of its own may write there for ever. vLLM's default does the same (xgrammar's strict mode).
An answer without further properties keeps to the schema as it was written, too.
"""

from __future__ import annotations

from typing import Any

from exo_engine.structured_output.schema_check import TABLES, VALUES

_COMBINING = frozenset(
    {"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "dependencies"}
)
"""What may ask for properties that stand elsewhere, where it is beside `properties`."""
_OPEN = frozenset(
    {"additionalProperties", "patternProperties", "unevaluatedProperties", "minProperties", "propertyNames"}
)  # fmt: skip
"""What says of others whether, how many or how they may be there."""


def closed(schema: Any) -> Any:
    """Return a schema whose objects have no properties but those that it names.

    A schema in which several parts describe one object together stays as it is.
    """
    return schema if _combines(schema) else _closed(schema)


def _combines(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(map(_combines, schema))
    if not isinstance(schema, dict):
        return False
    num_parts = len(_COMBINING & schema.keys()) + ("properties" in schema)
    if "allOf" in schema or num_parts > 1:
        return True
    return any(_combines(part) for name, part in _parts(schema))


def _parts(schema: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the schemas within, by keyword; those of a table one by one."""
    found: list[tuple[str, Any]] = []
    for name, part in schema.items():
        if name in TABLES and isinstance(part, dict):
            found += [(name, each) for each in part.values()]
        elif name not in VALUES:
            found.append((name, part))
    return found


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _closed_part(name, part) for name, part in schema.items()}
    names, required = schema.get("properties"), schema.get("required", [])
    is_whole = (
        isinstance(names, dict)
        and isinstance(required, list)
        and all(isinstance(name, str) and name in names for name in required)
    )
    if is_whole and not _OPEN & schema.keys():
        found["additionalProperties"] = False
    return found


def _closed_part(name: str, part: Any) -> Any:
    if name in VALUES:
        return part
    if name in TABLES and isinstance(part, dict):
        return {key: _closed(each) for key, each in part.items()}
    return _closed(part)
