"""Calls and reasoning in chat answers, as the `openai` client sees them, on a core that says what a test wants."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import test_utils
from exo_engine.tokenizer import Tokenizer
from openai.types.chat import ChatCompletion

from .answer_parsing.corpus import CASES, TOOLS, hermes
from .conftest import MODEL, Engine
from .scripted_core import FakeCore, serving

pytestmark = pytest.mark.filterwarnings("ignore:It is recommended to use web.RequestKey")
HELLO: list[Any] = [{"role": "user", "content": "Weather?"}]
ASK: dict[str, Any] = {"model": "test/tiny", "messages": HELLO, "tools": TOOLS}
CITY: Any = {
    "type": "function",
    "function": {
        "name": "city",
        "parameters": {
            "type": "object",
            "properties": {"name": {"enum": ["Bern", "Basel"]}},
            "required": ["name"],
            "additionalProperties": False,
        },
    },
}
WEATHER = hermes("get_weather", {"city": "Bern"})


@contextlib.asynccontextmanager
async def client_of(
    model_dir: Path, text: str, *, reason: str = "stop", **options: Any
) -> AsyncIterator[openai.AsyncOpenAI]:
    """The client of a server whose model says this text."""
    script = Tokenizer(model_dir).encode(text, add_special_tokens=False)
    core = FakeCore(script, most_prompt_tokens=4000, reason=reason)
    async with serving(core, model_dir, **options) as server, client_at(server) as client:
        yield client


def client_at(server: test_utils.TestServer) -> openai.AsyncOpenAI:
    """The client of a server."""
    url = str(server.make_url("/v1"))
    return openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)


async def joined(client: openai.AsyncOpenAI, **request: Any) -> dict[str, Any]:
    """Return the message that the deltas of a stream join to, as the protocol says."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    stream = await client.chat.completions.create(**request, stream=True)
    async for chunk in stream:
        for choice in chunk.choices:
            delta = choice.delta.model_dump(exclude_unset=True)
            for name in ("content", "reasoning_content"):
                message[name] += delta.get(name) or ""
            for call in delta.get("tool_calls") or ():
                if call["index"] == len(message["tool_calls"]):
                    assert call["id"]
                    assert call["type"] == "function"
                    message["tool_calls"].append(["", ""])
                known = message["tool_calls"][call["index"]]
                known[0] += call["function"].get("name") or ""
                known[1] += call["function"].get("arguments") or ""
            message["finish_reason"] = choice.finish_reason or message.get("finish_reason")
    return message


def flat(answer: ChatCompletion) -> dict[str, Any]:
    """Return the same of an answer that came whole."""
    choice = answer.choices[0]
    return {
        "content": choice.message.content or "",
        "reasoning_content": getattr(choice.message, "reasoning_content", None) or "",
        "tool_calls": [
            [c.function.name, c.function.arguments] for c in choice.message.tool_calls or ()
        ],
        "finish_reason": choice.finish_reason,
    }


@pytest.mark.parametrize("name", CASES)
async def test_stream_and_whole_answer_have_the_same_calls(model_dir: Path, name: str) -> None:
    tokenizer = Tokenizer(model_dir)
    core = FakeCore([], most_prompt_tokens=4000, reason="stop")
    async with (
        serving(core, model_dir, tool_call_parser=name) as server,
        client_at(server) as client,
    ):
        for case in CASES[name][-5:]:
            core.script = tokenizer.encode(case.text, add_special_tokens=False)
            whole = flat(await client.chat.completions.create(**ASK))
            assert await joined(client, **ASK) == whole
            found = [(call, json.loads(arguments)) for call, arguments in whole["tool_calls"]]
            assert (found, whole["content"]) == (case.calls, case.content)
            assert whole["finish_reason"] == ("tool_calls" if case.calls else "stop")


async def test_message_with_calls_has_no_content_and_ids_of_their_own(model_dir: Path) -> None:
    text = f"{WEATHER}\n{hermes('now', {})}"
    async with client_of(model_dir, text, tool_call_parser="hermes") as client:
        message = (await client.chat.completions.create(**ASK)).choices[0].message
    assert message.content is None
    assert message.tool_calls is not None
    assert len({call.id for call in message.tool_calls}) == 2


async def test_ids_of_mistral_are_what_its_templates_take(model_dir: Path) -> None:
    async with client_of(model_dir, "[TOOL_CALLS]now{}", tool_call_parser="mistral") as client:
        message = (await client.chat.completions.create(**ASK)).choices[0].message
    assert message.tool_calls is not None
    assert len(message.tool_calls[0].id) == 9
    assert message.tool_calls[0].id.isalnum()


async def test_one_call_at_most_where_parallel_ones_are_not_wanted(model_dir: Path) -> None:
    text = f"{WEATHER}\n{hermes('now', {})}"
    request = {**ASK, "parallel_tool_calls": False}
    async with client_of(model_dir, text, tool_call_parser="hermes") as client:
        whole = flat(await client.chat.completions.create(**request))
        assert await joined(client, **request) == whole
    assert [name for name, _ in whole["tool_calls"]] == ["get_weather"]


@pytest.mark.parametrize("request_", [{"tools": openai.NOT_GIVEN}, {"tool_choice": "none"}])
async def test_text_stays_text_where_no_tool_may_be_called(
    model_dir: Path, request_: dict[str, Any]
) -> None:
    async with client_of(model_dir, WEATHER, tool_call_parser="hermes") as client:
        whole = flat(await client.chat.completions.create(**{**ASK, **request_}))
    assert whole["content"] == WEATHER
    assert whole["tool_calls"] == []


