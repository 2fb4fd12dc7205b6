"""Which fields the objects within a request may have, as `known_fields` says it of requests.

Messages and tools go to the chat template whole, so that what nobody here knows is for the template to know;
of a message only that is refused which asks for more than text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from exo_engine.server.api_errors import bad_request
from exo_engine.server.fields import Fields
from exo_engine.server.known_fields import KnownFields, check_fields

_NO_FIELDS: Final[frozenset[str]] = frozenset()
_CACHING: Final = frozenset({"cache_control", "prompt_cache_breakpoint"})
"""Hints for a cache that is told what to keep; this one finds beginnings by itself."""

STREAM_OPTIONS: Final = KnownFields(
    frozenset({"include_usage", "continuous_usage_stats"}), frozenset({"include_obfuscation"}), {}
)
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
_OF_ITEMS: Final = frozenset({"id", "status"})
"""What items of a response have when they come back; nothing is looked up by it."""
_BY_PROGRAMS: Final[Mapping[str, str]] = {
    "caller": "calls by programs",
    "namespace": "a namespace of tools",
}
RESPONSES_MESSAGE: Final = KnownFields(
    frozenset({"type", "role", "content"}), _OF_ITEMS, {"phase": "a phase of an answer"}
)
RESPONSES_REASONING_ITEM: Final = KnownFields(
    # The summary says shorter what the content says, and stands for it where there is none.
    frozenset({"type", "content", "summary"}),
    _OF_ITEMS,
    {"encrypted_content": "reasoning that is encrypted"},
)
RESPONSES_REASONING_PART: Final = KnownFields(frozenset({"type", "text"}), _NO_FIELDS, {})
RESPONSES_CALL: Final = KnownFields(
    frozenset({"type", "call_id", "name", "arguments"}),
    _OF_ITEMS,
    {**_BY_PROGRAMS, "async": "a call that is answered later"},
)
RESPONSES_RESULT: Final = KnownFields(
    frozenset({"type", "call_id", "name", "output"}), _OF_ITEMS, _BY_PROGRAMS
)
RESPONSES_CHOICE: Final = KnownFields(frozenset({"type", "name"}), _NO_FIELDS, {})
RESPONSES_ALLOWED: Final = KnownFields(frozenset({"type", "mode", "tools"}), _NO_FIELDS, {})
RESPONSES_STREAM: Final = KnownFields(
    _NO_FIELDS,
    frozenset({"include_usage", "include_obfuscation"}),  # the last event has the usage anyway
    {"continuous_usage_stats": "usage in every event of /v1/responses"},
)
RESPONSES_TEXT: Final = KnownFields(frozenset({"format"}), _NO_FIELDS, {"verbosity": "verbosity"})
RESPONSES_REASONING: Final = KnownFields(
    frozenset({"effort", "summary"}),
    _NO_FIELDS,
    {
        "generate_summary": "summing reasoning up",
        "context": "choosing the turns whose reasoning is seen",
        "mode": "a mode of reasoning",
    },
)
RESPONSES_FORMAT: Final = KnownFields(
    frozenset({"type", "schema", "strict"}), frozenset({"name", "description"}), {}
)
ALLOWED_CHOICE: Final = KnownFields(frozenset({"type", "allowed_tools"}), _NO_FIELDS, {})
ALLOWED_TOOLS: Final = KnownFields(frozenset({"mode", "tools"}), _NO_FIELDS, {})
MESSAGES_TOOL: Final = KnownFields(
    frozenset({"name", "description", "input_schema", "strict", "type"}),
    _CACHING | {"eager_input_streaming"},
    {
        "allowed_callers": "calls by programs",
        "defer_loading": "a tool that is loaded later",
        "input_examples": "examples of a tool's input (put them into its description)",
    },
)
MESSAGES_THINKING: Final = KnownFields(
    # How long a model thinks it decides itself.
    frozenset({"type", "display"}),
    frozenset({"budget_tokens"}),
    {},
)
MESSAGES_OUTPUT: Final = KnownFields(frozenset({"effort", "format"}), _NO_FIELDS, {})
MESSAGES_FORMAT: Final = KnownFields(frozenset({"type", "schema"}), _NO_FIELDS, {})
MESSAGES_MESSAGE: Final = KnownFields(frozenset({"role", "content"}), _NO_FIELDS, {})
_TOOLSET: Final[Mapping[str, str]] = {"toolset_name": "a set of tools"}
MESSAGES_CALL: Final = KnownFields(
    frozenset({"type", "id", "name", "input"}),
    _CACHING,
    {**_TOOLSET, "caller": "calls by programs"},
)
MESSAGES_RESULT: Final = KnownFields(
    frozenset({"type", "tool_use_id", "content", "is_error"}), _CACHING, _TOOLSET
)
MESSAGES_THOUGHT: Final = KnownFields(
    # A signature says that Anthropic wrote the thought, which is nothing to a model of one's own.
    frozenset({"type", "thinking"}),
    _CACHING | {"signature"},
    {},
)
MESSAGES_CHOICE: Final = KnownFields(
    frozenset({"type", "disable_parallel_tool_use"}),
    _NO_FIELDS,
    {"name": "the name of a tool with another type than tool"},
)
MESSAGES_NAMED_CHOICE: Final = KnownFields(
    frozenset({"type", "name", "disable_parallel_tool_use"}), _NO_FIELDS, {}
)
MESSAGE_REFUSED: Final[Mapping[str, str]] = {
    "audio": "sound in a message",
    "function_call": "function_call (use tool_calls)",
    "refusal": "refusal (put it into content)",
    "annotations": "annotations",
}
"""Of a message of chat. Empty ones pass: clients send back the messages that they got."""
_OF_MESSAGES: Final = KnownFields(_NO_FIELDS, _NO_FIELDS, MESSAGE_REFUSED)


def read_object(value: Any, name: str, known: KnownFields) -> Fields:
    """Return an object of a request that has no other fields than these.

    Args:
        value: what the client sent.
        name: where, for messages.
        known: its fields.

    Raises:
        ApiError: it is no object, or has a field that would be ignored.
    """
    if not isinstance(value, dict):
        raise bad_request(f"{name} must be an object", name)
    fields = Fields(value, prefix=f"{name}.")
    check_fields(fields, known)
    return fields


def check_message(fields: Fields, prefix: str) -> None:
    """Refuse what a message says beside its text and calls, and no template writes.

    Raises:
        ApiError: there is something.
    """
    named: dict[str, Any] = {
        name: fields.values[name] for name in MESSAGE_REFUSED if fields.has(name)
    }
    check_fields(Fields(named, prefix=prefix), _OF_MESSAGES)


OBJECTS: Final[Mapping[str, Mapping[str, KnownFields]]] = {
    "/v1/chat/completions": {
        "`messages[].content[]` (text)": TEXT_PART,
        "`tool_choice`": TOOL_CHOICE,
        "`tool_choice.function`": TOOL_CHOICE_FUNCTION,
        "`tool_choice` (allowed_tools)": ALLOWED_CHOICE,
        "`tool_choice.allowed_tools`": ALLOWED_TOOLS,
        "`response_format` (text, json_object)": RESPONSE_FORMAT,
        "`response_format` (json_schema)": JSON_FORMAT,
        "`response_format.json_schema`": JSON_SCHEMA,
        "`stream_options`": STREAM_OPTIONS,
    },
    "/v1/responses": {
        "`input[]` (message)": RESPONSES_MESSAGE,
        "`input[].content[]` (text), `input[].output[]`": TEXT_PART,
        "`input[]` (reasoning)": RESPONSES_REASONING_ITEM,
        "`input[].content[]` (reasoning), `input[].summary[]`": RESPONSES_REASONING_PART,
        "`input[]` (function_call)": RESPONSES_CALL,
        "`input[]` (function_call_output)": RESPONSES_RESULT,
        "`tools[]`": RESPONSES_TOOL,
        "`tool_choice`": RESPONSES_CHOICE,
        "`tool_choice` (allowed_tools)": RESPONSES_ALLOWED,
        "`text`": RESPONSES_TEXT,
        "`text.format` (text, json_object)": RESPONSE_FORMAT,
        "`text.format` (json_schema)": RESPONSES_FORMAT,
        "`reasoning`": RESPONSES_REASONING,
        "`stream_options`": RESPONSES_STREAM,
    },
    "/v1/messages": {
        "`messages[]`": MESSAGES_MESSAGE,
        "`messages[].content[]` (text), `system[]`": TEXT_PART,
        "`messages[].content[]` (tool_use)": MESSAGES_CALL,
        "`messages[].content[]` (tool_result)": MESSAGES_RESULT,
        "`messages[].content[]` (thinking)": MESSAGES_THOUGHT,
        "`tools[]`": MESSAGES_TOOL,
        "`tool_choice`": MESSAGES_CHOICE,
        "`tool_choice` (tool)": MESSAGES_NAMED_CHOICE,
        "`thinking`": MESSAGES_THINKING,
        "`output_config`": MESSAGES_OUTPUT,
        "`output_config.format`": MESSAGES_FORMAT,
    },
}
"""The objects within requests, by route and by where they are."""
