"""Requests on a replica that hangs go elsewhere; those on one that drains are left in peace."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from exo_inference.gateway.app import Gateway
from exo_inference.gateway.replicas.lost_replicas import LostReplicaSettings


@pytest.fixture
async def hung(stack):
    """A stack with one request on its first replica, which gives no answer until `release`."""
    await stack.gateway.stop(grace_seconds=0.1)
    stack.gateway = Gateway(
        stack.state, patience=LostReplicaSettings(seconds=0.1, alone_seconds=0.3)
    )
    stack.url = f"http://127.0.0.1:{await stack.gateway.start('127.0.0.1', 0)}"
    first = stack.engines[0]
    stack.release = asyncio.Event()

    async def hang(_):
        await stack.release.wait()
        return web.json_response({"engine": first.name})

    first.handler = hang
    stack.write_table([first], draining=[])
    await stack.table_applied()

    async def post():
        async with stack.client.post(stack.path(), json={}) as answer:
            return answer.status, await answer.json()

    stack.request = asyncio.create_task(post(), name="request")
    async with asyncio.timeout(5):
        while not first.bodies:
            await asyncio.sleep(0.01)
    yield stack
    stack.release.set()
    stack.request.cancel()


async def test_request_on_a_lost_replica_is_answered_by_another(hung):
    hung.write_table(hung.engines[1:], draining=[])
    async with asyncio.timeout(5):
        assert await hung.request == (200, {"engine": "chat-b"})


async def test_request_on_the_only_replica_is_given_up_later(hung):
    hung.write_table([], draining=[])
    started = asyncio.get_running_loop().time()
    async with asyncio.timeout(5):
        status, body = await hung.request
    assert (status, body["error"]["code"]) == (503, "no_ready_replica")
    assert asyncio.get_running_loop().time() - started >= 0.3


@pytest.mark.parametrize("draining", [["chat-a"], None], ids=["draining", "nobody said"])
async def test_request_on_a_draining_replica_is_not_touched(hung, draining):
    hung.write_table(hung.engines[1:], draining=draining)
    await hung.table_applied()
    await asyncio.sleep(0.4)
    assert not hung.request.done()
    hung.release.set()
    assert await hung.request == (200, {"engine": "chat-a"})


async def test_replica_that_is_ready_again_in_time_keeps_its_request(hung):
    lost = hung.gateway._patience
    lost._settings = LostReplicaSettings(alone_seconds=3600)  # "in time" on any machine
    (limit,) = lost._waiting
    hung.write_table([], draining=[])
    await hung.table_applied()
    assert limit.when() is not None
    hung.write_table(hung.engines, draining=[])
    await hung.table_applied()
    assert limit.when() is None
    hung.release.set()
    assert await hung.request == (200, {"engine": "chat-a"})


async def test_request_of_a_deleted_deployment_is_not_touched(hung):
    hung.write_table([], draining=[], **{"deployment-id": "d-9", "name": "new"})
    await hung.table_applied()
    await asyncio.sleep(0.4)
    hung.release.set()
    assert await hung.request == (200, {"engine": "chat-a"})
