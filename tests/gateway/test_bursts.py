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

from exo_inference import acceptor
from exo_inference.connection_limits import BACKLOG, OWN_DESCRIPTORS, Share, share_descriptors
from exo_inference.gateway import proxy
from exo_inference.gateway.app import Gateway


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
    stack.gateway = Gateway(stack.state, share=Share(exchanges=3, connections=16))
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


@pytest.mark.parametrize("descriptors", [16, 64, 128, 1024, 65536])
def test_connections_of_clients_and_replicas_never_take_more_than_there_is(descriptors):
    share = share_descriptors(descriptors)
    assert 1 <= share.exchanges < share.connections
    assert share.connections + share.exchanges <= max(3, descriptors - OWN_DESCRIPTORS)


async def begin_again(stack, share):
    """Give the stack a gateway with few connections."""
    await stack.gateway.stop(grace_seconds=0.1)
    stack.gateway = Gateway(stack.state, share=share)
    stack.port = await stack.gateway.start("127.0.0.1", 0)
    stack.url = f"http://127.0.0.1:{stack.port}"


async def test_connections_beyond_the_bound_wait_and_are_answered(stack):
    await begin_again(stack, Share(exchanges=3, connections=4))
    gate = asyncio.Semaphore(0)

    async def wait(_):
        await gate.acquire()
        return web.json_response({})

    for engine in stack.engines:
        engine.handler = wait
    async with contextlib.AsyncExitStack() as clients:
        streams = [await asyncio.open_connection("127.0.0.1", stack.port) for _ in range(12)]
        for _, writer in streams:
            clients.callback(writer.close)
            head = f"POST /d-1/v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {stack.key}"
            writer.write(f"{head}\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        gate.release()
        async with asyncio.timeout(10):
            while not (stack.engines[0].requests and stack.engines[1].requests):
                await asyncio.sleep(0.01)
            for _ in range(12):
                gate.release()
            answers = [await reader.read() for reader, _ in streams]
    statuses = Counter(answer.split(b" ")[1] for answer in answers)
    assert set(statuses) <= {b"200", b"429"}
    assert statuses[b"200"] >= 3


@pytest.mark.parametrize("is_used", [False, True])
async def test_connections_that_ask_for_nothing_give_way(stack, monkeypatch, is_used):
    """One client that holds all connections keeps nobody out, whether it had an answer or not."""
    monkeypatch.setattr(acceptor, "SPARED_SECONDS", 0.05)
    monkeypatch.setattr(acceptor, "LOOK_SECONDS", 0.01)
    await begin_again(stack, Share(exchanges=8, connections=4))
    async with contextlib.AsyncExitStack() as clients:
        for _ in range(6):
            reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
            clients.callback(writer.close)
            if is_used:
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                await reader.readuntil(b"}")
        async with asyncio.timeout(5), stack.client.post(stack.path(), json={}) as answer:
            assert answer.status == 200


async def test_request_in_flight_never_gives_way(stack, monkeypatch):
    monkeypatch.setattr(acceptor, "SPARED_SECONDS", 0.0)
    monkeypatch.setattr(acceptor, "LOOK_SECONDS", 0.01)
    await begin_again(stack, Share(exchanges=1, connections=1))
    gate = asyncio.Semaphore(1)
    for engine in stack.engines:
        engine.streams(stack.chunks[0], stack.done, gate=gate)
    async with stack.client.post(stack.path(), json={"stream": True}) as answer:
        assert await answer.content.readany() == stack.chunks[0]
        _, writer = await asyncio.open_connection("127.0.0.1", stack.port)
        await asyncio.sleep(0.1)  # it looks ten times
        gate.release()
        assert await answer.content.read() == stack.done
        writer.close()
