"""Dates and times exactly, where llguidance takes 30 February and a leap second at any minute.

Such formats become patterns, of RFC 3339's grammar with the Gregorian calendar's days.
"""

from __future__ import annotations

from typing import Any

from exo_engine.structured_output.schema_check import TABLES, VALUES

_DATE = (
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
_TIME = (
    r"(?:(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
    r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9]))|23:59:60(?:\.[0-9]{1,9})?Z)"
)
_PATTERNS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
}


def exact(schema: Any) -> Any:
    """Return a schema with patterns for the formats that are known here."""
    if isinstance(schema, list):
        return [exact(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _exact_part(name, part) for name, part in schema.items()}
    form = found.get("format")
    pattern = _PATTERNS.get(form) if isinstance(form, str) else None
    if pattern is not None:
        del found["format"]
        found["allOf"] = [*found.get("allOf", ()), {"pattern": pattern}]
    return found


def _exact_part(name: str, part: Any) -> Any:
    if name in VALUES:
        return part
    if name in TABLES and isinstance(part, dict):
        return {key: exact(each) for key, each in part.items()}
    return exact(part)
