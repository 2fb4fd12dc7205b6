"""A request of /v1/messages, Anthropic's form of a conversation, as one of /v1/chat/completions."""

from __future__ import annotations

import json
from typing import Any

from exo_engine.server.api_errors import bad_request, not_supported
from exo_engine.server.fields import Fields
from exo_engine.server.inner_fields import (
    MESSAGES_CALL,
    MESSAGES_CHOICE,
    MESSAGES_FORMAT,
    MESSAGES_MESSAGE,
    MESSAGES_NAMED_CHOICE,
    MESSAGES_OUTPUT,
    MESSAGES_RESULT,
    MESSAGES_THINKING,
    MESSAGES_THOUGHT,
    MESSAGES_TOOL,
    TEXT_PART,
    read_object,
)
from exo_engine.server.known_fields import (
    COUNT_TOKENS,
    MESSAGES,
    MESSAGES_AS_CHAT,
    check_fields,
)
from exo_engine.server.prompts.turns import Turn
from exo_engine.server.routes.tools import translate_tools

NAMES = {
    "stop": "stop_sequences",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
}
"""Fields of chat that stand for others here."""
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_BLOCKS = {
    "text": TEXT_PART,
    "tool_use": MESSAGES_CALL,
    "tool_result": MESSAGES_RESULT,
    "thinking": MESSAGES_THOUGHT,
}


def as_chat(fields: Fields, *, is_count: bool = False) -> Fields:
    """Return the chat request that asks for the same.

    Args:
        fields: of the request.
        is_count: only its tokens are to be counted, so nothing is read of how to answer.

    Raises:
        ApiError: a field is wrong, or asks for what this engine does not offer.
    """
    check_fields(fields, COUNT_TOKENS if is_count else MESSAGES)
    values: dict[str, Any] = {
        name: value for name, value in fields.values.items() if name in MESSAGES_AS_CHAT
    }
    if not is_count:
        values["max_tokens"] = fields.integer("max_tokens", minimum=1)
        if values["max_tokens"] is None:
            raise fields.wrong("max_tokens", "an integer of 1 or more")
        values["stop"] = _read_stops(fields)
    values["messages"] = messages = _read_messages(fields)
    if messages[-1]["role"] == "assistant":  # the answer goes on with what is there
        values["continue_final_message"] = True
        values["add_generation_prompt"] = False
    values["tools"] = translate_tools(fields, _read_tool)
    values |= _read_choice(fields)
    values |= _read_thinking(fields, values)
    values |= _read_output(fields)
    return Fields({name: value for name, value in values.items() if value is not None})


def _read_messages(fields: Fields) -> list[dict[str, Any]]:
    given = fields.values.get("messages")
    if not isinstance(given, list) or not given:
        raise fields.wrong("messages", "a list of at least one message")
    messages = []
    system = fields.values.get("system")
    if system not in (None, "", []):
        messages.append({"role": "system", "content": _text(system, "system")})
    for index, each in enumerate(given):
        messages += _read_message(each, f"messages[{index}]")
    return messages


def _read_stops(fields: Fields) -> list[Any] | None:
    stops = fields.values.get("stop_sequences")
    if stops is None:
        return None
    if not isinstance(stops, list) or not all(isinstance(each, str) and each for each in stops):
        raise fields.wrong("stop_sequences", "a list of strings that are not empty")
    return stops


