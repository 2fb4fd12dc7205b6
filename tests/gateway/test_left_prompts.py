"""What a stream's prompt took counts although its client leaves before the engine tells its usage."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from exo_inference.gateway import left_prompts
from exo_inference.gateway.left_prompts import read_prompts
from tests.gateway.conftest import until

MESSAGES = [{"role": "user", "content": "hi"}]


def streams_and_tokenizes(stack, answer):
    """Have the engines stream without an end, and tell of every prompt what `answer` gives."""
    asked = []

    async def handle(request):
        if request.path == "/tokenize":
            asked.append(await request.json())
            return await answer()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"".join(stack.chunks))
        await asyncio.Event().wait()
        return response

    for engine in stack.engines:
        engine.handler = handle
    return asked


async def tells_seven():
    return web.json_response({"count": 7, "max_model_len": 64, "tokens": list(range(7))})


@asynccontextmanager
async def left_early(stack, path="/v1/chat/completions", **fields):
    """Read the texts there are and hang up."""
    body = {"model": "m", "stream": True, **fields}
    async with stack.client.post(stack.path(path), json=body) as answer:
        await answer.content.readexactly(len(b"".join(stack.chunks)))
        answer.close()
        yield


async def usage(stack):
    async def is_counted():
        return bool(json.loads(await stack.admin("/usage"))["rows"])

    await until(is_counted)
    (row,) = json.loads(await stack.admin("/usage"))["rows"]
    return row["requests"], row["prompt_tokens"], row["completion_tokens"]


@pytest.mark.parametrize(
    ("path", "fields", "question", "prompt"),
    [
        pytest.param(
            "/v1/chat/completions",
            {"messages": MESSAGES, "temperature": 0},
            {"model": "m", "messages": MESSAGES},
            7,
            id="chat",
        ),
        pytest.param("/v1/completions", {"prompt": "hi"}, {"model": "m", "prompt": "hi"}, 7, id="text"),
        pytest.param("/v1/completions", {"prompt": [3, 4, 5]}, None, 3, id="tokens"),
        pytest.param("/v1/responses", {"input": "hi"}, {"model": "m", "messages": MESSAGES}, 7, id="responses"),
    ],
)  # fmt: skip
async def test_prompt_of_a_stream_that_is_left_is_counted(stack, path, fields, question, prompt):
    asked = streams_and_tokenizes(stack, tells_seven)
    async with left_early(stack, path, **fields):
        assert await usage(stack) == ({"499": 1}, prompt, 5)
    assert asked == ([] if question is None else [question])


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param({"status": 404, "text": '{"count": 7}'}, id="no such route"),
        pytest.param({"text": "{}"}, id="no count"),
        pytest.param({"text": '{"count": -7}'}, id="negative"),
        pytest.param({"text": '{"count": 1e9}'}, id="no whole number"),
        pytest.param({"text": '{"x": "%s", "count": 7}' % ("x" * 5000)}, id="far away"),
    ],
)
async def test_an_engine_that_tells_no_count_leaves_the_prompt_at_none(stack, answer):
    async def tell():
        return web.Response(**answer)

    streams_and_tokenizes(stack, tell)
    async with left_early(stack, messages=MESSAGES):
        assert await usage(stack) == ({"499": 1}, 0, 5)


async def test_a_gateway_that_stops_does_not_wait_for_the_count(stack):
    began = asyncio.Event()

    async def hang():
        began.set()
        await asyncio.Event().wait()

    streams_and_tokenizes(stack, hang)
    async with left_early(stack, messages=MESSAGES):
        await asyncio.wait_for(began.wait(), 10)
        await stack.gateway.stop(grace_seconds=0.1)
    (row,) = json.loads(stack.state.usage_file.read_text())["rows"]
    assert (row["prompt_tokens"], row["completion_tokens"]) == (0, 5)


async def test_no_more_are_asked_for_than_there_is_room(stack, monkeypatch):
    monkeypatch.setattr(left_prompts, "MAX_BYTES", 10)
    asked = streams_and_tokenizes(stack, tells_seven)
    async with left_early(stack, messages=MESSAGES):
        assert await usage(stack) == ({"499": 1}, 0, 5)
    assert asked == []


def test_prompts_are_read_as_engines_read_them():
    def read(path, **request):
        return read_prompts(f"/v1/{path}", json.dumps(request).encode())

    assert read("completions", prompt=["a", "b"]) == (0, [{"prompt": "a"}, {"prompt": "b"}])
    assert read("completions", prompt=[[1, 2], [3]]) == (3, [])
    assert read("chat/completions", messages=MESSAGES, tools=[], seed=1) == (
        0,
        [{"messages": MESSAGES, "tools": []}],
    )
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_image"}]
    items = [{"role": "user", "content": parts}, {"type": "reasoning"}, "x"]
    assert read("responses", instructions="b", input=items) == (
        0,
        [{"messages": [{"role": "system", "content": "b"}, {"role": "user", "content": "a"}]}],
    )


@pytest.mark.parametrize("body", [b"[]", b"{", b"[" * 100_000, b"[,]" * 1_000_000])
def test_a_body_that_is_no_request_is_refused(body):
    with pytest.raises((ValueError, RecursionError)):
        read_prompts("/v1/chat/completions", body)
