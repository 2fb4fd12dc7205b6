"""A request of /v1/responses as one of /v1/chat/completions.

Only fields that mean the same are carried over; what `openai` has for its own tools and stores is refused or listed
in `known_fields.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exo_engine.server.api_errors import bad_request, not_supported
from exo_engine.server.fields import Fields
from exo_engine.server.inner_fields import (
    RESPONSES_ALLOWED,
    RESPONSES_CALL,
    RESPONSES_CHOICE,
    RESPONSES_FORMAT,
    RESPONSES_MESSAGE,
    RESPONSES_REASONING,
    RESPONSES_REASONING_ITEM,
    RESPONSES_REASONING_PART,
    RESPONSES_RESULT,
    RESPONSES_TEXT,
    RESPONSES_TOOL,
    TEXT_PART,
    read_object,
)
from exo_engine.server.known_fields import RESPONSES, RESPONSES_AS_CHAT, check_fields
from exo_engine.server.prompts.turns import Turn, join_reasoning
from exo_engine.server.routes.tools import translate_tools

NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}
"""Fields of chat that stand for others here."""
_TEXT_PARTS = ("input_text", "output_text", "text")
_ROLES = ("user", "assistant", "system", "developer")
_ITEMS = {
    "message": RESPONSES_MESSAGE,
    "reasoning": RESPONSES_REASONING_ITEM,
    "function_call": RESPONSES_CALL,
    "function_call_output": RESPONSES_RESULT,
}
_REASONING_PARTS = ("reasoning_text", "summary_text")
_LOGPROBS = "message.output_text.logprobs"
INCLUDED = frozenset(
    # Of tools and pictures that are refused where they come from, and reasoning, which is told as it is.
    [
        "file_search_call.results",
        "web_search_call.results",
        "web_search_call.action.sources",
        "message.input_image.image_url",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
        "reasoning.encrypted_content",
    ]
)
"""What `include` may ask for without effect."""


def as_chat(fields: Fields) -> Fields:
    """Return the chat request that asks for the same.

    Raises:
        ApiError: a field is wrong, or asks for what this engine does not offer.
    """
    check_fields(fields, RESPONSES)
    _refuse_unsupported(fields)
    values = {name: value for name, value in fields.values.items() if name in RESPONSES_AS_CHAT}
    values["max_tokens"] = fields.values.get("max_output_tokens")
    values["messages"] = _read_messages(fields)
    values["reasoning_effort"] = _read_effort(fields)
    values["response_format"] = _read_format(fields)
    values["tools"] = translate_tools(fields, _read_tool)
    values["tool_choice"] = _read_choice(fields)
    return Fields({name: value for name, value in values.items() if value is not None})


def _refuse_unsupported(fields: Fields) -> None:
    if fields.has("previous_response_id"):
        raise not_supported(
            "previous_response_id",
            "previous_response_id (nothing is kept of an answer; send the whole conversation in input)",
        )
    if fields.values.get("truncation") not in (None, "disabled"):
        raise not_supported("truncation", "truncating the input")
    include = fields.values.get("include")
    if include is None:
        include = []
    if not isinstance(include, list):
        raise fields.wrong("include", "a list")
    for index, each in enumerate(include):
        if not isinstance(each, str):
            raise bad_request(f"include[{index}] must be a string", f"include[{index}]")
        if each != _LOGPROBS and each not in INCLUDED:
            raise not_supported(f"include[{index}]", f"including {each[:64]!r}")
    if _LOGPROBS in include or fields.values.get("top_logprobs"):
        raise not_supported("include", "log probabilities here (use /v1/chat/completions)")


def _read_messages(fields: Fields) -> list[dict[str, Any]]:
    given = fields.values.get("input")
    messages: list[dict[str, Any]] = []
    instructions = fields.string("instructions")
    if instructions:
        messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise fields.wrong("input", "a string or a list of at least one item")
    reader = _ItemReader()
    for index, item in enumerate(given):
        reader.read(item, f"input[{index}]")
    return messages + reader.messages()


class _ItemReader:
    """Puts items together to messages: reasoning, text and calls of one turn are one message."""

    def __init__(self) -> None:
        self._spoken: list[Turn | dict[str, Any]] = []
        """Turns of the assistant, and messages of others."""

    def messages(self) -> list[dict[str, Any]]:
        """Return what was read."""
        return [each.message() if isinstance(each, Turn) else each for each in self._spoken]

    def read(self, item: Any, name: str) -> None:
        """Take the next item."""
        if not isinstance(item, dict):
            raise bad_request(f"{name} must be an object", name)
        kind = item.get("type") or ("message" if "role" in item else None)
        fields = Fields(item, prefix=f"{name}.")
        if isinstance(kind, str) and kind in _ITEMS:
            check_fields(fields, _ITEMS[kind])
        if kind == "message":
            self._message(fields)
        elif kind == "reasoning":
            self._turn().thoughts.append(_reasoning_text(fields))
        elif kind == "function_call":
            self._call(fields)
        elif kind == "function_call_output":
            message = {"role": "tool", "tool_call_id": fields.required_string("call_id")}
            called = fields.string("name")
            named = {} if called is None else {"name": called}
            self._spoken.append({**message, **named, "content": _text(fields, "output")})
        elif isinstance(kind, str):
            raise not_supported(name, f"an item of type {kind[:40]!r}")
        else:
            raise fields.wrong("type", "a string")

    def _message(self, fields: Fields) -> None:
        role = fields.values.get("role")
        if role not in _ROLES:
            raise fields.wrong("role", f"one of {', '.join(_ROLES)}")
        content = _text(fields, "content")
        if role == "assistant":
            self._turn().texts.append(content)
        else:
            self._spoken.append({"role": role, "content": content})

    def _call(self, fields: Fields) -> None:
        call = {
            "id": fields.required_string("call_id"),
            "type": "function",
            "function": {
                "name": fields.required_string("name"),
                "arguments": fields.required_string("arguments"),
            },
        }
        self._turn().calls.append(call)

    def _turn(self) -> Turn:
        """Return the assistant's turn that goes on, or begin one."""
        if not self._spoken or not isinstance(self._spoken[-1], Turn):
            self._spoken.append(Turn())
        turn = self._spoken[-1]
        assert isinstance(turn, Turn), "just begun"
        return turn


