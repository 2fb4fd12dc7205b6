"""What of a JSON schema is refused before anybody compiles it, with the place.

llguidance refuses most of what it does not honour, and takes three things silently: keywords of drafts
before 4, its own options inside a schema, and `$ref` beside other keywords, which drafts before 2019-09
ignore. Sizes are bounded here, too, so that nothing reads a schema that is too large.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from exo_engine.errors import RequestError

MAX_BYTES = 2**20
MAX_DEPTH = 64
TABLES = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
"""Keywords whose names are the schema's own."""
VALUES = ("const", "enum", "default", "examples")
"""Keywords whose values are no schemas."""
_OLD = ("disallow", "divisibleBy", "extends")
"""Of draft 3; later drafts know them no more, and so ignore them."""
_OLD_DRAFTS = ("draft-03", "draft-04", "draft-06", "draft-07")


class SchemaRefused(RequestError):
    """A schema that is not honoured here.

    Args:
        message: why.
        pointer: where, as a JSON pointer.
    """

    def __init__(self, message: str, pointer: str) -> None:
        super().__init__(f"{message} (at {pointer or 'the top'!s})", param="structured_outputs")
        self.pointer = pointer


def check(schema: Any) -> None:
    """Refuse a schema that would not be honoured.

    Raises:
        SchemaRefused: it is none, too large, or asks for what is silently left out.
    """
    if not isinstance(schema, dict | bool):
        raise SchemaRefused("a JSON schema is an object, or true or false", "")
    if schema is False:
        raise SchemaRefused("no text can match a schema that is false", "")
    if schema is True:
        return
    draft = str(schema.get("$schema", ""))
    if "draft-03" in draft:
        raise SchemaRefused("draft 3 is not supported; name draft 4 or later", "/$schema")
    for pointer, depth, value in walk(schema):
        if depth > MAX_DEPTH:
            raise SchemaRefused(f"the schema is nested more than {MAX_DEPTH} deep", pointer)
        if isinstance(value, dict):
            _check_keywords(value, pointer, draft)
    size = len(json.dumps(schema, ensure_ascii=False).encode(errors="replace"))
    if size > MAX_BYTES:
        raise SchemaRefused(f"the schema has {size} bytes, and {MAX_BYTES} are the most", "")


def walk(schema: Any) -> Iterator[tuple[str, int, Any]]:
    """Yield pointer, depth and value of everything in a schema that is no plain value."""
    waiting: list[tuple[str, int, Any]] = [("", 0, schema)]
    while waiting:
        pointer, depth, value = waiting.pop()
        yield pointer, depth, value
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        waiting += [
            (f"{pointer}/{escaped(name)}", depth + 1, part)
            for name, part in parts
            if isinstance(part, dict | list)
        ]


def escaped(name: str | int) -> str:
    """Return a part of a JSON pointer."""
    return str(name).replace("~", "~0").replace("/", "~1")


def _check_keywords(value: dict[str, Any], pointer: str, draft: str) -> None:
    names = pointer.split("/")
    is_value = any(
        name in VALUES and before not in TABLES for before, name in pairwise(["", *names])
    )
    if is_value or names[-1] in TABLES:
        return
    for name in _OLD:
        if name in value:
            raise SchemaRefused(
                f"{name!r} is a keyword of draft 3, which is not supported", f"{pointer}/{name}"
            )
    if isinstance(value.get("required"), bool):
        raise SchemaRefused("'required' must be a list of names", f"{pointer}/required")
    if "x-guidance" in value:
        raise SchemaRefused(
            "options of llguidance inside a schema are not supported", f"{pointer}/x-guidance"
        )
    if "$ref" in value and len(value) > 1 and any(each in draft for each in _OLD_DRAFTS):
        raise SchemaRefused(
            f"keywords beside $ref are ignored by {draft}; leave them out, or name a later draft",
            f"{pointer}/$ref",
        )
