"""/v1/responses as the `openai` package sees it, on a core that says what a test wants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from exo_engine.server.api_errors import ApiError
from exo_engine.server.fields import Fields
from exo_engine.server.routes.responses_request import as_chat
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from .answer_parsing.corpus import hermes
from .test_tool_calls import client_of

pytestmark = pytest.mark.filterwarnings("ignore:It is recommended to use web.RequestKey")
TOOLS: list[Any] = [
    {
        "type": "function",
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "strict": False,
    },
    {"type": "function", "name": "now", "parameters": {}, "strict": False},
]
ASK: dict[str, Any] = {"model": "test/tiny", "input": "Weather?", "tools": TOOLS}
TEXT = f"<think>\nI must look.\n</think>\n\nI look.\n{hermes('get_weather', {'city': 'Bern'})}\n{hermes('now', {})}"
BOTH: dict[str, Any] = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def shape(response: Response) -> list[Any]:
    """Return what an answer says, without ids."""
    found: list[Any] = []
    for item in response.output:
        if item.type == "function_call":
            found.append((item.name, item.arguments, item.status))
        elif item.type in ("message", "reasoning"):
            assert item.content is not None
            found.append((item.type, item.content[0].text, item.status))
    return found


EXPECTED = [
    ("reasoning", "I must look.", "completed"),
    ("message", "I look.", "completed"),
    ("get_weather", '{"city": "Bern"}', "completed"),
    ("now", "{}", "completed"),
]


async def test_whole_answer_is_a_response_of_the_package(model_dir: Path) -> None:
    async with client_of(model_dir, TEXT, **BOTH) as client:
        raw = await client.responses.with_raw_response.create(**ASK)
        response = Response.model_validate_json(raw.text, strict=True)
    assert shape(response) == EXPECTED
    assert response.status == "completed"
    assert response.output_text == "I look."
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens > 0
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


async def test_usage_stands_behind_what_the_client_sent(model_dir: Path) -> None:
    """The gateway takes the last `usage` of a long answer, and clients choose what is repeated."""
    async with client_of(model_dir, TEXT, **BOTH) as client:
        raw = await client.responses.with_raw_response.create(**ASK, metadata={"usage": "0"})
    assert list(json.loads(raw.text))[-1] == "usage"


async def test_events_of_a_stream_are_the_packages_and_join_to_the_whole_answer(
    model_dir: Path,
) -> None:
    async with client_of(model_dir, TEXT, **BOTH) as client:
        stream = await client.responses.create(**ASK, stream=True)
        events = [event async for event in stream]
    for event in events:
        EVENT.validate_python(event.model_dump(exclude_unset=True, by_alias=True, warnings=False))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed"
    assert shape(events[-1].response) == EXPECTED
    added = [event.item.type for event in events if event.type == "response.output_item.added"]
    assert added == ["reasoning", "message", "function_call", "function_call"]
    for kind, whole in (
        ("response.output_text", "I look."),
        ("response.reasoning_text", "I must look."),
        ("response.function_call_arguments", '{"city": "Bern"}{}'),
    ):
        assert "".join(each.delta for each in events if each.type == f"{kind}.delta") == whole
        done = [each for each in events if each.type == f"{kind}.done"]
        field = "arguments" if "arguments" in kind else "text"
        assert "".join(getattr(each, field) for each in done) == whole


async def test_stream_helper_of_the_package_follows(model_dir: Path) -> None:
    async with (
        client_of(model_dir, TEXT, **BOTH) as client,
        client.responses.stream(**ASK) as stream,
    ):
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    assert final.output_text == "I look."


async def test_cut_answer_is_incomplete(model_dir: Path) -> None:
    async with client_of(model_dir, "Hello", reason="length") as client:
        response = await client.responses.create(model="test/tiny", input="Hi", max_output_tokens=5)
    assert (response.status, response.output[0].status) == ("incomplete", "incomplete")
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def test_turns_are_put_together_from_items() -> None:
    chat = as_chat(
        Fields(
            {
                "model": "m",
                "instructions": "Be brief.",
                "input": [
                    {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
                    {"type": "reasoning", "id": "rs_1", "summary": [],
                     "content": [{"type": "reasoning_text", "text": "hm"}]},
                    {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
                     "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
                    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "now",
                     "arguments": "{}"},
                    {"type": "function_call", "call_id": "c2", "name": "now", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "c1", "output": "12:00"},
                    {"type": "function_call_output", "call_id": "c2",
                     "output": [{"type": "input_text", "text": "13:00"}]},
                ],
                "reasoning": {"effort": "low"},
                "max_output_tokens": 7,
                "text": {"format": {"type": "json_schema", "name": "x", "schema": {}, "strict": True}},
                "tool_choice": {"type": "function", "name": "now"},
                "tools": TOOLS,
            }
        )
    )  # fmt: skip
    calls = [
        {"id": each, "type": "function", "function": {"name": "now", "arguments": "{}"}}
        for each in ("c1", "c2")
    ]
    assert chat.values["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "12:00"},
        {"role": "tool", "tool_call_id": "c2", "content": "13:00"},
    ]
    assert chat.values["reasoning_effort"] == "low"
    assert chat.values["max_tokens"] == 7
    assert chat.values["tool_choice"] == {"type": "function", "function": {"name": "now"}}
    assert chat.values["response_format"]["json_schema"] == {
        "name": "x", "schema": {}, "strict": True,
    }  # fmt: skip


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"background": True}, "background"),
    ({"background_options": {"completion_window": "2h"}}, "background_options"),
    ({"conversation": "c"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"truncation": "auto"}, "truncation"),
    ({"include": ["message.output_text.logprobs"]}, "include"),
    ({"top_logprobs": 2}, "include"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
    ({"tools": [{"type": "web_search"}]}, "tools[0]"),
    ({"input": []}, "input"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
    ({"input": [{"role": "user", "content": 7}]}, "input[0].content"),
    ({"input": [{"type": "function_call", "call_id": "c"}]}, "input[0].name"),
    ({"unknown": 1}, "unknown"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=[str(each[0])[:40] for each in REFUSED])
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refusal:
        as_chat(Fields({"model": "m", "input": "Hi", **fields}))
    assert (refusal.value.status, refusal.value.param) == (400, param)


async def test_errors_of_the_chat_path_name_the_field_of_this_one(model_dir: Path) -> None:
    async with client_of(model_dir, "x") as client:
        with pytest.raises(openai.BadRequestError) as refusal:
            await client.responses.create(model="test/tiny", input="a" * 5000)
        assert refusal.value.param == "input"
        with pytest.raises(openai.BadRequestError) as refusal:
            await client.responses.create(model="test/tiny", input="a", max_output_tokens=0)
        assert refusal.value.param == "max_output_tokens"
