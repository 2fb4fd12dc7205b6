"""`GET /<deployment id>/health` says whether a deployment answers now, in the words of its engine."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy

from exo_inference.gateway.exchange import Exchange
from exo_inference.gateway.replicas import health as replica_health

STALLED = {"status": "stalled", "detail": "no layer was computed for 6 s"}


async def health(stack, *, method="GET", **how):
    async with stack.client.request(method, stack.path("/health"), **how) as answer:
        return answer.status, await answer.text(), answer.headers


async def only(stack, num_engines=1, **changes):
    """Have the deployment so many replicas."""
    stack.write_table(stack.engines[:num_engines], **changes)
    await stack.table_applied()


async def hang(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def test_engine_that_is_well_answers_for_the_deployment(stack):
    await only(stack)
    stack.engines[0].answers(body={"status": "ok"})
    status, body, headers = await health(stack)
    assert (status, body) == (200, '{"status": "ok"}')
    assert headers["X-Request-ID"]
    (asked,) = stack.engines[0].requests
    assert (asked.method, asked.path) == ("GET", "/health")
    assert "Authorization" not in asked.headers


async def test_head_has_no_body(stack):
    await only(stack)
    status, body, _ = await health(stack, method="HEAD")
    assert (status, body) == (200, "")


async def test_engine_that_is_not_well_says_why(stack):
    await only(stack)
    stack.engines[0].answers(503, STALLED)
    status, body, _ = await health(stack)
    assert status == 503
    assert "no layer was computed for 6 s" in body


async def test_one_replica_that_is_well_is_enough(stack):
    stack.engines[0].answers(503, STALLED)
    stack.engines[1].answers(body={"status": "ok"})
    assert [(await health(stack))[0] for _ in range(4)] == [200] * 4


async def test_replica_that_ended_a_moment_ago_is_passed_over(stack):
    await stack.engines[0].stop()
    assert (await health(stack))[0] == 200


async def test_replica_that_hangs_is_not_reached(stack, monkeypatch):
    monkeypatch.setattr(replica_health, "REPLICA_SECONDS", 0.1)  # none has to answer within it
    stack.engines[0].handler = hang
    await only(stack)
    status, body, headers = await health(stack)
    assert status == 503
    assert "can be reached" in body
    assert headers["Retry-After"]


async def test_no_replica_waits_for_those_that_hang(stack, monkeypatch):
    monkeypatch.setattr(replica_health, "REPLICA_SECONDS", 600.0)
    monkeypatch.setattr(replica_health, "ALL_SECONDS", 600.0)
    hangs, well = stack.engines
    hangs.handler = hang
    before = asyncio.all_tasks()
    assert (await health(stack))[0] == 200
    assert well.requests
    left = {each.get_coro().__qualname__ for each in asyncio.all_tasks() - before}
    assert not any("_ask" in name for name in left)


async def test_the_first_of_those_that_are_not_well_says_why(stack):
    for number, each in enumerate(stack.engines):
        each.answers(503, {"status": "stalled", "detail": f"replica {number}"})
    for _ in range(4):
        assert "replica 0" in (await health(stack))[1]


async def test_replicas_are_asked_a_few_at_a_time(stack, monkeypatch):
    monkeypatch.setattr(replica_health, "MAX_AT_ONCE", 1)
    stack.engines[0].answers(body={"status": "ok"})
    assert (await health(stack))[0] == 200
    assert not any(each.requests for each in stack.engines[1:])


async def test_hundreds_who_ask_at_once_ask_each_replica_once(monkeypatch):
    asked = []

    async def ask(replica, upstreams, headers):
        asked.append(replica)
        await asyncio.sleep(0)
        return replica_health._Said(replica, 503, CIMultiDictProxy(CIMultiDict()), b"stalled")

    monkeypatch.setattr(replica_health, "_ask", ask)
    deployments = [
        SimpleNamespace(id=name, name=name, replicas=[f"{name}-0", f"{name}-1"])
        for name in ("chat", "other")
    ]
    checks = replica_health.HealthChecks(None)
    request = SimpleNamespace(method="GET")
    exchanges = [Exchange(f"request-{number}") for number in range(300)]
    answers = await asyncio.gather(
        *(
            checks.answer(request, exchange, deployments[number % 2])
            for number, exchange in enumerate(exchanges)
        )
    )
    assert sorted(asked) == ["chat-0", "chat-1", "other-0", "other-1"]
    assert {answer.status for answer in answers} == {503}
    assert [answer.headers["X-Request-ID"] for answer in answers] == [
        exchange.request_id for exchange in exchanges
    ]
    assert {exchange.replica for exchange in exchanges} == {"chat-0", "other-0"}


async def test_nothing_of_a_request_reaches_the_engine_but_its_id(stack):
    """It would change what others are told, as `Range` does."""
    await only(stack)
    status, _, _ = await health(
        stack, headers={"Range": "bytes=0-1", "If-None-Match": "*", "X-Request-ID": "mine"}
    )
    assert status == 200
    (asked,) = stack.engines[0].requests
    assert asked.headers["X-Request-ID"] == "mine"
    assert not {"Range", "If-None-Match"} & set(asked.headers)


async def test_replicas_that_do_not_answer_in_time_hide_none_that_did(monkeypatch):
    async def ask(replica, upstreams, headers):
        if replica == "hangs":
            await asyncio.Event().wait()
        return replica_health._Said(replica, 503, CIMultiDict(), b"")

    monkeypatch.setattr(replica_health, "ALL_SECONDS", 0.01)
    monkeypatch.setattr(replica_health, "_ask", ask)
    deployment = SimpleNamespace(name="chat", replicas=["hangs", "stalled"])
    said = await replica_health._ask_replicas(deployment, None, {})
    assert (said.replica, said.status) == ("stalled", 503)


async def test_endless_answer_is_no_health(stack, monkeypatch):
    monkeypatch.setattr(replica_health, "MAX_BYTES", 10)
    await only(stack)
    stack.engines[0].answers(body={"status": "x" * 100})
    assert (await health(stack))[0] == 503


@pytest.mark.parametrize(
    ("word", "details", "said"),
    [
        ("deploying", "loading weights 43 %", "is deploying: loading weights 43 %"),
        ("ready", "scaled to 0: requests are answered 503 until you scale it up", "scaled to 0"),
        ("error", "the engine ended", "is in error: the engine ended"),
    ],
)
async def test_deployment_without_a_replica_says_where_it_stands(stack, word, details, said):
    await only(stack, 0, state=word, **{"state-details": details})
    status, body, headers = await health(stack)
    assert status == 503
    assert said in body
    assert headers["Retry-After"]


async def test_health_is_not_held_for_a_replica_that_is_on_its_way(stack):
    await only(stack, 0, state="deploying", coming=True)
    status, _, headers = await health(stack)
    assert (status, "X-Exo-Held-Seconds" in headers) == (503, False)


async def test_saturated_deployment_is_well(stack):
    await only(stack, **{"max-pending-per-replica": 1})
    release = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path != "/health":
            await release.wait()
        return web.json_response({})

    stack.engines[0].handler = answer
    pending = asyncio.create_task(stack.client.post(stack.path(), json={}))
    async with asyncio.timeout(20):
        while not stack.engines[0].requests:
            await asyncio.sleep(0.01)
    async with stack.client.post(stack.path(), json={}) as refused:
        assert refused.status == 429
    assert (await health(stack))[0] == 200
    release.set()
    assert (await pending).status == 200


@pytest.mark.parametrize(
    ("headers", "deployment", "status"),
    [
        ({"Authorization": ""}, "d-1", 401),
        ({"Authorization": "Bearer sk-wrong"}, "d-1", 401),
        ({}, "d-2", 403),
        ({"Authorization": "Bearer sk-public"}, "nothing", 404),
        ({"Authorization": "Bearer sk-public"}, "chat", 200),
    ],
)
async def test_health_needs_a_key_as_all_paths_do(stack, headers, deployment, status):
    url = stack.path("/health", deployment)
    async with stack.client.get(url, headers=headers) as answer:
        assert answer.status == status


async def test_other_methods_are_405(stack):
    status, _, headers = await health(stack, method="POST", json={})
    assert (status, headers["Allow"]) == (405, "GET, HEAD")
    assert not any(engine.requests for engine in stack.engines)
