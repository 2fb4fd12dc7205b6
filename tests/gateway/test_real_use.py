"""Load, scoped keys and streams as clients use them, with numbers."""

from __future__ import annotations

import asyncio
import hashlib

import aiohttp
import pytest
from aiohttp import web

ASKED = {"stream": True, "stream_options": {"include_usage": True}}


def route_key(value: str) -> dict[str, str]:
    return {"id": f"key-of-{value}", "sha256": hashlib.sha256(value.encode()).hexdigest()}


async def test_replica_with_a_slow_request_gets_no_other_while_one_is_free(stack):
    slow, fast = stack.engines
    release = asyncio.Event()

    async def hold(_):
        await release.wait()
        return web.json_response({})

    slow.handler = hold

    async def post():
        async with stack.client.post(stack.path(), json={}) as answer:
            return answer.status

    held = []
    while not slow.bodies:  # the first or the second one hangs there
        held.append(asyncio.create_task(post(), name="held"))
        await asyncio.sleep(0.02)
    before = len(fast.bodies)
    assert [await post() for _ in range(20)] == [200] * 20
    assert (len(slow.bodies), len(fast.bodies)) == (1, before + 20)
    pending = {n: r["pending"] for n, r in (await stack.status())["replicas"].items()}
    assert pending == {"chat-a": 1, "chat-b": 0}
    release.set()
    assert set(await asyncio.gather(*held)) == {200}


async def test_concurrent_requests_are_shared_equally(stack):
    release = asyncio.Event()

    async def hold(_):
        await release.wait()
        return web.json_response({})

    for engine in stack.engines:
        engine.handler = hold

    async def post():
        async with stack.client.post(stack.path(), json={}) as answer:
            return answer.status

    requests = [asyncio.create_task(post(), name=f"request-{n}") for n in range(20)]
    async with asyncio.timeout(5):
        while sum(len(engine.bodies) for engine in stack.engines) < 20:
            await asyncio.sleep(0.01)
    assert [len(engine.bodies) for engine in stack.engines] == [10, 10]
    release.set()
    assert set(await asyncio.gather(*requests)) == {200}


@pytest.mark.parametrize(
    ("key", "statuses"),
    [("sk-scoped", (200, 403)), ("sk-public", (200, 200)), ("sk-chat", (200, 403))],
)
async def test_keys_open_what_they_are_for(stack, key, statuses):
    stack.write_table(keys=[route_key("sk-chat"), route_key("sk-scoped")])
    await stack.table_applied()
    for deployment, status in zip(("d-1", "d-2"), statuses, strict=True):
        headers = {"Authorization": f"Bearer {key}"}
        url = stack.path(deployment=deployment)
        async with stack.client.post(url, json={}, headers=headers) as answer:
            assert answer.status == status
    assert f'"key_id": "key-of-{key}"' in await stack.admin("/usage")


async def test_stream_that_asks_for_usage_is_the_same_as_from_the_engine(stack):
    for engine in stack.engines:
        engine.streams(*stack.chunks, stack.usage, stack.done)
    async with stack.client.post(stack.path(), json=ASKED) as answer:
        through = await answer.read()
    connector = aiohttp.UnixConnector(str(stack.engines[0].socket))
    async with (
        aiohttp.ClientSession(connector=connector) as direct,
        direct.post("http://engine/v1/chat/completions", json=ASKED) as answer,
    ):
        assert through == await answer.read()
    bodies = [body for engine in stack.engines for body in engine.bodies]
    assert bodies[0] == bodies[1], "the request was not changed either"
