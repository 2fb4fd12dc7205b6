"""No field within the items, messages, blocks and choices of a request is dropped silently."""

from __future__ import annotations

from typing import Any

import pytest
from exo_engine.server.api_errors import ApiError
from exo_engine.server.fields import Fields
from exo_engine.server.routes import anthropic_request, responses_request
from exo_engine.server.routes.tools import read_tools

CALL = {"type": "function_call", "call_id": "c", "name": "now", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "12:00"}
THOUGHT = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}
SAID = {"type": "message", "role": "assistant", "content": "Yes."}
TEXT = {"type": "text", "text": "Hi"}
USE = {"type": "tool_use", "id": "c", "name": "now", "input": {}}
USED = {"type": "tool_result", "tool_use_id": "c", "content": "12:00"}
THINKING = {"type": "thinking", "thinking": "hm", "signature": "s"}
NOW = {"type": "function", "function": {"name": "now"}}
SCHEMA = {"type": "json_schema", "name": "x", "schema": {}}


def responses(**fields: Any) -> Fields:
    return responses_request.as_chat(Fields({"model": "m", "input": "Hi", **fields}))


def item(value: dict[str, Any], **fields: Any) -> Fields:
    return responses(input=[{**value, **fields}])


def messages(**fields: Any) -> Fields:
    values = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
    return anthropic_request.as_chat(Fields({**values, **fields}))


def block(role: str, value: dict[str, Any], **fields: Any) -> Fields:
    return messages(messages=[{"role": role, "content": [{**value, **fields}]}])


def chat_choice(**choice: Any) -> object:
    return read_tools(Fields({"tools": [NOW], "tool_choice": choice}))


def refused(read: Any, *words: Any, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as refusal:
        read(*words, **fields)
    assert refusal.value.status == 400
    return refusal.value


def test_all_reasoning_of_a_turn_goes_to_the_template() -> None:
    parts = [{"type": "reasoning_text", "text": "more"}]
    told = [THOUGHT, SAID, {**THOUGHT, "content": parts}, {"type": "reasoning"}, CALL, RESULT]
    first, second = responses(input=told).values["messages"]
    assert first["reasoning_content"] == "hm\nmore"
    assert (first["content"], len(first["tool_calls"])) == ("Yes.", 1)
    assert second["role"] == "tool"


@pytest.mark.parametrize("value", [CALL, RESULT, THOUGHT, SAID], ids=lambda each: each["type"])
def test_unknown_field_of_an_item_is_refused_by_its_place(value: dict[str, Any]) -> None:
    error = refused(item, value, detail="high")
    assert (error.param, error.code) == ("input[0].detail", "unknown_parameter")


@pytest.mark.parametrize(
    ("value", "name", "asked"),
    [
        (CALL, "async", True),
        (CALL, "namespace", "crm"),
        (CALL, "caller", {"type": "program", "caller_id": "p"}),
        (RESULT, "namespace", "crm"),
        (RESULT, "caller", {"type": "program", "caller_id": "p"}),
        (THOUGHT, "encrypted_content", "gAAAA"),
        (SAID, "phase", "commentary"),
    ],
)
def test_item_that_asks_for_what_there_is_not_is_refused_by_name(
    value: dict[str, Any], name: str, asked: object
) -> None:
    error = refused(item, value, **{name: asked})
    assert (error.param, error.code) == (f"input[0].{name}", "unsupported_parameter")


@pytest.mark.parametrize(
    ("value", "name", "asked"),
    [
        (CALL, "caller", {"type": "direct"}),
        (CALL, "id", "fc_1"),
        (RESULT, "status", "completed"),
        (THOUGHT, "encrypted_content", None),
        (THOUGHT, "summary", []),
        (SAID, "phase", "final_answer"),
        (SAID, "id", "msg_1"),
    ],
)
def test_items_that_come_back_as_they_were_given_pass(
    value: dict[str, Any], name: str, asked: object
) -> None:
    assert item(value, **{name: asked}).values["messages"]


def test_name_of_the_tool_that_a_result_is_of_goes_to_the_template() -> None:
    (message,) = item(RESULT, name="now").values["messages"]
    assert message == {"role": "tool", "tool_call_id": "c", "name": "now", "content": "12:00"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": [{**THOUGHT, "content": [{"text": "hm", "more": 1}]}]}, "content[0].more"),
        ({"input": [{**THOUGHT, "content": [{"type": "x", "text": "hm"}]}]}, "content[0].type"),
        ({"input": [{**THOUGHT, "content": [{"type": "reasoning_text"}]}]}, "content[0].text"),
        ({"input": [{**THOUGHT, "content": None, "summary": 7}]}, "input[0].summary"),
        ({"input": [{"type": ["message"]}]}, "input[0].type"),
        ({"text": {"format": {**SCHEMA, "more": 1}}}, "text.format.more"),
        ({"tool_choice": {"type": "function", "name": "f", "more": 1}}, "tool_choice.more"),
        ({"tool_choice": {"type": "allowed_tools", "more": 1}}, "tool_choice.more"),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "tools": [{"type": "function", "name": "f", "more": 1}],
                }
            },
            "tool_choice.tools[0].more",
        ),
        ({"include": ["everything"]}, "include[0]"),
        ({"include": [["reasoning.encrypted_content"]]}, "include[0]"),
    ],
)
def test_what_is_within_a_response_is_refused_by_its_place(
    fields: dict[str, Any], param: str
) -> None:
    error = refused(responses, **fields)
    assert (error.param or "").endswith(param)