def _text(fields: Fields, name: str) -> str:
    """Return text that is given as a string or as a list of parts."""
    value = fields.values.get(name)
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise fields.wrong(name, "a string or a list of text parts")
    return "".join(_part(part, f"{fields.name(name)}[{i}]") for i, part in enumerate(value))


def _part(part: Any, name: str) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise bad_request(f"{name} must be an object with a type", name)
    if part["type"] not in _TEXT_PARTS:
        raise not_supported(name, f"content of type {part['type'][:40]!r}")
    fields = Fields(part, prefix=f"{name}.")
    check_fields(fields, TEXT_PART)
    return fields.required_string("text")


def _reasoning_text(fields: Fields) -> str:
    where = "summary" if fields.values.get("content") in (None, []) else "content"
    parts = fields.values.get(where)
    if parts is None:
        parts = []
    if not isinstance(parts, list):
        raise fields.wrong(where, "a list")
    texts = []
    for index, each in enumerate(parts):
        part = read_object(each, f"{fields.name(where)}[{index}]", RESPONSES_REASONING_PART)
        if part.values.get("type") not in (None, *_REASONING_PARTS):
            raise part.wrong("type", " or ".join(_REASONING_PARTS))
        texts.append(part.required_string("text"))
    return join_reasoning(texts)


def _read_effort(fields: Fields) -> str | None:
    reasoning = Fields(fields.mapping("reasoning"), prefix="reasoning.")
    check_fields(reasoning, RESPONSES_REASONING)
    if reasoning.values.get("summary") not in (None, "auto"):
        raise not_supported("reasoning.summary", "summing reasoning up")
    return reasoning.string("effort")


def _read_format(fields: Fields) -> dict[str, Any] | None:
    text = Fields(fields.mapping("text"), prefix="text.")
    check_fields(text, RESPONSES_TEXT)
    given = text.mapping("format")
    if given.get("type") != "json_schema":
        return given or None
    check_fields(Fields(given, prefix="text.format."), RESPONSES_FORMAT)
    inner = {name: each for name, each in given.items() if name != "type"}
    return {"type": "json_schema", "json_schema": inner}


def _read_tool(tool: Any, name: str) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise bad_request(f"{name} must be an object", name)
    kind = tool.get("type")
    if kind != "function":
        raise not_supported(name, f"a tool of type {str(kind)[:40]!r}")
    check_fields(Fields(tool, prefix=f"{name}."), RESPONSES_TOOL)
    names = ("name", "description", "parameters", "strict")
    function = {each: tool[each] for each in names if tool.get(each) is not None}
    return {"type": "function", "function": function}


def _read_choice(fields: Fields) -> Any:
    choice = fields.values.get("tool_choice")
    if not isinstance(choice, Mapping):
        return choice
    if choice.get("type") == "allowed_tools":
        check_fields(Fields(choice, prefix="tool_choice."), RESPONSES_ALLOWED)
        tools = choice.get("tools")
        if isinstance(tools, list):
            tools = [_named(each, f"tool_choice.tools[{i}]") for i, each in enumerate(tools)]
        return {
            "type": "allowed_tools",
            "allowed_tools": {"mode": choice.get("mode"), "tools": tools},
        }
    return _named(choice, "tool_choice")


def _named(choice: Any, name: str) -> Any:
    if not isinstance(choice, Mapping):
        return choice
    if choice.get("type") == "function":
        check_fields(Fields(choice, prefix=f"{name}."), RESPONSES_CHOICE)
    return {"type": choice.get("type"), "function": {"name": choice.get("name")}}
