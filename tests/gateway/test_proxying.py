"""Requests and answers pass untouched; a replica that fails is replaced while nothing was sent."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import openai
import pytest
from yarl import URL

from exo_inference.logs import JsonFormatter
from tests.gateway.conftest import until


def chat(**changes):
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], **changes}


async def ask(stack):
    async with stack.client.post(stack.path(), json=chat()) as answer:
        return await answer.json()


async def test_request_passes_with_path_query_and_body_but_without_the_key(stack):
    body = b'{"a" : 1.50}'
    headers = {"X-Custom": "kept", "Content-Type": "application/json", "Connection": "X-Hop"}
    url = URL(stack.path("/v1/models/exo%2Ftiny-chat?a=%2F&b=c+d"), encoded=True)
    async with stack.client.post(url, data=body, headers={**headers, "X-Hop": "1"}) as answer:
        assert answer.status == 200
    (engine,) = (e for e in stack.engines if e.requests)
    (request,) = engine.requests
    assert request.raw_path == "/v1/models/exo%2Ftiny-chat?a=%2F&b=c+d"
    assert engine.bodies == [body]
    assert request.headers["X-Custom"] == "kept"
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["X-Request-ID"] == answer.headers["X-Request-ID"]
    assert not {"Authorization", "X-Hop"} & set(request.headers)
    assert stack.key not in str(request.headers)


async def test_key_may_come_as_anthropics_clients_send_it_and_goes_no_further(stack):
    key = stack.client.headers.popall("Authorization")[0].removeprefix("Bearer ")
    headers = {"X-Api-Key": key}
    async with stack.client.get(stack.path("/v1/models"), headers=headers) as answer:
        assert answer.status == 200
    (engine,) = (each for each in stack.engines if each.requests)
    assert key not in str(engine.requests[0].headers)


async def test_request_id_of_the_client_is_kept_and_returned(stack):
    async with stack.client.get(stack.path("/v1/models"), headers={"X-Request-ID": "my-1"}) as got:
        assert got.headers["X-Request-ID"] == "my-1"
    assert [r.headers["X-Request-ID"] for e in stack.engines for r in e.requests] == ["my-1"]


async def test_answer_passes_with_status_headers_and_bytes(stack):
    for engine in stack.engines:
        engine.answers(418, {"error": {"message": "short and stout"}}, X_Kept="1", Keep_Alive="x")
    async with stack.client.post(stack.path(), json=chat()) as answer:
        assert answer.status == 418
        assert await answer.read() == b'{"error": {"message": "short and stout"}}'
        assert answer.headers["X-Kept"] == "1"
        assert "Keep-Alive" not in answer.headers
        assert answer.headers.getall("Server") == ["exo-inference"]


async def test_requests_spread_over_the_replicas(stack):
    for _ in range(10):
        async with stack.client.get(stack.path("/v1/models")) as answer:
            assert answer.status == 200
    assert [len(engine.requests) for engine in stack.engines] == [5, 5]


async def test_head_and_get_pass(stack):
    async with stack.client.head(stack.path("/v1/models")) as answer:
        assert answer.status == 200
    assert sum(len(engine.requests) for engine in stack.engines) == 1


async def test_expectation_is_met_before_the_body_is_sent(stack):
    async with stack.client.post(stack.path(), json=chat(), expect100=True) as answer:
        assert answer.status == 200


async def test_offered_upgrade_is_declined_and_the_request_served(stack):
    # What Java's client offers with every plain request.
    headers = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAEA"}
    async with stack.client.post(stack.path(), json=chat(), headers=headers) as answer:
        assert answer.status == 200
    (engine,) = (e for e in stack.engines if e.requests)
    assert json.loads(engine.bodies[0]) == chat()
    assert not {"Upgrade", "HTTP2-Settings"} & set(engine.requests[0].headers)


async def test_stream_is_passed_on_byte_for_byte_as_it_comes(stack):
    gate = asyncio.Semaphore(0)
    for engine in stack.engines:
        engine.streams(*stack.chunks, stack.usage, stack.done, gate=gate)
    asked = chat(stream=True, stream_options={"include_usage": True})
    async with stack.client.post(stack.path(), json=asked) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        for part in (*stack.chunks, stack.usage, stack.done):
            gate.release()
            assert await answer.content.readany() == part, "each part before the next was made"
        assert await answer.content.read() == b""


async def test_usage_nobody_asked_for_is_counted_and_removed(stack):
    for engine in stack.engines:
        engine.streams(*stack.chunks, stack.usage, stack.done)
    async with stack.client.post(stack.path(), json=chat(stream=True)) as answer:
        assert await answer.read() == b"".join(stack.chunks) + stack.done
    (body,) = (json.loads(b) for e in stack.engines for b in e.bodies)
    assert body["stream_options"] == {"include_usage": True}
    assert (await stack.status())["tokens"] == {"prompt": 7, "completion": 5}


async def test_openai_client_chats_and_streams(stack):
    async with openai.AsyncOpenAI(base_url=stack.path("/v1"), api_key=stack.key) as client:
        for engine in stack.engines:
            engine.streams(*stack.chunks, stack.usage, stack.done)
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "count"}], stream=True
        )
        texts = [chunk.choices[0].delta.content async for chunk in stream]
        assert "".join(texts) == "0 1 2 3 4 "
        for engine in stack.engines:
            engine.answers(200, {"object": "list", "data": [{"id": "m", "object": "model"}]})
        assert [model.id async for model in await client.models.list()] == ["m"]
        for engine in stack.engines:
            engine.answers(200, {"id": "exo/tiny-chat", "object": "model"})
        assert (await client.models.retrieve("exo/tiny-chat")).id == "exo/tiny-chat"


async def test_client_that_hangs_up_closes_the_upstream_at_once(stack):
    gone = asyncio.Event()

    async def endless(request):
        if request.path == "/tokenize":
            return aiohttp.web.json_response({"count": 3})
        response = aiohttp.web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(stack.chunks[0])
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    async def is_counted():
        return 'status="499"' in await stack.admin("/metrics")

    for engine in stack.engines:
        engine.handler = endless
    answer = await stack.client.post(stack.path(), json=chat(stream=True))
    assert await answer.content.readany() == stack.chunks[0]
    answer.close()
    await gone.wait()
    status = await stack.status()
    assert all(replica["pending"] == 0 for replica in status["replicas"].values())
    await until(is_counted)
    tokens = (await stack.status())["tokens"]
    assert tokens == {"prompt": 3, "completion": 1}, "what was seen is counted, and the prompt"


async def test_client_that_hangs_up_after_the_last_event_had_its_answer(stack):
    async def ends_late(request):
        response = aiohttp.web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"".join(stack.chunks) + stack.usage + stack.done)
        await asyncio.Event().wait()

    async def is_counted():
        return "exo_gateway_requests_total{" in await stack.admin("/metrics")

    for engine in stack.engines:
        engine.handler = ends_late
    answer = await stack.client.post(stack.path(), json=chat(stream=True))
    whole = b"".join(stack.chunks) + stack.done
    assert await answer.content.readexactly(len(whole)) == whole
    answer.close()
    await until(is_counted)
    assert 'status="499"' not in await stack.admin("/metrics")
    assert (await stack.status())["tokens"] == {"prompt": 7, "completion": 5}


async def test_encoded_path_of_a_stream_is_counted_too(stack):
    for engine in stack.engines:
        engine.streams(*stack.chunks, stack.usage, stack.done)
    url = URL(stack.path("/v1/chat/completion%73"), encoded=True)
    async with stack.client.post(url, json=chat(stream=True)) as answer:
        assert await answer.read() == b"".join(stack.chunks) + stack.done
    assert (await stack.status())["tokens"] == {"prompt": 7, "completion": 5}


async def test_draining_and_missing_replicas_are_passed_over(stack):
    stack.engines[0].answers(503, {"error": {"message": "draining"}}, X_Exo_Draining="1")
    for _ in range(6):
        async with stack.client.post(stack.path(), json=chat()) as answer:
            assert await answer.json() == {"engine": "chat-b"}
    await stack.engines[0].stop()
    stack.engines[0].socket.unlink(missing_ok=True)
    for _ in range(6):
        async with stack.client.post(stack.path(), json=chat()) as answer:
            assert await answer.json() == {"engine": "chat-b"}
    assert "exo_gateway_retries_total" in await stack.admin("/metrics")


async def test_plain_503_of_an_engine_is_its_answer(stack):
    for engine in stack.engines:
        engine.answers(503, {"error": {"message": "busy"}})
    async with stack.client.post(stack.path(), json=chat()) as answer:
        assert answer.status == 503
        assert (await answer.json())["error"]["message"] == "busy"
    assert sum(len(engine.requests) for engine in stack.engines) == 1


async def test_replica_that_died_before_its_answer_is_replaced(stack):
    stack.engines[0].breaks_off()
    for _ in range(6):
        async with stack.client.post(stack.path(), json=chat()) as answer:
            assert await answer.json() == {"engine": "chat-b"}
    assert stack.engines[0].requests


async def test_replica_whose_core_died_before_its_answer_is_replaced(stack):
    stack.engines[0].answers(503, {"error": {"message": "the engine failed"}}, X_Exo_Failed="1")
    for _ in range(6):
        async with stack.client.post(stack.path(), json=chat()) as answer:
            assert await answer.json() == {"engine": "chat-b"}
    assert stack.engines[0].requests


async def test_request_that_kills_every_core_is_given_up(stack):
    for engine in stack.engines:
        engine.answers(503, {"error": {"message": "the engine failed"}}, X_Exo_Failed="1")
    async with stack.client.post(stack.path(), json=chat()) as answer:
        assert answer.status == 502
        assert "X-Exo-Failed" not in answer.headers
    assert sum(len(engine.requests) for engine in stack.engines) == 3


async def test_request_that_kills_every_replica_is_given_up(stack):
    for engine in stack.engines:
        engine.breaks_off()
    async with stack.client.post(stack.path(), json=chat()) as answer:
        assert answer.status == 502
        assert "deployment logs chat" in (await answer.json())["error"]["message"]
    assert sum(len(engine.requests) for engine in stack.engines) == 3


async def test_no_reachable_replica_is_503(stack):
    for engine in stack.engines:
        await engine.stop()
        engine.socket.unlink(missing_ok=True)
    async with stack.client.post(stack.path(), json=chat()) as answer:
        assert answer.status == 503
        assert "can be reached" in (await answer.json())["error"]["message"]


@pytest.mark.parametrize("tail", [b"", b'data: {"half'])
async def test_stream_that_breaks_off_ends_with_an_error_event_and_is_not_repeated(stack, tail):
    for engine in stack.engines:
        engine.breaks_off(
            *stack.chunks[:2],
            *([tail] if tail else []),
            headers={"Content-Type": "text/event-stream"},
        )
    parts = []

    async def read_all(answer):
        async for part in answer.content.iter_any():
            parts.append(part)

    async with stack.client.post(stack.path(), json=chat(stream=True)) as answer:
        with pytest.raises(aiohttp.ClientPayloadError):
            await read_all(answer)
    got = b"".join(parts)
    assert got.startswith(b"".join(stack.chunks[:2]))
    error = got.removesuffix(b"\n\n").rpartition(b"\n\n")[2]
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "replica_failed"
    assert sum(len(engine.requests) for engine in stack.engines) == 1


async def test_openai_client_sees_a_broken_stream_as_an_error(stack):
    for engine in stack.engines:
        engine.breaks_off(*stack.chunks[:2], headers={"Content-Type": "text/event-stream"})
    async with openai.AsyncOpenAI(base_url=stack.path("/v1"), api_key=stack.key) as client:
        stream = await client.chat.completions.create(**chat(stream=True))
        with pytest.raises(openai.APIError, match="broke off"):
            [chunk async for chunk in stream]


def breaks_off_in_its_answer(engine):
    length = {"Content-Type": "application/json", "Content-Length": "99"}
    engine.breaks_off(b'{"id":', headers=length)


async def test_plain_answer_that_breaks_off_is_asked_for_again(stack):
    breaks_off_in_its_answer(stack.engines[0])
    for _ in range(6):
        async with stack.client.post(stack.path(), json=chat()) as answer:
            assert await answer.json() == {"engine": "chat-b"}
    assert stack.engines[0].requests


async def test_plain_answer_that_breaks_off_everywhere_is_a_clean_502(stack):
    for engine in stack.engines:
        breaks_off_in_its_answer(engine)
    async with stack.client.post(stack.path(), json=chat()) as answer:
        assert answer.status == 502
        assert (await answer.json())["error"]["code"] == "replica_failed"
    assert sum(len(engine.requests) for engine in stack.engines) == 3


async def test_plain_answer_of_what_may_have_an_effect_is_not_asked_for_again(stack):
    for engine in stack.engines:
        breaks_off_in_its_answer(engine)
    async with stack.client.post(stack.path("/v1/load_lora_adapter"), json={}) as answer:
        assert answer.status == 502
        assert "may have had an effect" in (await answer.json())["error"]["message"]
    assert sum(len(engine.requests) for engine in stack.engines) == 1


async def test_answer_that_is_not_http_is_502(stack):
    async def nonsense(reader, writer):
        await reader.readline()
        writer.write(b"SSH-2.0-nonsense\r\n\r\n")
        writer.close()

    for engine in stack.engines:
        await engine.stop()
        engine.socket.unlink(missing_ok=True)
    servers = [await asyncio.start_unix_server(nonsense, e.socket) for e in stack.engines]
    async with stack.client.post(stack.path(), json=chat()) as answer:
        assert answer.status == 502
    for server in servers:
        server.close()
        await server.wait_closed()


async def test_idle_connection_closed_by_the_only_replica_is_no_failure(stack):
    (only,) = stack.engines[:1]
    stack.write_table([only])
    await stack.table_applied()
    async with stack.client.post(stack.path(), json=chat()) as answer:
        assert answer.status == 200
    only.breaks_off()
    original = only.handler

    async def once(request):
        only.handler = None
        return await original(request)

    only.handler = once
    async with stack.client.post(stack.path(), json=chat()) as answer:
        assert await answer.json() == {"engine": "chat-a"}


async def test_one_kill_counts_once_however_many_idle_connections_it_closes(stack):
    """A dying process closes them one after the other; all that were there before are of no use."""
    (only,) = stack.engines[:1]
    stack.write_table([only])
    await stack.table_applied()
    everybody = asyncio.Barrier(6)

    async def together(_):
        await everybody.wait()
        return aiohttp.web.json_response({})

    only.handler = together
    async with asyncio.TaskGroup() as group:
        for _ in range(6):
            group.create_task(ask(stack))
    before = {id(request.transport) for request in only.requests}
    assert len(before) == 6

    async def dying(request):
        if id(request.transport) in before:
            request.transport.abort()
        return aiohttp.web.json_response({"engine": "again"})

    only.handler = dying
    assert await ask(stack) == {"engine": "again"}
    assert len(only.requests) == 8


async def test_http_addresses_work_too(stack):
    async def models(_):
        return aiohttp.web.json_response({"over": "tcp"})

    app = aiohttp.web.Application()
    app.router.add_get("/v1/models", models)
    runner = aiohttp.web.AppRunner(app)
    await runner.setup()
    await aiohttp.web.TCPSite(runner, "127.0.0.1", 0).start()
    address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    stack.write_table(replicas=[{"name": "tcp-a", "address": address}])
    await stack.table_applied()
    async with stack.client.get(stack.path("/v1/models")) as answer:
        assert await answer.json() == {"over": "tcp"}
    await runner.cleanup()


async def test_health_of_the_gateway_is_public_and_not_counted(stack):
    async with aiohttp.ClientSession() as anyone, anyone.get(f"{stack.url}/healthz") as answer:
        assert await answer.json() == {"status": "ok"}
    assert (await stack.status())["requests"] == 0


async def test_log_has_one_line_per_request_without_prompt_or_key(stack, caplog):
    caplog.set_level("INFO", "exo_inference.gateway")
    for engine in stack.engines:
        engine.answers(200, {"usage": {"prompt_tokens": 3, "completion_tokens": 4}})
    secret = chat(messages=[{"role": "user", "content": "my secret"}])
    headers = {"X-Request-ID": "req-1"}
    async with stack.client.post(stack.path(), json=secret, headers=headers) as answer:
        assert answer.status == 200
    (record,) = (r for r in caplog.records if r.name.endswith("gateway.access"))
    assert record.getMessage().startswith("chat: POST /v1/chat/completions -> 200 in ")
    assert record.request_id == "req-1"
    assert record.replica in ("chat-a", "chat-b")
    assert (record.prompt_tokens, record.completion_tokens) == (3, 4)
    everything = "\n".join(JsonFormatter().format(record) for record in caplog.records)
    assert "my secret" not in everything
    assert f'"{stack.key}"' not in everything
    assert f"Bearer {stack.key}" not in everything


async def test_many_requests_at_once_all_pass(stack):
    async def one(i):
        async with stack.client.post(stack.path(), json=chat(user=str(i))) as answer:
            return answer.status

    assert set(await asyncio.gather(*(one(i) for i in range(200)))) == {200}
    assert sum(len(engine.requests) for engine in stack.engines) == 200