async def test_cut_call_is_content_and_says_that_it_was_cut(model_dir: Path) -> None:
    async with client_of(
        model_dir, WEATHER[:40], reason="length", tool_call_parser="hermes"
    ) as client:
        whole = flat(await client.chat.completions.create(**ASK))
        assert await joined(client, **ASK) == whole
    assert whole["content"] == WEATHER[:40]
    assert whole["finish_reason"] == "length"


async def test_reasoning_and_calls_come_apart_and_are_counted(model_dir: Path) -> None:
    text = f"<think>\nI must look.\n</think>\n\n{WEATHER}"
    options = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
    async with client_of(model_dir, text, **options) as client:
        answer = await client.chat.completions.create(**ASK)
        whole = flat(answer)
        assert await joined(client, **ASK) == whole
    assert whole["reasoning_content"] == "I must look."
    assert answer.choices[0].message.model_extra["reasoning"] == "I must look."
    assert whole["tool_calls"][0][0] == "get_weather"
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    counted = answer.usage.completion_tokens_details.reasoning_tokens
    thought = len(Tokenizer(model_dir).encode("\nI must look.\n", add_special_tokens=False))
    marker = len(Tokenizer(model_dir).encode("</think>", add_special_tokens=False))
    assert thought <= counted <= thought + marker  # here the marker is several tokens


async def test_reasoning_is_left_out_where_nobody_wants_it(model_dir: Path) -> None:
    request = {"model": "test/tiny", "messages": HELLO, "extra_body": {"include_reasoning": False}}
    text = "<think>hm</think>Hello."
    async with client_of(model_dir, text, reasoning_parser="qwen3") as client:
        whole = flat(await client.chat.completions.create(**request))
        assert await joined(client, **request) == whole
    assert (whole["content"], whole["reasoning_content"]) == ("Hello.", "")


WRONG_TOOLS: list[tuple[dict[str, Any], str]] = [
    ({"tool_choice": "sometimes"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "unknown"}}}, "tool_choice"),
    ({"tool_choice": "required", "tools": []}, "tool_choice"),
    ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0]"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
        "tools[0].function.parameters",
    ),
    (
        {"tools": [{"type": "function", "function": {"name": "f" * 257}}]},
        "tools[0].function.name",
    ),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    (
        {
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": []},
            }
        },
        "tool_choice.allowed_tools.tools",
    ),
]


async def test_wrong_tools_are_refused_by_name(model_dir: Path) -> None:
    async with client_of(model_dir, "x") as client:
        for fields, param in WRONG_TOOLS:
            with pytest.raises(openai.BadRequestError) as refusal:
                await client.chat.completions.create(**{**ASK, **fields})
            assert refusal.value.param == param, fields


def test_forced_calls_come_after_the_reasoning(start_engine: Callable[..., Engine]) -> None:
    engine = start_engine("--reasoning-parser", "deepseek_r1").wait_ready()
    closed = [*HELLO, {"role": "assistant", "content": "<think>hm</think>"}]
    going_on = {"continue_final_message": True, "add_generation_prompt": False}
    for seed in range(3):
        answer = engine.openai.chat.completions.create(
            model=MODEL, messages=closed, tools=[CITY], tool_choice="required", seed=seed,
            max_tokens=400, extra_body=going_on, parallel_tool_calls=False,
        )  # fmt: skip
        assert answer.choices[0].finish_reason == "tool_calls"
        assert answer.choices[0].message.content is None
        for call in answer.choices[0].message.tool_calls or ():
            assert call.function.name == "city"
            assert json.loads(call.function.arguments)["name"] in ("Bern", "Basel")
    cut = engine.openai.chat.completions.create(
        model=MODEL, messages=HELLO, tools=[CITY], tool_choice="required", max_tokens=20, seed=1
    )
    assert cut.choices[0].finish_reason == "length"
    assert cut.choices[0].message.model_extra["reasoning_content"]
    assert cut.choices[0].message.tool_calls is None


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "city"}}])
def test_streamed_forced_calls_are_those_of_the_whole_answer(engine: Engine, choice: Any) -> None:
    request: dict[str, Any] = {
        "model": MODEL, "messages": HELLO, "tools": [CITY], "tool_choice": choice, "seed": 4,
        "max_tokens": 400, "parallel_tool_calls": False,
    }  # fmt: skip
    whole = flat(engine.openai.chat.completions.create(**request))
    names, arguments, num_deltas = [], "", 0
    for chunk in engine.openai.chat.completions.create(**request, stream=True):
        for call in (chunk.choices[0].delta.tool_calls or ()) if chunk.choices else ():
            names += [call.function.name] if call.function.name else []
            arguments += call.function.arguments or ""
            num_deltas += 1
    assert [names, arguments] == [
        [name for name, _ in whole["tool_calls"]],
        "".join(each for _, each in whole["tool_calls"]),
    ]
    assert num_deltas > len(names)  # arguments leave as they come
    assert whole["finish_reason"] == ("tool_calls" if choice == "required" else "stop")


def test_calls_without_content_are_rendered_as_with_an_empty_one(engine: Engine) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}

    def tokens(**content: Any) -> list[int]:
        message = {"role": "assistant", "tool_calls": [call], **content}
        answer = engine.http.post("/tokenize", json={"messages": [message]})
        assert answer.status_code == 200, answer.text
        return list(answer.json()["tokens"])

    assert tokens() == tokens(content=None) == tokens(content="")