def _read_message(message: Any, name: str) -> list[dict[str, Any]]:
    fields = read_object(message, name, MESSAGES_MESSAGE)
    role = fields.values.get("role")
    if role not in ("user", "assistant", "system"):
        raise fields.wrong("role", "user, assistant or system")
    content = fields.values.get("content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise fields.wrong("content", "a string or a list of blocks")
    blocks = [_block(each, f"{name}.content[{index}]", role) for index, each in enumerate(content)]
    return _assistant(blocks) if role == "assistant" else _user(blocks, role)


def _block(block: Any, name: str, role: str) -> Fields:
    """Return a block that may stand in a message of this role."""
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise bad_request(f"{name} must be an object with a type", name)
    kinds = {"assistant": ("text", "tool_use", "thinking"), "user": ("text", "tool_result")}
    if block["type"] not in kinds.get(role, ("text",)):
        raise not_supported(name, f"a block of type {block['type'][:40]!r} by {role}")
    return read_object(block, name, _BLOCKS[block["type"]])


def _user(blocks: list[Fields], role: str) -> list[dict[str, Any]]:
    """Return results of tools, each a message, and what the user says beside them."""
    results = [
        {
            "role": "tool",
            "tool_call_id": block.required_string("tool_use_id"),
            "content": _result(block),
        }
        for block in blocks
        if block.values["type"] == "tool_result"
    ]
    texts = [each.required_string("text") for each in blocks if each.values["type"] == "text"]
    said = [{"role": role, "content": "".join(texts)}] if texts or not results else []
    return [*results, *said]


def _result(block: Fields) -> str:
    content = block.values.get("content")
    text = "" if content is None else _text(content, block.name("content"))
    return f"Error: {text}" if block.boolean("is_error") else text


def _assistant(blocks: list[Fields]) -> list[dict[str, Any]]:
    turn = Turn()
    for block in blocks:
        kind = block.values["type"]
        if kind == "text":
            turn.texts.append(block.required_string("text"))
        elif kind == "thinking":
            turn.thoughts.append(block.required_string("thinking"))
        else:
            function = {"name": block.required_string("name"), "arguments": block.mapping("input")}
            call = {"id": block.required_string("id"), "type": "function", "function": function}
            turn.calls.append(call)
    return [turn.message()]


def _text(value: Any, name: str) -> str:
    """Return text that is given as a string or as a list of blocks."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise bad_request(f"{name} must be a string or a list of text blocks", name)
    parts = [_block(each, f"{name}[{i}]", "other") for i, each in enumerate(value)]
    return "".join(each.required_string("text") for each in parts)


def _read_tool(tool: Any, name: str) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise bad_request(f"{name} must be an object", name)
    fields = Fields(tool, prefix=f"{name}.")
    if tool.get("type") not in (None, "custom"):
        raise not_supported(name, f"a tool of type {str(tool['type'])[:40]!r}")
    check_fields(fields, MESSAGES_TOOL)
    function = {
        "name": fields.required_string("name"),
        "parameters": fields.mapping("input_schema"),
    }
    for each in ("description", "strict"):
        if fields.has(each):
            function[each] = tool[each]
    return {"type": "function", "function": function}


def _read_choice(fields: Fields) -> dict[str, Any]:
    choice = Fields(fields.mapping("tool_choice"), prefix="tool_choice.")
    if not choice.values:
        return {}
    kind = choice.values.get("type")
    check_fields(choice, MESSAGES_NAMED_CHOICE if kind == "tool" else MESSAGES_CHOICE)
    is_parallel = not choice.boolean("disable_parallel_tool_use")
    if kind == "tool":
        named = {"type": "function", "function": {"name": choice.required_string("name")}}
        return {"tool_choice": named, "parallel_tool_calls": is_parallel}
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise choice.wrong("type", "auto, any, tool or none")
    return {"tool_choice": _CHOICES[kind], "parallel_tool_calls": is_parallel}


def _read_thinking(fields: Fields, values: dict[str, Any]) -> dict[str, Any]:
    """Read whether to reason, and whether to tell it; how much of it is up to the model.

    Both forms of Anthropic that show it come to the same here: "summarized" is what it returns normally.
    """
    thinking = Fields(fields.mapping("thinking"), prefix="thinking.")
    check_fields(thinking, MESSAGES_THINKING)
    kind = thinking.values.get("type")
    display = thinking.values.get("display")
    if display not in (None, "summarized", "omitted"):
        raise thinking.wrong("display", "summarized or omitted")
    if kind is None and display is None:
        return {}
    if kind not in ("enabled", "adaptive", "disabled"):
        raise thinking.wrong("type", "enabled, adaptive or disabled")
    known = values.get("chat_template_kwargs")
    if known is None:
        known = {}
    read: dict[str, Any] = {"include_reasoning": display != "omitted"}
    if isinstance(known, dict):
        read["chat_template_kwargs"] = {"enable_thinking": kind != "disabled", **known}
    return read


def _read_output(fields: Fields) -> dict[str, Any]:
    output = Fields(fields.mapping("output_config"), prefix="output_config.")
    check_fields(output, MESSAGES_OUTPUT)
    read: dict[str, Any] = {"reasoning_effort": output.string("effort")}
    form = output.mapping("format")
    if form:
        if form.get("type") != "json_schema":
            raise output.wrong("format", "an object of type json_schema")
        check_fields(Fields(form, prefix="output_config.format."), MESSAGES_FORMAT)
        schema = {"name": "output", "schema": form.get("schema")}
        read["response_format"] = {"type": "json_schema", "json_schema": schema}
    return read


def dump_input(arguments: str) -> dict[str, Any]:
    """Return a call's arguments as the object that Anthropic's form has; `{}` for what is cut."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
