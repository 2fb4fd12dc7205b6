"""What an assistant thought goes to the template as one text, in whatever pieces and on whatever route it comes back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from exo_engine.server.answer_parsing.harmony import Harmony
from exo_engine.server.answer_parsing.pieces import Content, Piece, Reasoning
from exo_engine.server.api_errors import ApiError
from exo_engine.server.fields import Fields
from exo_engine.server.routes import (
    anthropic_messages,
    anthropic_request,
    responses,
    responses_request,
)
from exo_engine.server.routes.conversation import read_messages, unhurried
from exo_engine.server.routes.message_blocks import MessageBlocks
from exo_engine.server.routes.output_items import OutputItems

from .test_tool_calls import client_of

pytestmark = pytest.mark.filterwarnings("ignore:It is recommended to use web.RequestKey")
Reader = Callable[[list[str]], dict[str, Any]]
CASES = [
    (["hm"], "hm"),
    (["a", "b", "c"], "a\nb\nc"),
    (["a\n", "b"], "a\nb"),
    (["a", "\nb"], "a\nb"),
    (["a\n", "\nb"], "a\n\nb"),
    (["", "a", "", "b", ""], "a\nb"),
    ([""], ""),
]


def chat(pieces: list[str], field: str = "reasoning_content") -> dict[str, Any]:
    parts = [{"type": "text", "text": each} for each in pieces]
    (message,) = read_messages(
        Fields({"messages": [{"role": "assistant", "content": "So.", field: parts}]}), 10
    )
    return message


def responses_of(items: list[dict[str, Any]]) -> dict[str, Any]:
    said = {"type": "message", "role": "assistant", "content": "So."}
    read = responses_request.as_chat(Fields({"model": "m", "input": [*items, said]}))
    (message,) = read.values["messages"]
    assert isinstance(message, dict)
    return message


def items(pieces: list[str]) -> dict[str, Any]:
    parts = [[{"type": "reasoning_text", "text": each}] for each in pieces]
    return responses_of([{"type": "reasoning", "content": each} for each in parts])


def parts_of_an_item(pieces: list[str]) -> dict[str, Any]:
    parts = [{"type": "reasoning_text", "text": each} for each in pieces]
    return responses_of([{"type": "reasoning", "content": parts}])


def summaries(pieces: list[str]) -> dict[str, Any]:
    parts = [{"type": "summary_text", "text": each} for each in pieces]
    return responses_of([{"type": "reasoning", "summary": parts}])


def blocks(pieces: list[str]) -> dict[str, Any]:
    content = [{"type": "thinking", "thinking": each, "signature": ""} for each in pieces]
    return message_of([*content, {"type": "text", "text": "So."}])


def message_of(content: list[dict[str, Any]]) -> dict[str, Any]:
    asked = {"model": "m", "max_tokens": 5, "messages": [{"role": "assistant", "content": content}]}
    (message,) = anthropic_request.as_chat(Fields(asked)).values["messages"]
    assert isinstance(message, dict)
    return message


@pytest.mark.parametrize("read", [chat, items, parts_of_an_item, summaries, blocks])
@pytest.mark.parametrize(("pieces", "whole"), CASES, ids=[repr(whole) for _, whole in CASES])
def test_pieces_of_reasoning_are_one_text_on_every_route(
    read: Reader, pieces: list[str], whole: str
) -> None:
    assert read(pieces) == {"role": "assistant", "content": "So.", "reasoning_content": whole}


@pytest.mark.parametrize("field", ["reasoning", "thinking"])
def test_reasoning_by_its_other_names_may_come_in_parts(field: str) -> None:
    assert chat(["a", "b"], field)[field] == "a\nb"


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        (7, "messages[0].reasoning"),
        ({"text": "hm"}, "messages[0].reasoning"),
        ([{"type": "image_url"}], "messages[0].reasoning[0]"),
        ([{"type": "text"}], "messages[0].reasoning[0].text"),
        (["hm"], "messages[0].reasoning[0]"),
    ],
)
def test_reasoning_that_is_no_text_is_refused_by_its_place(wrong: object, param: str) -> None:
    message = {"role": "assistant", "content": "So.", "reasoning": wrong}
    with pytest.raises(ApiError) as refusal:
        read_messages(Fields({"messages": [message]}), 10)
    assert (refusal.value.status, refusal.value.param) == (400, param)


@pytest.mark.parametrize("role", ["user", "tool", "system"])
def test_what_others_than_the_assistant_have_by_such_a_name_is_for_the_template(role: str) -> None:
    message = {"role": role, "content": "So.", "thinking": {"budget": 3}}
    assert read_messages(Fields({"messages": [message]}), 10) == [message]


def test_an_answer_that_is_sent_back_in_pieces_is_what_it_was() -> None:
    """gpt-oss thinks, speaks, and thinks again; a client of chat gets all of its thoughts as one text."""
    turn = "<|channel|>{}<|message|>{}<|end|><|start|>assistant"
    said = [
        ("analysis", "First."),
        ("commentary", "Wait."),
        ("analysis", "Then."),
        ("final", "So."),
    ]
    machine = Harmony()
    pieces = machine.feed("".join(turn.format(*each) for each in said)) + machine.finish()
    whole = text_of(pieces, Reasoning)
    assert whole == "First.\nThen."
    form: Any = None  # only calls ask it
    output, content = OutputItems(form), MessageBlocks(form)
    output.take(pieces)
    output.close()
    content.take(pieces)
    asked = {"model": "m", "input": output.items}
    (from_items,) = responses_request.as_chat(Fields(asked)).values["messages"]
    from_blocks = message_of(content.blocks)
    assert from_items == from_blocks
    assert from_items["reasoning_content"] == whole
    assert from_items["content"] == text_of(pieces, Content)


def text_of(pieces: list[Piece], kind: type[Content] | type[Reasoning]) -> str:
    return "".join(each.text for each in pieces if isinstance(each, kind))


MANY: list[Any] = [
    [{"role": "user", "content": "Hi"}] * 101,
    [{"role": "user", "content": [{"type": "text", "text": "Hi"}] * 101}],
    [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hi"}] * 101}],
]


@pytest.mark.parametrize("given", MANY, ids=["messages", "parts", "summaries"])
async def test_a_conversation_of_many_parts_is_read_beside_other_requests(given: Any) -> None:
    assert await unhurried(given, threading.get_ident) != threading.get_ident()


@pytest.mark.parametrize("given", [MANY[0][:2], "Hi", None, 7, [7, "x", []]])
async def test_a_small_conversation_is_read_at_once(given: Any) -> None:
    assert await unhurried(given, threading.get_ident) == threading.get_ident()


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/v1/messages/count_tokens"])
async def test_the_routes_read_long_conversations_beside_others(
    path: str, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[int] = []

    def watched(read: Callable[..., Fields]) -> Callable[..., Fields]:
        def read_and_note(*words: Any, **named: Any) -> Fields:
            readers.append(threading.get_ident())
            return read(*words, **named)

        return read_and_note

    for module in (responses, anthropic_messages):
        monkeypatch.setattr(module, "as_chat", watched(module.as_chat))
    many = [{"role": "user", "content": [{"type": "text", "text": ""}] * 101}]
    asked: dict[str, Any] = {"/v1/responses": {"input": many}}.get(path, {"messages": many})
    if path == "/v1/messages":
        asked["max_tokens"] = 5
    async with client_of(model_dir, "Hello") as client:
        body = {"model": "test/tiny", **asked}
        await client.post(path.removeprefix("/v1"), body=body, cast_to=object)
    assert readers
    assert threading.get_ident() not in readers
