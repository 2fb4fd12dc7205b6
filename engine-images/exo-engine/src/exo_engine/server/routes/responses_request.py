"""A request of /v1/responses as one of /v1/chat/completions.

Only fields that mean the same are carried over; what `openai` has for its own tools and stores is refused or listed
in `known_fields.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exo_engine.server.api_errors import ApiError, bad_request, not_supported
from exo_engine.server.fields import Fields
from exo_engine.server.inner_fields import RESPONSES_TOOL, TEXT_PART
from exo_engine.server.known_fields import (
    RESPONSES,
    RESPONSES_AS_CHAT,
    RESPONSES_REASONING,
    RESPONSES_TEXT,
    check_fields,
)
from exo_engine.server.routes.tools import translate_tools

_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}
"""Fields of chat that stand for others here."""
_TEXT_PARTS = ("input_text", "output_text", "text")
_ROLES = ("user", "assistant", "system", "developer")


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


def renamed(error: ApiError) -> ApiError:
    """Return an error about a field of chat as one about the field that it came from."""
    if error.param is not None:
        first = error.param.split("[")[0].split(".")[0]
        error.param = _NAMES.get(first, error.param)
    return error


def _refuse_unsupported(fields: Fields) -> None:
    if fields.has("previous_response_id"):
        raise not_supported(
            "previous_response_id",
            "previous_response_id (nothing is kept of an answer; send the whole conversation in input)",
        )
    if fields.values.get("truncation") not in (None, "disabled"):
        raise not_supported("truncation", "truncating the input")
    include = fields.values.get("include") or []
    if not isinstance(include, list):
        raise fields.wrong("include", "a list")
    if "message.output_text.logprobs" in include or fields.values.get("top_logprobs"):
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
    reader = _ItemReader(messages)
    for index, item in enumerate(given):
        reader.read(item, f"input[{index}]")
    return reader.messages


class _ItemReader:
    """Puts items together to messages: reasoning, text and calls of one turn are one message."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.messages = messages
        self._is_open = False
        """The last message is an assistant's to which a call may be added."""

    def read(self, item: Any, name: str) -> None:
        """Take the next item."""
        if not isinstance(item, dict):
            raise bad_request(f"{name} must be an object", name)
        kind = item.get("type") or ("message" if "role" in item else None)
        fields = Fields(item, prefix=f"{name}.")
        if kind == "message":
            self._message(fields)
        elif kind == "reasoning":
            self._turn()["reasoning_content"] = _reasoning_text(fields)
        elif kind == "function_call":
            self._call(fields)
        elif kind == "function_call_output":
            self._is_open = False
            content = _text(fields, "output")
            call_id = _required(fields, "call_id")
            self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
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
            message = self._turn()
            message["content"] = (message.get("content") or "") + content
        else:
            self._is_open = False
            self.messages.append({"role": role, "content": content})

    def _call(self, fields: Fields) -> None:
        call = {
            "id": _required(fields, "call_id"),
            "type": "function",
            "function": {
                "name": _required(fields, "name"),
                "arguments": _required(fields, "arguments"),
            },
        }
        self._turn().setdefault("tool_calls", []).append(call)

    def _turn(self) -> dict[str, Any]:
        """Return the message of the assistant's turn that goes on, or begin one."""
        if not self._is_open:
            self.messages.append({"role": "assistant", "content": None})
            self._is_open = True
        return self.messages[-1]


def _required(fields: Fields, name: str) -> str:
    value = fields.string(name)
    if value is None:
        raise fields.wrong(name, "a string")
    return value


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
    return _required(fields, "text")


def _reasoning_text(fields: Fields) -> str:
    parts = fields.values.get("content") or fields.values.get("summary") or []
    if not isinstance(parts, list):
        raise fields.wrong("content", "a list")
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise fields.wrong("content", "a list of parts with text")
    return "\n".join(map(str, texts))


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
        tools = choice.get("tools")
        named = [_named(each) for each in tools] if isinstance(tools, list) else tools
        allowed = {"mode": choice.get("mode"), "tools": named}
        return {"type": "allowed_tools", "allowed_tools": allowed}
    return _named(choice)


def _named(choice: Any) -> Any:
    if not isinstance(choice, Mapping):
        return choice
    return {"type": choice.get("type"), "function": {"name": choice.get("name")}}
