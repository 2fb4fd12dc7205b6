"""The `anthropic` package: messages whole and streamed, tools, and counts of tokens."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import anthropic
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from pydantic import TypeAdapter

URL, KEY, MODEL = (os.environ[name] for name in ("CLIENT_URL", "CLIENT_KEY", "CLIENT_MODEL"))
BASE = URL.removesuffix("/v1")
ASK: list[Any] = [{"role": "user", "content": "What is a KV cache?"}]
TOOL: Any = {
    "name": "get_weather",
    "description": "Weather of a city.",
    "input_schema": {
        "type": "object", "properties": {"city": {"enum": ["Bern", "Basel"]}}, "required": ["city"],
        "additionalProperties": False,
    },
}  # fmt: skip


def valid(form: Any, found: Any) -> Any:
    TypeAdapter(form).validate_python(found.to_dict())
    return found


for client in (
    anthropic.Anthropic(base_url=BASE, api_key=KEY, max_retries=0),
    anthropic.Anthropic(base_url=BASE, auth_token=KEY, api_key=None, max_retries=0),
):
    whole = valid(
        Message,
        client.messages.create(
            model=MODEL, messages=ASK, max_tokens=20, extra_body={"temperature": 0}
        ),
    )
    text = whole.content[0].text
    assert text
    with client.messages.stream(
        model=MODEL, messages=ASK, max_tokens=20, extra_body={"temperature": 0}
    ) as stream:
        for event in stream:
            assert event.type
        assert stream.get_final_text() == text
    events = list(client.messages.create(model=MODEL, messages=ASK, max_tokens=5, stream=True))
    assert [valid(RawMessageStreamEvent, each).type for each in events][-1] == "message_stop"
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        called = client.messages.create(
            model=MODEL, messages=ASK, max_tokens=200, tools=[TOOL],
            tool_choice={**choice, "disable_parallel_tool_use": True},
        )  # fmt: skip
        (use,) = [each for each in valid(Message, called).content if each.type == "tool_use"]
        assert use.input["city"] in ("Bern", "Basel")
        assert called.stop_reason == "tool_use"
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}
        follow: list[Any] = [
            *ASK, {"role": "assistant", "content": [use.to_dict()]}, {"role": "user", "content": [result]},
        ]  # fmt: skip
        valid(
            Message,
            client.messages.create(model=MODEL, messages=follow, max_tokens=5, tools=[TOOL]),
        )
    counted = client.messages.count_tokens(
        model=MODEL, messages=ASK, system="Be brief.", tools=[TOOL]
    )
    assert valid(MessageTokensCount, counted).input_tokens > 5
    try:
        client.messages.create(model="none", messages=ASK, max_tokens=1)
    except anthropic.NotFoundError as exc:
        assert exc.body["type"] == "error"  # noqa: PT017
    else:
        raise AssertionError("a model that is not there")


async def asynchronous() -> None:
    async with anthropic.AsyncAnthropic(base_url=BASE, api_key=KEY, max_retries=0) as client:
        found = await client.messages.create(model=MODEL, messages=ASK, max_tokens=5)
        valid(Message, found)


asyncio.run(asynchronous())
