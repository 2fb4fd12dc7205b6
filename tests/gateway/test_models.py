"""While replicas of one deployment have different models, a request goes to those that have the one it names."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from exo_inference.gateway import proxy
from exo_inference.gateway.app import Gateway
from exo_inference.gateway.held_requests import HoldSettings
from exo_inference.gateway.models.listing import MAX_PAGE_BYTES, merge_models
from exo_inference.gateway.models.requested_model import RequestedModel
from exo_inference.gateway.replicas.lost_replicas import LostReplicaSettings

OLD, NEW = "exo/old", "exo/new"


def serve(engine, *models):
    """Let an engine answer to these names alone, as engines do."""

    async def handle(request):
        if request.path.endswith("/v1/models"):
            cards = [{"id": name, "object": "model", "by": engine.name} for name in models]
            return web.json_response({"object": "list", "data": cards})
        name = RequestedModel(request.path, await request.read())._find(())
        if name is not None and name not in models:
            error = {"message": f"{name} does not exist", "code": "model_not_found"}
            return web.json_response({"error": error}, status=404)
        return web.json_response({"engine": engine.name})

    engine.handler = handle


def replica_of(stack, engine, *models):
    address = f"unix:{engine.socket.relative_to(stack.state.root)}"
    return {"name": engine.name, "address": address, **({"models": models} if models else {})}


@pytest.fixture
async def mixed(stack):
    """A stack whose first replica has the old model and whose second has the new one."""
    for engine, model in zip(stack.engines, (OLD, NEW), strict=True):
        serve(engine, model)
    await publish(stack)
    return stack


async def publish(stack, *models: tuple[str, ...], **changes: Any):
    """Publish a table in which each engine has these models; one with none is not ready."""
    given = models or ((OLD,), (NEW,))
    replicas = [
        replica_of(stack, engine, *names)
        for engine, names in zip(stack.engines, given, strict=True)
        if names
    ]
    stack.write_table(replicas=replicas, model=NEW, state="updating", coming=True, **changes)
    await stack.table_applied()


def post(stack, body, path="/v1/chat/completions", **options):
    async def send():
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with stack.client.post(stack.path(path), data=data, **options) as answer:
            return answer.status, await answer.json()

    return asyncio.create_task(send())


async def answered_by(stack, body, **options):
    """Ask eight times; return who answered, or with which status."""
    said = [await post(stack, body, **options) for _ in range(8)]
    return {document.get("engine", status) for status, document in said}


async def restart(stack, **options):
    await stack.gateway.stop(grace_seconds=0.1)
    stack.gateway = Gateway(stack.state, **options)
    stack.url = f"http://127.0.0.1:{await stack.gateway.start('127.0.0.1', 0)}"


async def test_a_request_goes_to_the_replicas_with_the_model_that_it_names(mixed):
    for stream in (False, True):
        assert await answered_by(mixed, {"model": OLD, "stream": stream}) == {"chat-a"}
        assert await answered_by(mixed, {"model": NEW, "stream": stream}) == {"chat-b"}


async def test_a_request_without_a_name_or_with_an_unknown_one_goes_anywhere(mixed):
    assert await answered_by(mixed, {"messages": []}) == {"chat-a", "chat-b"}
    assert await answered_by(mixed, {"model": "exo/other"}) == {404}
    assert {len(engine.bodies) for engine in mixed.engines} == {8}


async def test_once_the_last_replica_of_the_old_model_has_left_its_name_is_not_found(mixed):
    await publish(mixed, (), (NEW,), draining=["chat-a"])
    assert await answered_by(mixed, {"model": OLD}) == {404}
    assert await answered_by(mixed, {"model": NEW}) == {"chat-b"}


async def test_a_table_that_says_nothing_of_models_is_followed_as_before(mixed):
    mixed.write_table()
    await mixed.table_applied()
    assert await answered_by(mixed, {"model": OLD}) == {"chat-a", 404}


async def test_a_model_that_is_not_in_effect_is_explained_to_who_asks_for_it(mixed):
    serve(mixed.engines[1], OLD)
    await publish(mixed, (OLD,), (OLD,))
    mixed.write_table(
        replicas=[replica_of(mixed, engine, OLD) for engine in mixed.engines],
        model=NEW,
        state="error",
        state_details="the update was rolled back: wings are missing" + "x" * 2000,
    )
    await mixed.table_applied()
    for body in ({"model": NEW}, {"model": NEW, "stream": True}):
        status, document = await post(mixed, body)
        assert (status, document["error"]["code"]) == (404, "model_not_found")
        told = document["error"]["message"]
        assert "its change to it is not in effect (error: the update was rolled back: wings" in told
        assert f"it serves {OLD}. Ask for that one" in told
        assert "deployment show chat" in told
        assert len(told) < 1000
    for body in ({"model": "exo/other"}, {"model": "exo/other", "a": {"model": NEW}}):
        status, document = await post(mixed, body)
        assert (status, document["error"]["message"]) == (404, "exo/other does not exist")
    assert await answered_by(mixed, {"model": OLD}) == {"chat-a", "chat-b"}
    nested = json.dumps({"a": {"model": OLD}, "model": NEW}).encode()
    assert RequestedModel("/v1/completions", nested).names(NEW)
    assert not RequestedModel("/v1/completions", nested).names(OLD)


async def test_a_form_and_a_path_name_a_model_too(mixed):
    for model, engine in ((OLD, "chat-a"), (NEW, "chat-b")):
        for _ in range(4):
            form = aiohttp.FormData()
            form.add_field("file", b"\x00\x01" * 4096, filename="a.wav")
            form.add_field("model", model)
            url = mixed.path("/v1/audio/transcriptions")
            async with mixed.client.post(url, data=form) as answer:
                assert (await answer.json())["engine"] == engine
            async with mixed.client.get(mixed.path(f"/v1/models/{model}")) as answer:
                assert (await answer.json())["engine"] == engine


async def test_the_models_of_all_replicas_are_listed(mixed):
    async with mixed.client.get(mixed.path("/v1/models")) as answer:
        assert answer.status == 200
        assert sorted(card["id"] for card in (await answer.json())["data"]) == [NEW, OLD]
    await mixed.engines[0].stop()  # and those that can be had, where not all answer
    async with mixed.client.get(mixed.path("/v1/models")) as answer:
        assert [card["id"] for card in (await answer.json())["data"]] == [NEW]


async def test_many_lists_at_once_are_put_together_once(mixed, monkeypatch):
    """Each would take a place of every replica, and a part would be told 429, or of one model alone."""
    monkeypatch.setattr(proxy, "LIST_SECONDS", 60.0)
    gate = asyncio.Semaphore(0)
    for engine in mixed.engines:
        plain = engine.handler

        async def handle(request, plain=plain):
            await gate.acquire()
            return await plain(request)

        engine.handler = handle

    async def ask(session):
        async with session.get(mixed.path("/v1/models")) as answer:
            return answer.status, sorted(card["id"] for card in (await answer.json())["data"])

    connector = aiohttp.TCPConnector(limit=0)
    async with (
        asyncio.timeout(20),
        aiohttp.ClientSession(connector=connector, headers=mixed.client.headers) as session,
    ):
        asks = [asyncio.create_task(ask(session))]
        while not all(engine.requests for engine in mixed.engines):
            await asyncio.sleep(0.01)
        asks += [asyncio.create_task(ask(session)) for _ in range(299)]
        while mixed.gateway._in_flight < 300:
            await asyncio.sleep(0.01)
        asks.pop(0).cancel()  # others go on with what this one began
        for _ in mixed.engines:
            gate.release()
        assert await asyncio.gather(*asks) == [(200, [NEW, OLD])] * 299
    assert [len(engine.requests) for engine in mixed.engines] == [1, 1]


async def test_a_list_that_has_no_end_is_not_read_to_put_it_together(mixed):
    engine = mixed.engines[1]
    card = {"id": NEW, "by": engine.name, "pad": "x" * MAX_PAGE_BYTES}

    async def handle(request):
        return web.json_response({"object": "list", "data": [card]})

    engine.handler = handle
    async with mixed.client.get(mixed.path("/v1/models")) as answer:
        assert answer.status == 200
        assert len((await answer.json())["data"]) == 1  # as one replica has it


async def test_a_request_is_sent_again_to_a_replica_with_its_model(mixed):
    first, second = mixed.engines
    third = type(first)("chat-c", mixed.state.replicas_dir / "chat-c" / "engine.sock")
    await third.start()
    serve(third, NEW)
    first.breaks_off()
    mixed.write_table(
        replicas=[
            replica_of(mixed, first, NEW),
            replica_of(mixed, second, OLD),
            replica_of(mixed, third, NEW),
        ],
        model=NEW,
    )
    await mixed.table_applied()
    assert await answered_by(mixed, {"model": NEW}) == {"chat-c"}
    assert first.bodies
    assert not second.bodies
    await third.stop()


async def test_a_request_whose_replica_cannot_be_reached_waits_for_it_and_goes_nowhere_else(mixed):
    await mixed.engines[0].stop()
    request = post(mixed, {"model": OLD})
    async with asyncio.timeout(5):
        while not mixed.gateway._holding.num_held:
            await asyncio.sleep(0.01)
    await mixed.engines[0].start()
    assert await request == (200, {"engine": "chat-a"})
    assert not mixed.engines[1].bodies


async def test_a_request_is_held_while_no_replica_of_its_model_is_up_and_one_is_coming(mixed):
    await publish(mixed, (OLD,), (), **{"coming-models": [NEW]})
    request = post(mixed, {"model": NEW})
    async with asyncio.timeout(5):
        while not mixed.gateway._holding.num_held:
            await asyncio.sleep(0.01)
    assert await answered_by(mixed, {"model": OLD}) == {"chat-a"}
    assert not request.done()
    await publish(mixed)
    assert await request == (200, {"engine": "chat-b"})
    assert mixed.engines[0].bodies == [b'{"model": "exo/old"}'] * 8


async def test_a_request_that_is_held_too_long_is_told_for_what(mixed):
    await restart(mixed, holding=HoldSettings(seconds=0.1))
    await publish(mixed, (OLD,), (), **{"coming-models": [NEW]})
    status, answer = await post(mixed, {"model": NEW})
    assert (status, answer["error"]["code"]) == (503, "no_ready_replica")
    assert "its replicas with the model 'exo/new' are on their way" in answer["error"]["message"]


async def test_a_slow_replica_is_alone_where_the_others_have_another_model(mixed):
    await restart(mixed, patience=LostReplicaSettings(seconds=0.0, alone_seconds=60.0))
    release = asyncio.Event()

    async def hang(_):
        await release.wait()
        return web.json_response({"engine": "chat-a"})

    first = mixed.engines[0]
    first.handler = hang
    request = post(mixed, {"model": OLD})
    async with asyncio.timeout(5):
        while not first.bodies:
            await asyncio.sleep(0.01)
    await publish(mixed, (), (NEW,), draining=[], **{"coming-models": [OLD]})
    assert await answered_by(mixed, {"model": NEW}) == {"chat-b"}
    assert not request.done()
    release.set()
    assert await request == (200, {"engine": "chat-a"})


# -- lists of models


def test_lists_of_models_are_put_together() -> None:
    pages = [
        b'{"object":"list","data":[{"id":"a","by":1},{"id":"b"}]}',
        b"no JSON",
        b'{"object":"list","data":[{"id":"a","by":2},{"id":"c"},7]}',
    ]
    merged = merge_models(pages)
    assert merged is not None
    assert json.loads(merged) == {
        "object": "list",
        "data": [{"id": "a", "by": 1}, {"id": "b"}, {"id": "c"}],
    }


@pytest.mark.parametrize("pages", [[], [b'{"data":[]}'], [b"[]", b'{"data":{}}', b"[" * 9999]])
def test_what_is_no_list_of_models_is_not_put_together(pages: list[bytes]) -> None:
    assert merge_models(pages) is None


@pytest.mark.parametrize("said", [rb'{"id":"\ud800"}', b'{"id":"b","x":NaN}', b'{"id":"b","x":1e999}'])  # fmt: skip
def test_lists_that_could_not_be_written_are_not_put_together(said: bytes) -> None:
    assert merge_models([b'{"data":[{"id":"a"}]}', b'{"data":[%s]}' % said]) is None
