"""More clients at once than a queue of connections holds: each is answered, or told when to come again."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections import Counter

import aiohttp
import pytest
from aiohttp import web

from exo_inference.gateway import proxy
from exo_inference.gateway.app import Gateway
from exo_inference.listening import BACKLOG, max_exchanges


@contextlib.asynccontextmanager
async def full_queue(stack):
    """Let the first replica listen with a queue that is full; yields its listener."""
    engine = stack.engines[0]
    engine.socket = engine.socket.with_name("full.sock")
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(engine.socket))
        listener.listen(0)
        listener.setblocking(False)
        filler = sockets.enter_context(socket.socket(socket.AF_UNIX))
        filler.connect(str(engine.socket))
        yield listener


def test_replica_whose_queue_is_full_is_waited_for(on_uvloop):
    @on_uvloop
    async def _(stack):
        async with full_queue(stack) as listener:
            stack.write_table(stack.engines[:1])
            await stack.table_applied()
            request = asyncio.ensure_future(stack.client.post(stack.path(), json={}).__aenter__())
            await asyncio.sleep(0.1)
            assert not request.done()
            await web.SockSite(stack.engines[0].runner, listener, backlog=BACKLOG).start()
            async with asyncio.timeout(5), await request as answer:
                assert (answer.status, await answer.json()) == (200, {"engine": "chat-a"})


def test_replica_whose_queue_stays_full_is_busy_and_not_unreachable(on_uvloop, monkeypatch):
    monkeypatch.setattr(proxy, "LAST_BUSY_SECONDS", 0.02)

    @on_uvloop
    async def _(stack):
        async with full_queue(stack):
            stack.write_table(stack.engines[:1])
            await stack.table_applied()
            async with stack.client.post(stack.path(), json={}) as answer:
                assert answer.status == 429
                assert answer.headers["Retry-After"] == "1"
                assert (await answer.json())["error"]["code"] == "too_many_connections"


def test_request_goes_to_another_replica_than_the_busy_one(on_uvloop):
    @on_uvloop
    async def _(stack):
        async with full_queue(stack):
            stack.write_table()
            await stack.table_applied()
            for _ in range(4):
                async with stack.client.post(stack.path(), json={}) as answer:
                    assert (answer.status, await answer.json()) == (200, {"engine": "chat-b"})


async def test_burst_on_the_private_socket_waits_until_it_is_accepted(stack):
    with contextlib.ExitStack() as clients:
        for _ in range(400):  # none is accepted meanwhile: nothing else runs
            client = clients.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            assert client.connect_ex(str(stack.state.gateway_socket)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("num_streams", [300, 1000])
def test_each_of_many_streams_is_answered_or_told_to_come_again(on_uvloop, num_streams):
    """Against an engine, a fake, that takes its time and listens with a short queue."""

    async def ask(session, stack):
        async with session.post(stack.path(), json={"stream": True}) as answer:
            body = await answer.read()
            return answer.status, answer.headers.get("Retry-After"), body.endswith(stack.done)

    @on_uvloop
    async def _(stack):
        engine = stack.engines[0]
        await engine.stop()
        engine.handler = functools.partial(answer_slowly, stack)
        await engine.start(backlog=16)
        stack.write_table([engine])
        await stack.table_applied()
        headers = {"Authorization": f"Bearer {stack.key}"}
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
            async with asyncio.timeout(100):
                found = await asyncio.gather(*(ask(session, stack) for _ in range(num_streams)))
        print(Counter(found))
        assert set(found) <= {(200, None, True), (429, "1", False)}
        assert sum(status == 200 for status, _, _ in found) >= 256  # what a replica may have


async def answer_slowly(stack, request):
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for chunk in stack.chunks:
        await response.write(chunk)
        await asyncio.sleep(0.1)
    await response.write(stack.done)
    return response


async def test_no_more_requests_are_passed_on_than_descriptors_allow(stack):
    """With more clients than that, none of them would leave a descriptor for a replica."""
    await stack.gateway.stop(grace_seconds=0.1)
    stack.gateway = Gateway(stack.state, max_exchanges=3)
    stack.url = f"http://127.0.0.1:{await stack.gateway.start('127.0.0.1', 0)}"
    gate = asyncio.Event()

    async def wait(_):
        await gate.wait()
        return web.json_response({})

    for engine in stack.engines:
        engine.handler = wait

    async def ask():
        async with stack.client.post(stack.path(), json={}) as answer:
            return answer.status, await answer.json(), answer.headers

    asked = [asyncio.create_task(ask()) for _ in range(8)]
    async with asyncio.timeout(10):
        while sum(task.done() for task in asked) < 5:
            await asyncio.sleep(0.01)
        gate.set()
        answers = await asyncio.gather(*asked)
    refused = [(body, headers) for status, body, headers in answers if status == 429]
    assert [status for status, _, _ in answers].count(200) == 3
    assert len(refused) == 5
    for body, headers in refused:
        assert "3 requests at once" in body["error"]["message"]
        assert (headers["Retry-After"], headers["Connection"]) == ("1", "close")
    assert (await ask())[0] == 200


def test_each_request_has_a_connection_on_either_side():
    assert max_exchanges(1024) == 496
    assert max_exchanges(16) == 1
