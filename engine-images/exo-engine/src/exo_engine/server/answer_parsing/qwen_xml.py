"""Qwen3-Coder and Qwen3.5: `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`.

Values are text; what they mean is told by the tool's schema, as the template of Qwen/Qwen3-Coder-30B-A3B-Instruct
describes the tools.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from exo_engine.server.answer_parsing.hermes import TaggedCalls
from exo_engine.server.answer_parsing.json_scan import dump_json, parse_json
from exo_engine.server.answer_parsing.pieces import Call

_FUNCTION = re.compile(r"<function=([^>\n]{1,256})>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]{1,256})>")
_ENDS = ("</parameter>", "</function>")
_MAX_DIGITS = 400


class QwenXml(TaggedCalls):
    """Tags all the way; the outer pair may be missing."""

    starts = ("<tool_call>", "<function=")

    def __init__(self, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__()
        self._types = {tool["function"]["name"]: _types_of(tool["function"]) for tool in tools}

    def _begin(self, marker: str) -> None:
        super()._begin(marker)
        self.end = "</tool_call>" if marker == "<tool_call>" else "</function>"

    def _read(self, text: str) -> list[Call]:
        try:
            return [self._call(*found.groups()) for found in _FUNCTION.finditer(text)]
        except ValueError:
            return []

    def _call(self, name: str, body: str) -> Call:
        name = name.strip()
        types = self._types.get(name, {})
        found = list(_PARAMETER.finditer(body))
        arguments = {}
        for each, end in zip(
            found, [*(after.start() for after in found[1:]), len(body)], strict=False
        ):
            value = body[each.end() : end]
            arguments[each[1].strip()] = _typed(_trimmed(value), types.get(each[1].strip(), set()))
        return Call(name, dump_json(arguments))


def _trimmed(value: str) -> str:
    """Return a value without its end tag and the line breaks that the template puts around it."""
    for end in _ENDS:
        at = value.find(end)
        value = value if at < 0 else value[:at]
    return value.removeprefix("\n").removesuffix("\n")


def _types_of(function: Mapping[str, Any]) -> dict[str, set[str]]:
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    if not isinstance(properties, dict):
        return {}
    return {name: _schema_types(schema, 0) for name, schema in properties.items()}


def _schema_types(schema: Any, depth: int) -> set[str]:
    """Return the types that a schema lets through; none: not known."""
    if not isinstance(schema, dict) or depth > 8:
        return set()
    named = schema.get("type")
    types = {
        each for each in (named if isinstance(named, list) else [named]) if isinstance(each, str)
    }
    if not types and isinstance(schema.get("enum"), list):
        types = {_type_of(each) for each in schema["enum"]}
    for key in ("anyOf", "oneOf", "allOf"):
        for each in schema[key] if isinstance(schema.get(key), list) else ():
            types |= _schema_types(each, depth + 1)
    return types


def _type_of(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return "null" if value is None else names.get(type(value), "object")


def _typed(value: str, types: set[str]) -> Any:
    """Return what a text means under the types that it may have; the text itself where it means none."""
    if not types:
        return value
    if "null" in types and value.lower() == "null":
        return None
    if types & {"integer", "number"} and (number := _number(value, types)) is not None:
        return number
    if "boolean" in types and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    if types & {"object", "array"}:
        try:
            return parse_json(value)
        except ValueError:
            return value
    return value


def _number(value: str, types: set[str]) -> float | None:
    text = value.strip()
    if len(text) > _MAX_DIGITS or not text.isascii() or "_" in text:
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text) if "number" in types else math.nan
    except ValueError:
        return None
    if not math.isfinite(number):
        return None
    return int(number) if number == int(number) else number
