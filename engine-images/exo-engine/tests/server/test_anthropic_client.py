"""/v1/messages as the `anthropic` package sees it, on a core that says what a test wants."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from exo_engine.server.api_errors import ApiError
from exo_engine.server.fields import Fields
from exo_engine.server.routes.anthropic_request import as_chat
from exo_engine.tokenizer import Tokenizer
from pydantic import TypeAdapter

from .answer_parsing.corpus import hermes
from .scripted_core import FakeCore, serving

if TYPE_CHECKING:  # two seconds, which every process that collects this module would spend
    import anthropic
    from anthropic.types import Message

pytestmark = pytest.mark.filterwarnings("ignore:It is recommended to use web.RequestKey")
TOOLS: list[Any] = [
    {
        "name": "get_weather",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
    {"name": "now", "input_schema": {"type": "object"}},
]
ASK: dict[str, Any] = {
    "model": "test/tiny",
    "max_tokens": 500,
    "messages": [{"role": "user", "content": "Weather?"}],
    "tools": TOOLS,
}
TEXT = f"<think>\nI must look.\n</think>\n\nI look.\n{hermes('get_weather', {'city': 'Bern'})}\n{hermes('now', {})}"
BOTH: dict[str, Any] = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}


@contextlib.asynccontextmanager
async def client_of(
    model_dir: Path, text: str, *, reason: str = "stop", key: str = "none", **options: Any
) -> AsyncIterator[anthropic.AsyncAnthropic]:
    import anthropic

    script = Tokenizer(model_dir).encode(text, add_special_tokens=False)
    core = FakeCore(script, most_prompt_tokens=4000, reason=reason)
    async with serving(core, model_dir, **options) as server:
        url = str(server.make_url("/")).rstrip("/")
        async with anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0) as client:
            yield client


def shape(message: Message) -> list[Any]:
    found: list[Any] = []
    for block in message.content:
        if block.type == "tool_use":
            found.append((block.name, block.input))
        elif block.type == "thinking":
            found.append(("thinking", block.thinking))
        elif block.type == "text":
            found.append(("text", block.text))
    return found


EXPECTED = [
    ("thinking", "I must look."),
    ("text", "I look."),
    ("get_weather", {"city": "Bern"}),
    ("now", {}),
]


async def test_whole_answer_is_a_message_of_the_package(model_dir: Path) -> None:
    from anthropic.types import Message

    async with client_of(model_dir, TEXT, **BOTH) as client:
        raw = await client.messages.with_raw_response.create(**ASK)
        message = Message.model_validate_json(raw.http_response.text, strict=True)
        counted = await client.messages.count_tokens(
            model="test/tiny", messages=ASK["messages"], tools=TOOLS
        )
    assert shape(message) == EXPECTED
    assert message.stop_reason == "tool_use"
    assert message.usage.input_tokens == counted.input_tokens
    assert message.usage.output_tokens > 0


async def test_stream_joins_to_the_whole_answer(model_dir: Path) -> None:
    from anthropic.types import RawMessageStreamEvent

    form: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    async with client_of(model_dir, TEXT, **BOTH) as client:
        stream = await client.messages.create(**ASK, stream=True)
        events = [event async for event in stream]
        async with client.messages.stream(**ASK) as helper:
            final = await helper.get_final_message()
    for event in events:
        form.validate_python(event.model_dump(exclude_unset=True, warnings=False))
    assert [events[0].type, events[-1].type] == ["message_start", "message_stop"]
    assert shape(final) == EXPECTED
    assert final.stop_reason == "tool_use"
    assert final.usage.output_tokens > 0


@pytest.mark.parametrize(
    ("reason", "asked", "stop"),
    [
        ("stop", {}, ("end_turn", None)),
        ("length", {}, ("max_tokens", None)),
        ("length", {"stop_sequences": ["lo"]}, ("stop_sequence", "lo")),
    ],
)
async def test_stop_reasons(model_dir: Path, reason: str, asked: dict[str, Any], stop: Any) -> None:
    async with client_of(model_dir, "Hello", reason=reason) as client:
        message = await client.messages.create(**{**ASK, **asked})
    assert (message.stop_reason, message.stop_sequence) == stop


async def test_key_may_come_in_anthropics_header_and_errors_have_its_form(model_dir: Path) -> None:
    import anthropic

    async with client_of(model_dir, "Hello", key="wrong", api_keys=("right",)) as client:
        with pytest.raises(anthropic.AuthenticationError) as refusal:
            await client.messages.create(**ASK)
        body: Any = refusal.value.body
        assert (body["type"], body["error"]["type"]) == ("error", "authentication_error")
        message = await client.with_options(api_key="right").messages.create(**ASK)
    assert shape(message) == [("text", "Hello")]


def test_turns_become_messages() -> None:
    chat = as_chat(
        Fields(
            {
                "model": "m",
                "max_tokens": 7,
                "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
                "messages": [
                    {"role": "user", "content": "Weather?"},
                    {"role": "assistant", "content": [
                        {"type": "thinking", "thinking": "hm", "signature": ""},
                        {"type": "text", "text": "I look."},
                        {"type": "tool_use", "id": "c1", "name": "now", "input": {"a": 1}}]},
                    {"role": "user", "content": [
                        {"type": "tool_result", "tool_use_id": "c1", "content": "12:00"},
                        {"type": "text", "text": "And?"}]},
                    {"role": "assistant", "content": "It is"},
                ],
                "tools": TOOLS,
                "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
                "thinking": {"type": "disabled"},
                "stop_sequences": ["x"],
            }
        )
    )  # fmt: skip
    call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": {"a": 1}}}
    assert chat.values["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [call],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "12:00"},
        {"role": "user", "content": "And?"},
        {"role": "assistant", "content": "It is"},
    ]
    assert chat.values["continue_final_message"] is True
    assert chat.values["tool_choice"] == "required"
    assert chat.values["parallel_tool_calls"] is False
    assert chat.values["chat_template_kwargs"] == {"enable_thinking": False}
    assert chat.values["stop"] == ["x"]


@pytest.mark.parametrize(
    ("display", "is_told"), [(None, True), ("summarized", True), ("omitted", False)]
)
def test_thinking_is_told_unless_it_is_to_be_omitted(display: str | None, is_told: bool) -> None:
    chat = as_chat(Fields({**ASK, "thinking": {"type": "enabled", "display": display}}))
    assert chat.values["include_reasoning"] is is_told


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"system": [{"type": "image"}]}, "system[0]"),
    ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0]"),
    (
        {"tools": [{"name": "w", "input_schema": {}, "defer_loading": True}]},
        "tools[0].defer_loading",
    ),
    ({"tool_choice": {"type": "every"}}, "tool_choice.type"),
    ({"thinking": {"type": "enabled", "display": 7}}, "thinking.display"),
    ({"thinking": {"type": "adaptive", "display": ["x"]}}, "thinking.display"),
    ({"thinking": {"type": "disabled", "display": "all"}}, "thinking.display"),
    ({"thinking": {"display": "omitted"}}, "thinking.type"),
    ({"output_config": {"format": {"type": "grammar"}}}, "output_config.format"),
    ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
    ({"speed": "fast"}, "speed"),
    ({"unknown": 1}, "unknown"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=[str(each[0])[:40] for each in REFUSED])
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refusal:
        as_chat(Fields({**ASK, **fields}))
    assert (refusal.value.status, refusal.value.param) == (400, param)
