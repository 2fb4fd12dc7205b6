"""Check the messages and tools of a chat request and render them to a prompt.

Shared by the chat and tokenize routes.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from exo_engine.errors import EngineError
from exo_engine.server.api_errors import bad_request, from_engine, not_supported
from exo_engine.server.fields import Fields
from exo_engine.server.inner_fields import TEXT_PART, check_message
from exo_engine.server.known_fields import check_fields
from exo_engine.server.prompts.truncation import Truncation
from exo_engine.server.prompts.turns import join_reasoning
from exo_engine.server.routes.tools import ToolUse, read_tools
from exo_engine.server.service import Service
from exo_engine.tokenizer.template_sources import REASONING_FIELDS

_T = TypeVar("_T")
_MANY_PARTS = 100
_END_CHARACTERS = 1000
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


@dataclass(frozen=True, slots=True)
class Conversation:
    """The prompt that a request makes.

    Attributes:
        tokens: of the prompt.
        end: the last of its text, which says whether reasoning is open.
        tools: that the model may call.
    """

    tokens: list[int]
    end: str
    tools: ToolUse


async def read_conversation(
    fields: Fields, service: Service, truncation: Truncation | None = None
) -> Conversation:
    """Render the messages and tools of a request, and tokenize the result.

    Raises:
        ApiError: a message is wrong, or the model has no chat template or it refuses.
    """
    template = service.text.chat_template
    if template is None:
        raise bad_request(service.text.why_no_chat, "messages", "no_chat_template")
    messages = await unhurried(
        fields.values.get("messages"),
        functools.partial(read_messages, fields, service.max_model_len),
    )
    tools = read_tools(fields)
    is_continued = fields.boolean("continue_final_message")
    is_opened = fields.boolean("add_generation_prompt", not is_continued)
    if is_continued and is_opened:
        raise bad_request(
            "continue_final_message and add_generation_prompt exclude each other",
            "continue_final_message",
        )
    try:
        text = await template.render(
            messages,
            tools=tools.shown or None,
            add_generation_prompt=is_opened,
            continue_final_message=is_continued,
            variables=_read_variables(fields),
        )
    except EngineError as exc:
        raise from_engine(exc) from exc
    tokens = await service.encode(
        text,
        add_special_tokens=fields.boolean("add_special_tokens"),
        param="messages",
        truncation=truncation,
    )
    return Conversation(tokens, text[-_END_CHARACTERS:], tools)


async def unhurried(given: object, work: Callable[[], _T]) -> _T:
    """Do work over a conversation; in a thread if it has many parts, so that others are served too.

    Args:
        given: what the client sent: a list of messages or items, where it is not wrong.
        work: to do.
    """
    if isinstance(given, list) and _has_many_parts(given):
        return await asyncio.to_thread(work)
    return work()


def _has_many_parts(given: list[Any]) -> bool:
    if len(given) > _MANY_PARTS:
        return True
    objects = [each for each in given if isinstance(each, dict)]
    lists = [part for each in objects for part in each.values() if isinstance(part, list)]
    return sum(map(len, lists)) > _MANY_PARTS


def _read_variables(fields: Fields) -> dict[str, Any]:
    """Read what a request adds to the template's variables."""
    if fields.has("chat_template"):
        raise not_supported("chat_template", "a chat template in the request")
    variables = dict(fields.mapping("chat_template_kwargs"))
    effort = fields.string("reasoning_effort")
    if effort is not None:
        variables.setdefault("reasoning_effort", effort)
    documents = fields.values.get("documents")
    if documents is not None:
        if not isinstance(documents, list) or not all(isinstance(each, dict) for each in documents):
            raise fields.wrong("documents", "a list of objects")
        variables["documents"] = documents
    return variables


def read_messages(fields: Fields, max_model_len: int) -> list[dict[str, Any]]:
    """Return the messages of a chat request as templates take them.

    Args:
        fields: of the request.
        max_model_len: tokens that one prompt may have.

    Raises:
        ApiError: one of them is wrong, or there are too many.
    """
    value = fields.values.get("messages")
    if not isinstance(value, list) or not value:
        raise fields.wrong("messages", "a list of at least one message")
    # Every template writes a role and an end for each; so even empty messages cannot fit.
    if len(value) > max_model_len:
        raise bad_request(
            f"This model's maximum context length is {max_model_len} tokens, but there are "
            f"{len(value)} messages. Shorten the conversation.",
            "messages",
            "context_length_exceeded",
        )
    return [_read_message(each, index) for index, each in enumerate(value)]


def _read_message(value: Any, index: int) -> dict[str, Any]:
    name = f"messages[{index}]"
    if not isinstance(value, dict):
        raise bad_request(f"{name} must be an object", name)
    fields = Fields(value, prefix=f"{name}.")
    if value.get("role") not in _ROLES:
        raise fields.wrong("role", f"one of {', '.join(_ROLES)}")
    check_message(fields, f"{name}.")
    message = dict(value)
    if value.get("content") is not None:
        message["content"] = _read_text(fields, "content")
    elif value["role"] != "assistant":
        raise fields.wrong("content", "a string or a list of text parts")
    else:
        message["content"] = ""  # as in vLLM: templates may add it to other text
    if value.get("tool_calls") is not None:
        message["tool_calls"] = _read_tool_calls(fields)
    if value["role"] == "assistant":  # what others have by these names only the template knows
        message |= {
            name: _read_reasoning(fields, name) for name in REASONING_FIELDS if fields.has(name)
        }
    if not message.get("tool_calls"):
        message.pop("tool_calls", None)  # templates ask whether there are some, not how many
    return message


def _read_reasoning(fields: Fields, name: str) -> str:
    text = _read_text(fields, name)
    return text if isinstance(text, str) else join_reasoning(part["text"] for part in text)


def _read_text(fields: Fields, name: str) -> str | list[dict[str, str]]:
    text = fields.values[name]
    if isinstance(text, str):
        return text
    if not isinstance(text, list):
        raise fields.wrong(name, "a string or a list of text parts")
    return [_read_part(part, f"{fields.name(name)}[{i}]") for i, part in enumerate(text)]


def _read_part(part: Any, name: str) -> dict[str, str]:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise bad_request(f"{name} must be an object with a type", name)
    if part["type"] != "text":
        raise not_supported(name, f"content of type {part['type'][:40]!r}")
    if not isinstance(part.get("text"), str):
        raise bad_request(f"{name}.text must be a string", f"{name}.text")
    check_fields(Fields(part, prefix=f"{name}."), TEXT_PART)
    return {"type": "text", "text": part["text"]}


def _read_tool_calls(fields: Fields) -> list[dict[str, Any]]:
    calls = fields.values["tool_calls"]
    if not isinstance(calls, list):
        raise fields.wrong("tool_calls", "a list")
    return [
        _read_tool_call(call, f"{fields.name('tool_calls')}[{i}]") for i, call in enumerate(calls)
    ]


def _read_tool_call(call: Any, name: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise bad_request(f"{name} must be an object with a function and its name", name)
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        # On the wire arguments are JSON in a string; templates expect the object itself.
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as exc:
            raise bad_request(
                f"{name}.function.arguments must be JSON: {exc}", f"{name}.function.arguments"
            ) from exc
    return {**call, "function": {**function, "arguments": arguments}}
