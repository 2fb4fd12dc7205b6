"""Calls that the request forces. Their text is constrained, so it is JSON whatever the model's own format is.

Arguments leave as they come: nothing can be wrong with them but that the answer is cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from exo_engine.server.answer_parsing.json_scan import JsonScan
from exo_engine.server.answer_parsing.machine import Machine
from exo_engine.server.answer_parsing.pieces import Arguments, Call, Content, Piece

_HEAD = re.compile(r'[\s,\[]*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"parameters"\s*:\s*(?=\{)')
_TAIL = re.compile(r"\s*\}\s*")


_TABLES = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
_DATA_KEYWORDS = frozenset({"enum", "const", "default", "examples"})
"""What stands there is data, even if it looks like a reference."""


def schema_of_calls(tools: Sequence[Mapping[str, Any]], *, is_single: bool) -> dict[str, Any]:
    """Return the JSON schema of one call or more of any of these tools, as `RequiredCalls` reads them.

    The form is vLLM's: a list of objects with `name` and `parameters`. A tool's schema stands whole among the
    definitions, so that what it refers to is found.
    """
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "enum": [tool["function"]["name"]]},
                "parameters": {"$ref": f"#/$defs/tool{number}"},
            },
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for number, tool in enumerate(tools)
    ]
    return {
        "type": "array",
        "minItems": 1,
        **({"maxItems": 1} if is_single else {}),
        "items": calls[0] if len(calls) == 1 else {"anyOf": calls},
        "$defs": {
            f"tool{number}": _moved(schema_of_arguments(tool), f"#/$defs/tool{number}")
            for number, tool in enumerate(tools)
        },
    }


def schema_of_arguments(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a tool's arguments, which are an object; a tool without one takes an empty one."""
    parameters = tool["function"].get("parameters")
    return {"type": "object", **(parameters or {"additionalProperties": False})}


def _moved(value: Any, root: str, *, is_table: bool = False) -> Any:
    """Return a schema with references that hold where it has this place in another one.

    Args:
        value: a schema, or a part of one.
        root: the place, as a reference.
        is_table: the keys are names, not keywords.
    """
    if isinstance(value, list):
        return [_moved(each, root) for each in value]
    if not isinstance(value, dict):
        return value
    moved = {
        key: each
        if key in _DATA_KEYWORDS and not is_table
        else _moved(each, root, is_table=key in _TABLES and not is_table)
        for key, each in value.items()
    }
    reference = value.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = root + reference[1:]
    return moved


class NamedCall(Machine):
    """The whole text is the arguments of one tool."""

    def __init__(self, name: str) -> None:
        super().__init__(self._in_arguments)
        self._name = name
        self._has_begun = False

    def _in_arguments(self, pieces: list[Piece]) -> bool:
        text = self._take(len(self._held))
        pieces.append(Arguments(text) if self._has_begun else Call(self._name, text))
        self._has_begun = True
        return False


class RequiredCalls(Machine):
    """The text is a list of calls."""

    def __init__(self) -> None:
        super().__init__(self._in_head)
        self._is_tail = False

    def _in_head(self, pieces: list[Piece]) -> bool:
        if self._is_tail and (tail := _TAIL.match(self._held)):
            self._take(tail.end())
            self._is_tail = False
        head = _HEAD.match(self._held)
        if head is not None:
            pieces.append(Call(json.loads(head[1]), ""))
            self._take(head.end())
            self._scan = JsonScan()
            self._num_said = 0
            self._state = self._in_arguments
            return True
        if self._is_last:
            rest = self._take(len(self._held)).strip(" \t\r\n,]")
            if rest:  # the answer is cut before it named a tool
                pieces.append(Content(rest))
        return False

    def _in_arguments(self, pieces: list[Piece]) -> bool:
        status = self._scan.advance(self._held)
        end = len(self._held) if status == "open" else self._scan.position
        if end > self._num_said:
            pieces.append(Arguments(self._held[self._num_said : end]))
            self._num_said = end
        if status == "open" and not self._is_last:
            return False
        self._take(end)
        self._is_tail = True
        self._state = self._in_head
        return bool(self._held)
