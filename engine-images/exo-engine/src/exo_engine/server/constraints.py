"""What a request says its answer must keep to: response_format, structured_outputs and the guided_* names.

One constraint at most. Here it becomes the text of a grammar; `pools/grammar_pool.py` has it compiled.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from exo_engine.server.api_errors import ApiError, bad_request, not_supported
from exo_engine.server.fields import Fields
from exo_engine.server.inner_fields import JSON_FORMAT, JSON_SCHEMA, RESPONSE_FORMAT
from exo_engine.server.known_fields import check_fields
from exo_engine.structured_output import grammars
from exo_engine.structured_output.closing import closed
from exo_engine.structured_output.schema_check import MAX_BYTES, SchemaRefused, check
from exo_engine.structured_output.tags import tag_grammar

_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_OLD_NAMES = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "structural_tag": "structural_tag",
}
_BACKENDS = ("auto", "guidance", "llguidance")
_MAX_CHOICES = 16_384
FIELDS = frozenset(
    [
        "response_format",
        "structured_outputs",
        "guided_decoding_backend",
        "guided_whitespace_pattern",
        *_OLD_NAMES,
    ]
)
"""Those that are read here."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A grammar that was asked for and is not compiled yet.

    Attributes:
        param: the field that asked, for messages.
        grammar: its text.
        is_foreign: it is in a form of the user's own, still to be converted.
        schema: what it was made of, to find the place of an error.
    """

    param: str
    grammar: str
    is_foreign: bool = False
    schema: Any = None


def read_constraint(fields: Fields) -> Constraint | None:
    """Return what the answer must keep to; None: nothing.

    Raises:
        ApiError: a field is wrong, there is more than one constraint, or one is not honoured.
    """
    _check_backend(fields)
    whitespace = fields.string("guided_whitespace_pattern")
    asked = [
        (fields.name(name), kind, fields.values[name], whitespace)
        for name, kind in _OLD_NAMES.items()
        if fields.has(name)
    ]
    asked += _read_structured_outputs(fields, whitespace)
    asked += _read_response_format(fields, whitespace)
    if len(asked) > 1:
        names = " and ".join(param for param, *_ in asked)
        raise bad_request(f"only one constraint is possible, got {names}", asked[1][0])
    if not asked:
        return None
    param, kind, value, whitespace = asked[0]
    try:
        return _constraint(param, kind, value, whitespace)
    except SchemaRefused as exc:
        raise bad_request(f"{param}: {exc.message}", param, "invalid_schema") from exc


def schema_constraint(param: str, schema: Any) -> Constraint:
    """Return the constraint that a schema is, for callers with one of their own.

    Raises:
        ApiError: it is not honoured.
    """
    try:
        return _constraint(param, "json", schema, grammars.AT_MOST_A_BLANK)
    except SchemaRefused as exc:
        raise bad_request(f"{param}: {exc.message}", param, "invalid_schema") from exc


def _check_backend(fields: Fields) -> None:
    backend = fields.string("guided_decoding_backend")
    if backend is not None and backend.partition(":")[0] not in _BACKENDS:
        raise not_supported(
            "guided_decoding_backend",
            f"guided_decoding_backend {backend[:40]!r} (guidance is here)",
        )


def _read_structured_outputs(
    fields: Fields, whitespace: str | None
) -> list[tuple[str, str, Any, str | None]]:
    inner = Fields(fields.mapping("structured_outputs"), prefix="structured_outputs.")
    if inner.boolean("disable_additional_properties"):
        raise not_supported(
            inner.name("disable_additional_properties"),
            "disable_additional_properties (say additionalProperties: false in the schema)",
        )
    for name in ("disable_fallback", "json_object"):
        inner.boolean(name)
    own = inner.string("whitespace_pattern")
    whitespace = whitespace if own is None else own
    if inner.boolean("disable_any_whitespace"):
        whitespace = ""
    known = {*_KINDS, "disable_additional_properties", "disable_fallback"}
    for name in inner.values:
        if name not in known | {"whitespace_pattern", "disable_any_whitespace"} and inner.has(name):
            raise bad_request(
                f"unknown field {inner.name(name[:64])!r}: this engine would ignore it",
                inner.name(name[:64]),
                "unknown_parameter",
            )
    return [
        (inner.name(kind), kind, inner.values[kind], whitespace)
        for kind in _KINDS
        if inner.has(kind) and not (kind == "json_object" and inner.values[kind] is False)
    ]


def _read_response_format(
    fields: Fields, whitespace: str | None
) -> list[tuple[str, str, Any, str | None]]:
    value = fields.mapping("response_format")
    inner = Fields(value, prefix="response_format.")
    kind = inner.string("type")
    if kind in ("text", "json_object"):
        check_fields(inner, RESPONSE_FORMAT)
    if kind == "json_object":
        return [("response_format", "json_object", True, whitespace)]
    if kind == "structural_tag":
        return [("response_format", "structural_tag", value, whitespace)]
    if kind == "json_schema":
        check_fields(inner, JSON_FORMAT)
        named = Fields(inner.mapping("json_schema"), prefix="response_format.json_schema.")
        check_fields(named, JSON_SCHEMA)
        named.boolean("strict")  # without it a schema is kept to just the same
        if not named.has("schema"):
            raise named.wrong("schema", "a JSON schema")
        return [(named.name("schema"), "json", named.values["schema"], whitespace)]
    if value and kind != "text":
        raise inner.wrong("type", "text, json_object, json_schema or structural_tag")
    return []


def _constraint(param: str, kind: str, value: Any, whitespace: str | None) -> Constraint:
    if kind in ("json", "json_object"):
        schema = _schema(param, value) if kind == "json" else {"type": "object"}
        check(schema)
        pattern = grammars.WHITESPACE if whitespace is None else whitespace
        rule = grammars.json_rule(closed(schema), whitespace=pattern)
        return Constraint(param, _bounded(param, grammars.grammar(rule)), schema=schema)
    if kind == "structural_tag":
        return Constraint(param, _bounded(param, tag_grammar(value)))
    if kind == "choice":
        return Constraint(param, _bounded(param, grammars.grammar(_choice_rule(param, value))))
    if not isinstance(value, str) or not value:
        raise bad_request(f"{param} must be a string that is not empty", param)
    if kind == "regex":
        return Constraint(param, _bounded(param, grammars.grammar(grammars.regex_rule(value))))
    return Constraint(param, _bounded(param, value), is_foreign=True)


def _schema(param: str, value: Any) -> Any:
    """Return a schema, which vLLM's clients may send as text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as exc:
        raise bad_request(f"{param} is text, but no JSON: {exc}", param) from exc


def _choice_rule(param: str, value: Any) -> str:
    is_list = isinstance(value, list) and 0 < len(value) <= _MAX_CHOICES
    if not is_list or not all(isinstance(each, str) and each for each in value):
        raise bad_request(
            f"{param} must be a list of 1 to {_MAX_CHOICES} strings that are not empty", param
        )
    return grammars.any_of(map(grammars.literal, value))


def _bounded(param: str, text: str) -> str:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as exc:
        half = f"U+{ord(text[exc.start]):04X}"
        raise bad_request(
            f"{param} holds half of a surrogate pair ({half}), which is no character", param
        ) from exc
    if size > MAX_BYTES:
        raise ApiError(
            400,
            f"{param} makes a grammar of {size} bytes, and {MAX_BYTES} are the most",
            code="invalid_schema",
            param=param,
        )
    return text
