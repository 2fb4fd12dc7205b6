"""The `openai` package: every method that the engine serves, whole, streamed and asynchronous; types are validated."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import openai
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

URL, KEY, MODEL = (os.environ[name] for name in ("CLIENT_URL", "CLIENT_KEY", "CLIENT_MODEL"))
ASK: list[Any] = [{"role": "user", "content": "What is a KV cache?"}]
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Bern", "Basel"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
FUNCTION = {
    "name": "get_weather",
    "description": "Weather of a city.",
    "parameters": PARAMETERS,
    "strict": True,
}


class Weather(BaseModel):
    city: str
    days: int


class Color(BaseModel):
    red: int
    green: int
    is_bright: bool


def valid(form: Any, found: Any) -> Any:
    """Hold an answer to its type: the package itself takes what comes."""
    TypeAdapter(form).validate_python(found.to_dict())
    return found


def models(client: openai.OpenAI) -> None:
    found = [valid(Model, each) for each in client.models.list()]
    assert MODEL in {each.id for each in found}
    assert valid(Model, client.models.retrieve(MODEL)).id == MODEL


def chat(client: openai.OpenAI) -> None:
    plain = client.chat.completions.create(
        model=MODEL, messages=ASK, temperature=0, max_tokens=20, n=1, logprobs=True, top_logprobs=2
    )
    choice = valid(ChatCompletion, plain).choices[0]
    assert choice.message.content
    assert len(choice.logprobs.content) == plain.usage.completion_tokens
    chunks = [
        valid(ChatCompletionChunk, each)
        for each in client.chat.completions.create(
            model=MODEL, messages=ASK, temperature=0, max_tokens=20, stream=True,
            stream_options={"include_usage": True},
        )
    ]  # fmt: skip
    text = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
    assert text == choice.message.content
    assert chunks[-1].usage.completion_tokens == plain.usage.completion_tokens
    with client.chat.completions.stream(model=MODEL, messages=ASK, temperature=0) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.message.content.startswith(text)
    assert final.finish_reason == "stop"
    assert client.chat.completions.with_raw_response.create(
        model=MODEL, messages=ASK, max_tokens=1
    ).headers["x-request-id"]


def tools(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": MODEL, "messages": ASK, "max_tokens": 200, "temperature": 1, "seed": 3,
        "tools": [{"type": "function", "function": FUNCTION}],
    }  # fmt: skip
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        found = valid(
            ChatCompletion,
            client.chat.completions.create(tool_choice=choice, parallel_tool_calls=False, **asked),
        )
        (call,) = found.choices[0].message.tool_calls
        Weather.model_validate_json(call.function.arguments)
        chunks = client.chat.completions.create(
            tool_choice=choice, parallel_tool_calls=False, stream=True, **asked
        )
        parts = [
            part.function.arguments or ""
            for each in chunks
            for part in valid(ChatCompletionChunk, each).choices[0].delta.tool_calls or ()
        ]
        Weather.model_validate_json("".join(parts))
        follow: list[Any] = [
            *ASK, found.choices[0].message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
        ]  # fmt: skip
        valid(
            ChatCompletion,
            client.chat.completions.create(**{**asked, "messages": follow, "max_tokens": 5}),
        )
    for choice in ("auto", "none"):
        valid(ChatCompletion, client.chat.completions.create(tool_choice=choice, **asked))


def structured(client: openai.OpenAI) -> None:
    parsed = client.chat.completions.parse(
        model=MODEL, messages=ASK, response_format=Color, max_tokens=200, temperature=1, seed=5
    )
    assert isinstance(parsed.choices[0].message.parsed, Color)
    loose = client.chat.completions.create(
        model=MODEL, messages=ASK, response_format={"type": "json_object"}, max_tokens=30
    )
    assert valid(ChatCompletion, loose).choices[0].message.content.startswith("{")
    response = client.responses.parse(
        model=MODEL, input="A color", text_format=Color, max_output_tokens=200, temperature=1
    )
    assert isinstance(response.output_parsed, Color)


def completions(client: openai.OpenAI) -> None:
    whole = client.completions.create(
        model=MODEL, prompt=["A cache", "A token"], max_tokens=5, temperature=0, logprobs=2
    )
    assert len(valid(Completion, whole).choices) == 2
    # With echo the first token has no log probability, which OpenAI answers and its types do not know.
    echoed = client.completions.create(
        model=MODEL, prompt="A cache", max_tokens=5, temperature=0, logprobs=2, echo=True
    )
    assert echoed.choices[0].logprobs.token_logprobs[0] is None
    parts = client.completions.create(
        model=MODEL, prompt="A cache", max_tokens=5, temperature=0, stream=True, echo=True
    )
    assert "".join(each.choices[0].text for each in parts) == echoed.choices[0].text


def responses(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "input": "What is a KV cache?",
        "temperature": 0,
        "max_output_tokens": 30,
    }
    whole = valid(Response, client.responses.create(**asked))
    assert whole.output_text
    events = [
        valid(ResponseStreamEvent, each) for each in client.responses.create(stream=True, **asked)
    ]
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert events[-1].response.output_text == whole.output_text
    with client.responses.stream(**asked) as stream:
        for _ in stream:
            pass
    called = client.responses.create(
        **{**asked, "temperature": 1, "max_output_tokens": 200}, tools=[{"type": "function", **FUNCTION}],
        tool_choice="required", parallel_tool_calls=False,
    )  # fmt: skip
    (call,) = [each for each in valid(Response, called).output if each.type == "function_call"]
    Weather.model_validate_json(call.arguments)


def errors(client: openai.OpenAI) -> None:
    for change, kind in (
        ({"model": "none"}, openai.NotFoundError),
        ({"temperature": -1}, openai.BadRequestError),
        ({"messages": []}, openai.BadRequestError),
    ):
        try:
            client.chat.completions.create(
                **{"model": MODEL, "messages": ASK, "max_tokens": 1, **change}
            )
        except kind as exc:
            assert exc.body  # noqa: PT017
        else:
            raise AssertionError(change)


async def asynchronous() -> None:
    async with openai.AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0) as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=5)
                for _ in range(8)
            )
        )
        assert all(valid(ChatCompletion, each).usage.completion_tokens for each in answers)
        stream = await client.chat.completions.create(
            model=MODEL, messages=ASK, max_tokens=5, stream=True
        )
        assert [valid(ChatCompletionChunk, each) async for each in stream]


with openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0) as own:
    for check in (models, chat, tools, structured, completions, responses, errors):
        check(own)
asyncio.run(asynchronous())
