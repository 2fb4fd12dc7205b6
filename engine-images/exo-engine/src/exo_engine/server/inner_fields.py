"""Which fields the objects within a request may have, as `known_fields` says it of requests.

Messages and tools go to the chat template whole, so that what nobody here knows is for the template to know;
of a message only that is refused which asks for more than text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from exo_engine.server.fields import Fields
from exo_engine.server.known_fields import KnownFields, check_fields

_NO_FIELDS: Final[frozenset[str]] = frozenset()
_CACHING: Final = frozenset({"cache_control", "prompt_cache_breakpoint"})
"""Hints for a cache that is told what to keep; this one finds beginnings by itself."""

RESPONSE_FORMAT: Final = KnownFields(
    frozenset({"type"}),
    _NO_FIELDS,
    {
        "schema": "a schema here (use type json_schema, and json_schema.schema)",
        "json_schema": "json_schema with another type than json_schema",
        "grammar": "a grammar here (use structured_outputs)",
    },
)
"""Of type text or json_object."""
JSON_FORMAT: Final = KnownFields(frozenset({"type", "json_schema"}), _NO_FIELDS, {})
JSON_SCHEMA: Final = KnownFields(
    frozenset({"schema", "strict"}), frozenset({"name", "description"}), {}
)
TEXT_PART: Final = KnownFields(
    frozenset({"type", "text"}),
    _CACHING,
    {"annotations": "annotations", "citations": "citations", "logprobs": "log probabilities"},
)
TOOL_CHOICE: Final = KnownFields(frozenset({"type", "function"}), _NO_FIELDS, {})
TOOL_CHOICE_FUNCTION: Final = KnownFields(frozenset({"name"}), _NO_FIELDS, {})
RESPONSES_TOOL: Final = KnownFields(
    frozenset({"type", "name", "description", "parameters", "strict"}),
    _NO_FIELDS,
    {
        "allowed_callers": "calls by programs",
        "async": "a call that is answered later",
        "defer_loading": "a tool that is loaded later",
        "output_schema": "a schema of what a tool returns (put it into its description)",
    },
)
MESSAGES_FORMAT: Final = KnownFields(frozenset({"type", "schema"}), _NO_FIELDS, {})
MESSAGE_REFUSED: Final[Mapping[str, str]] = {
    "audio": "sound in a message",
    "function_call": "function_call (use tool_calls)",
    "refusal": "refusal (put it into content)",
    "annotations": "annotations",
}
"""Of a message of chat. Empty ones pass: clients send back the messages that they got."""
_OF_MESSAGES: Final = KnownFields(_NO_FIELDS, _NO_FIELDS, MESSAGE_REFUSED)


def check_message(fields: Fields, prefix: str) -> None:
    """Refuse what a message says beside its text and calls, and no template writes.

    Raises:
        ApiError: there is something.
    """
    named: dict[str, Any] = {
        name: fields.values[name] for name in MESSAGE_REFUSED if fields.has(name)
    }
    check_fields(Fields(named, prefix=prefix), _OF_MESSAGES)