def test_response_may_include_what_is_told_anyway() -> None:
    assert responses(include=["reasoning.encrypted_content"], store=False)


def test_tools_that_the_model_itself_is_to_call_pass() -> None:
    assert responses(tools=[{"type": "function", "name": "f", "allowed_callers": ["direct"]}])
    tool = {"name": "f", "input_schema": {}}
    assert messages(tools=[{**tool, "allowed_callers": ["direct"]}])
    for callers in (["code_execution_20250825"], ["direct", "code_execution_20250825"]):
        error = refused(messages, tools=[{**tool, "allowed_callers": callers}])
        assert error.param == "tools[0].allowed_callers"


@pytest.mark.parametrize(
    ("role", "value"),
    [("user", TEXT), ("assistant", USE), ("user", USED), ("assistant", THINKING)],
)
def test_unknown_field_of_a_block_is_refused_by_its_place(role: str, value: dict[str, Any]) -> None:
    error = refused(block, role, value, detail="high")
    assert (error.param, error.code) == ("messages[0].content[0].detail", "unknown_parameter")


@pytest.mark.parametrize(
    ("role", "value", "name", "asked"),
    [
        ("assistant", USE, "caller", {"type": "code_execution_20250825", "tool_id": "t"}),
        ("assistant", USE, "toolset_name", "files"),
        ("user", USED, "toolset_name", "files"),
        ("user", TEXT, "citations", [{"type": "char_location"}]),
    ],
)
def test_block_that_asks_for_what_there_is_not_is_refused_by_name(
    role: str, value: dict[str, Any], name: str, asked: object
) -> None:
    error = refused(block, role, value, **{name: asked})
    assert error.param == f"messages[0].content[0].{name}"
    assert error.code == "unsupported_parameter"


@pytest.mark.parametrize(
    ("role", "value", "name", "asked"),
    [
        ("assistant", USE, "caller", {"type": "direct"}),
        ("assistant", USE, "cache_control", {"type": "ephemeral"}),
        ("user", USED, "cache_control", {"type": "ephemeral", "ttl": "1h"}),
        ("user", TEXT, "citations", None),
    ],
)
def test_blocks_that_come_back_as_they_were_given_pass(
    role: str, value: dict[str, Any], name: str, asked: object
) -> None:
    assert block(role, value, **{name: asked}).values["messages"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "user", "content": "Hi", "name": "A"}]}, "messages[0].name"),
        ({"system": [{**TEXT, "more": 1}]}, "system[0].more"),
        (
            {"messages": [{"role": "user", "content": [{**USED, "content": [{**TEXT, "x": 1}]}]}]},
            "messages[0].content[0].content[0].x",
        ),
        ({"tool_choice": {"type": "any", "name": "now"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "tool", "name": "now", "more": 1}}, "tool_choice.more"),
        ({"tools": [{"name": "now", "input_schema": {}, "more": 1}]}, "tools[0].more"),
    ],
)
def test_what_is_within_a_message_is_refused_by_its_place(
    fields: dict[str, Any], param: str
) -> None:
    assert refused(messages, **fields).param == param


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"allowed_tools": {"mode": "auto", "tools": [NOW]}, "more": 1}, "tool_choice.more"),
        (
            {"allowed_tools": {"mode": "auto", "tools": [NOW], "more": 1}},
            "tool_choice.allowed_tools.more",
        ),
    ],
)
def test_unknown_field_of_allowed_tools_is_refused(choice: dict[str, Any], param: str) -> None:
    assert refused(chat_choice, type="allowed_tools", **choice).param == param
