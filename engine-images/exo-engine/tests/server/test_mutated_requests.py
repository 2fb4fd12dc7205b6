"""Requests of every form with something wrong in them: read, or refused with a field, and nothing else."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from exo_engine.server.api_errors import ApiError
from exo_engine.server.fields import Fields, parse_object
from exo_engine.server.routes import anthropic_request, responses_request
from exo_engine.server.routes.conversation import _read_variables, read_messages
from exo_engine.server.routes.tools import read_tools

NUM_BODIES = 5000
few_or_all = pytest.mark.parametrize(
    "num", [1000, pytest.param(NUM_BODIES, marks=pytest.mark.slow)], ids=["few", "all"]
)
STRANGE: list[Any] = [
    None, True, False, 0, -1, 2**70, 1.5, "", "x", "auto", "\x00", "日本", [], {}, [[]], [None], {"": None},
    [{"type": "text"}], {"type": "function"}, {"type": [], "role": {}}, [{"type": "function", "function": 7}],
]  # fmt: skip
TOOL = {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def chat(fields: Fields) -> None:
    """Read a chat request as far as no model is needed."""
    use = read_tools(fields)
    assert use.schema is None or json.dumps(use.schema)
    read_messages(fields, 4096)
    _read_variables(fields)


BODIES: dict[str, tuple[Callable[[Fields], Any], dict[str, Any]]] = {
    "chat": (
        chat,
        {
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": "s"}]},
                {
                    "role": "assistant",
                    "content": None,
                    "reasoning": [{"type": "text", "text": "t"}, {"type": "text", "text": "u"}],
                    "tool_calls": [CALL],
                },
                {"role": "tool", "tool_call_id": "c", "content": "r"},
            ],
            "tools": [{"type": "function", "function": TOOL}],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "parallel_tool_calls": False,
            "chat_template_kwargs": {"enable_thinking": True},
            "reasoning_effort": "low",
        },
    ),
    "responses": (
        lambda fields: chat(responses_request.as_chat(fields)),
        {
            "instructions": "i",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
                {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "t"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "r"},
            ],
            "tools": [{"type": "function", **TOOL}],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
            "reasoning": {"effort": "low", "summary": "auto"},
            "include": ["reasoning.encrypted_content"],
            "max_output_tokens": 5,
        },
    ),
    "messages": (
        lambda fields: chat(anthropic_request.as_chat(fields)),
        {
            "max_tokens": 5,
            "system": [{"type": "text", "text": "s"}],
            "messages": [
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "t"},
                    {"type": "text", "text": "x"},
                    {"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "is_error": True,
                                              "content": [{"type": "text", "text": "r"}]}]},
            ],
            "tools": [{"name": "f", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
            "thinking": {"type": "enabled", "budget_tokens": 5, "display": "omitted"},
            "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}},
        },
    ),
}  # fmt: skip


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every place in a body, as a container and a key."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = [(value, key) for key, _ in items]
    inner = [each for each in (value[key] for _, key in found) if isinstance(each, dict | list)]
    return found + [place for each in inner for place in places(each)]


def mutated(body: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Change, remove or double something, up to three times."""
    body = copy.deepcopy(body)
    for _ in range(rng.randrange(1, 4)):
        container, key = rng.choice(places(body))
        if rng.random() < 0.2:
            del container[key]
        elif rng.random() < 0.2 and isinstance(container, list):
            container.append(copy.deepcopy(container[key]))
        else:
            container[key] = copy.deepcopy(rng.choice(STRANGE))
        if not body:
            break
    return body


def refusal(read: Callable[[Fields], Any], body: dict[str, Any]) -> ApiError | None:
    try:
        read(parse_object(json.dumps(body).encode()))
    except ApiError as exc:
        return exc
    return None


@few_or_all
@pytest.mark.parametrize("name", BODIES)
def test_mutated_bodies_are_read_or_refused(name: str, num: int) -> None:
    read, body = BODIES[name]
    assert refusal(read, body) is None
    rng = random.Random(17)
    refusals = [refusal(read, mutated(body, rng)) for _ in range(num)]
    refused = [each for each in refusals if each is not None]
    assert all(
        each.status == 400 and each.message and (each.param or each.code) for each in refused
    )
    assert num / 4 < len(refused) < num
