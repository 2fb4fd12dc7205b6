"""Objects get no properties that nobody asked for, and no schema becomes one that nothing fits."""

from __future__ import annotations

from typing import Any

import pytest
from exo_engine.server.constraints import read_constraint, schema_constraint
from exo_engine.server.fields import Fields
from exo_engine.structured_output import grammars
from exo_engine.structured_output.closing import closed

NAMED: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
SHUT: dict[str, Any] = {**NAMED, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (NAMED, SHUT),
        ({"type": "array", "items": NAMED}, {"type": "array", "items": SHUT}),
        ({"anyOf": [NAMED, {"type": "null"}]}, {"anyOf": [SHUT, {"type": "null"}]}),
        (
            {"$ref": "#/$defs/x", "$defs": {"x": NAMED}},
            {"$ref": "#/$defs/x", "$defs": {"x": SHUT}},
        ),
        (
            {"properties": {"properties": NAMED}},
            {"properties": {"properties": SHUT}, "additionalProperties": False},
        ),
    ],
)
def test_named_properties_are_all_there_are(schema: Any, expected: Any) -> None:
    assert closed(schema) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {**NAMED, "additionalProperties": True},
        {**NAMED, "patternProperties": {"^x": {}}},
        {**NAMED, "minProperties": 2},
        {**NAMED, "required": ["b"]},
        {"allOf": [NAMED, {"properties": {"b": {}}}]},
        {**NAMED, "anyOf": [{"required": ["b"]}, {"properties": {"c": {}}}]},
        {**NAMED, "$ref": "#/$defs/x", "$defs": {"x": {"properties": {"b": {}}}}},
        {"enum": [{"properties": {"a": 1}}]},
        {"const": NAMED},
        {"properties": 7},
        {"properties": {"a": {}}, "required": [[]]},
        True,
    ],
)
def test_what_may_mean_other_properties_stays(schema: Any) -> None:
    assert closed(schema) == schema


def test_requests_get_closed_objects_and_calls_little_blank() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": NAMED}}
    answer = read_constraint(Fields({"response_format": form}))
    assert answer is not None
    assert answer.grammar == grammars.grammar(grammars.json_rule(SHUT))
    call = schema_constraint("tools", NAMED)
    rule = grammars.json_rule(SHUT, whitespace=grammars.AT_MOST_A_BLANK)
    assert call.grammar == grammars.grammar(rule)
