"""Clients that do not take their answers: what they may hold of the gateway, and for how long."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from aiohttp import web

from exo_inference.byte_budget import ByteBudget
from exo_inference.connection_limits import STALLED_SECONDS
from exo_inference.gateway import answer_stream

MIB = 1 << 20


def engine_that_answers(parts, written):
    """Return a handler that sends these parts and notes how many were taken."""

    async def handle(request):
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.content_length = sum(map(len, parts))
        await response.prepare(request)
        for part in parts:
            await response.write(part)
            written.append(len(part))
        return response

    return handle


async def connect(stack):
    """Return a connection that holds few bytes itself."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    host, port = stack.url[7:].split(":")
    await asyncio.get_running_loop().sock_connect(raw, (host, int(port)))
    return await asyncio.open_connection(sock=raw, limit=4096)


async def ask(stack):
    reader, writer = await connect(stack)
    head = f"POST /d-1/v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {stack.key}\r\n"
    writer.write(head.encode() + b"Content-Length: 2\r\n\r\n{}")
    return reader, writer


async def until_it_stops(written):
    """Wait until the engine could send something, and then nothing for a while."""
    before = -1
    while not written or len(written) != before:
        before = len(written)
        await asyncio.sleep(0.3)


async def test_long_answer_that_is_not_taken_stays_with_its_engine(stack):
    written = []
    for engine in stack.engines:
        engine.handler = engine_that_answers([bytes(MIB)] * 48, written)
    _, writer = await ask(stack)
    await until_it_stops(written)
    assert len(written) < 24
    writer.transport.abort()


async def test_usage_ahead_of_a_long_answer_counts_for_a_client_that_leaves_it(stack):
    """As exo-engine's embeddings and rankings have it."""
    written = []
    head = b'{"id":"embd-1","usage":{"prompt_tokens":7,"total_tokens":7},"data":["'
    for engine in stack.engines:
        engine.handler = engine_that_answers([head, *[b"x" * MIB] * 47, b'"]}'], written)
    _, writer = await ask(stack)
    await until_it_stops(written)
    assert len(written) < 24
    writer.transport.abort()
    while not (rows := json.loads(await stack.admin("/usage"))["rows"]):
        await asyncio.sleep(0.01)
    assert [row["prompt_tokens"] for row in rows] == [7]


async def test_answers_that_are_not_taken_have_one_room_together(stack, monkeypatch):
    monkeypatch.setattr(answer_stream, "MAX_WHOLE_BYTES", 64 * MIB)
    stack.gateway._proxy._room = ByteBudget(2 * MIB)
    written = []
    for engine in stack.engines:
        engine.handler = engine_that_answers([bytes(MIB)] * 16, written)
    writers = [(await ask(stack))[1] for _ in range(4)]
    await until_it_stops(written)
    assert len(written) < 4 * 12
    assert stack.gateway._proxy._room.left < 2 * MIB
    for writer in writers:
        writer.transport.abort()
    while stack.gateway._proxy._room.left != 2 * MIB:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("room", [0, 64 * MIB])
@pytest.mark.parametrize("size", [10, 3 * MIB])
async def test_answer_and_its_usage_are_the_same_however_it_passes(stack, room, size):
    stack.gateway._proxy._room = ByteBudget(room)
    answer = {"choices": [{"text": "x" * size}], "usage": {"prompt_tokens": 7}}
    for engine in stack.engines:
        engine.answers(200, answer)
    async with stack.client.post(stack.path(), json={}) as got:
        assert got.status == 200
        assert await got.json() == answer
    (row,) = json.loads(await stack.admin("/usage"))["rows"]
    assert row["prompt_tokens"] == 7
    assert stack.gateway._proxy._room.left == room


def check_connections(stack):
    (connection,) = stack.gateway._server.connections
    own = connection.transport.get_extra_info("socket")
    assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == STALLED_SECONDS * 1000


async def test_kernel_ends_connections_whose_client_takes_nothing(stack):
    async with stack.client.get(stack.path("/v1/models")):
        check_connections(stack)


def test_kernel_ends_them_on_the_loop_of_real_gateways_too(on_uvloop):
    async def test(stack):
        async with stack.client.get(stack.path("/v1/models")):
            check_connections(stack)

    on_uvloop(test)
