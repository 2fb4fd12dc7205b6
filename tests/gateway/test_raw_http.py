"""What arrives on the wire that no well-behaved client sends: refused, bounded, never logged."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import logging
import time
import zlib

import pytest
from aiohttp import web

from exo_inference.gateway.app import Gateway
from exo_inference.gateway.uploads import MAX_BODY_BYTES, UploadLimits
from exo_inference.logs import JsonFormatter

SECRET = "sk-very-secret"


async def send(stack, raw: bytes):
    """Send raw bytes and return status, headers and body of the answer."""
    reader, writer = await asyncio.open_connection(*stack.url[7:].split(":"))
    writer.write(raw)
    try:
        async with asyncio.timeout(5):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(status.split()[1]), headers, json.loads(body)


def head(*lines: str, first: str = "POST /d-1/v1/chat/completions HTTP/1.1", key: str) -> bytes:
    all_lines = [first, "Host: x", f"Authorization: Bearer {key}", *lines, "", ""]
    return "\r\n".join(all_lines).encode()


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        pytest.param(head(key=SECRET).replace(b"\r\n", b"\n"), 400, id="bare line feeds"),
        pytest.param(head("X-A\x0b: b", key=SECRET), 400, id="odd header name"),
        pytest.param(head("X-A: " + "x" * 10_000, key=SECRET), 431, id="long header"),
        pytest.param(head(key=SECRET * 1000), 431, id="long key"),
        pytest.param(head(*["X-A: b"] * 200, key=SECRET), 400, id="many headers"),
        pytest.param(head(first=f"GET /{SECRET} HTTP/9.9", key=SECRET), 400, id="odd version"),
        pytest.param(head(first=f"GET http://[{SECRET} HTTP/1.1", key=SECRET), 400, id="bad url"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00" + SECRET.encode(), 400, id="tls"),
        pytest.param(b"GET /d-1/v1/models HTTP/1.1\r\n\r\n", 400, id="no host"),
    ],
)
async def test_what_is_not_http_gets_an_error_object_and_no_log_of_it(stack, caplog, raw, status):
    caplog.set_level(logging.DEBUG)
    found, headers, body = await send(stack, raw)
    assert found == status
    assert headers["content-type"].startswith("application/json")
    assert headers["connection"] == "close"
    assert headers["server"] == "exo-inference"
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert SECRET not in json.dumps(body)
    everything = "\n".join(JsonFormatter().format(record) for record in caplog.records)
    assert "a request was refused unread" in everything
    assert SECRET not in everything
    assert not any(engine.requests for engine in stack.engines)


async def test_http_2_without_negotiation_is_505(stack):
    first = "POST /d-1/v1/chat/completions HTTP/2.0"
    status, headers, body = await send(stack, head(first=first, key=stack.key))
    assert (status, body["error"]["code"]) == (505, "http_version_not_supported")
    assert headers["connection"] == "close"


async def test_two_keys_are_refused(stack):
    raw = head("Authorization: Bearer other", "Connection: close", key=stack.key)
    status, _, body = await send(stack, raw)
    assert (status, body["error"]["code"]) == (400, "ambiguous_api_key")


async def test_head_is_a_get_without_a_body(stack):
    for engine in stack.engines:
        engine.answers(200, {"data": []}, X_Kept="1")
    async with stack.client.head(stack.path("/v1/models")) as answer:
        assert answer.status == 200
        assert answer.headers["X-Kept"] == "1"
        assert answer.headers["Content-Length"] == str(len(json.dumps({"data": []})))
        assert await answer.read() == b""
    assert [r.method for e in stack.engines for r in e.requests] == ["GET"]


@pytest.mark.parametrize("name", ["gzip", "deflate"])
async def test_compressed_body_reaches_the_engine_decoded_and_is_counted(stack, name):
    for engine in stack.engines:
        engine.streams(*stack.chunks, stack.usage, stack.done)
    body = b'{"stream":true}'
    encoded = gzip.compress(body) if name == "gzip" else zlib.compress(body)
    headers = {"Content-Encoding": name, "Content-Type": "application/json"}
    async with stack.client.post(stack.path(), data=encoded, headers=headers) as answer:
        assert answer.status == 200
        assert await answer.read() == b"".join(stack.chunks) + stack.done
    (request,) = (r for e in stack.engines for r in e.requests)
    assert "Content-Encoding" not in request.headers
    ((got,),) = (e.bodies for e in stack.engines if e.bodies)
    assert json.loads(got)["stream"] is True
    assert (await stack.status())["tokens"] == {"prompt": 7, "completion": 5}


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        pytest.param("gzip", gzip.compress(bytes(MAX_BODY_BYTES + 1), 1), 413, id="bomb"),
        pytest.param("gzip", b"plain", 400, id="not gzip"),
        pytest.param("gzip", gzip.compress(b"{}" * 100)[:-12], 400, id="cut off"),
        pytest.param("br", b"\x0b\x00", 415, id="unknown"),
        pytest.param("gzip, gzip", gzip.compress(gzip.compress(b"{}")), 415, id="twice"),
    ],
)
async def test_body_that_cannot_be_decoded_is_refused(stack, encoding, body, status):
    headers = {"Content-Encoding": encoding}
    async with stack.client.post(stack.path(), data=body, headers=headers) as answer:
        assert answer.status == status
        assert set(await answer.json()) == {"error"}
    assert not any(engine.requests for engine in stack.engines)


@pytest.fixture
async def hurried(stack):
    """The stack with a gateway that has no patience with uploads."""
    await stack.gateway.stop(grace_seconds=0.1)
    limits = UploadLimits(
        stall_seconds=0.2, bytes_per_second=1000, total_bytes=6 << 20, stop_seconds=0.1
    )
    stack.gateway = Gateway(stack.state, upload_limits=limits)
    stack.url = f"http://127.0.0.1:{await stack.gateway.start('127.0.0.1', 0)}"
    return stack


async def test_body_that_does_not_come_is_408(hurried):
    raw = head("Content-Length: 100", key=hurried.key) + b'{"half":'
    status, headers, body = await send(hurried, raw)
    assert (status, body["error"]["code"]) == (408, "request_timeout")
    assert headers["connection"] == "close"


async def test_body_that_drips_is_408(hurried):
    async def drip():
        while True:
            yield b"x"
            await asyncio.sleep(0.05)

    async with hurried.client.post(hurried.path(), data=drip()) as answer:
        assert answer.status == 408


async def test_bodies_together_are_bounded_and_give_back_what_they_took(hurried):
    gate = asyncio.Event()

    async def wait(_):
        await gate.wait()
        return web.json_response({})

    for engine in hurried.engines:
        engine.handler = wait

    async def post():
        async with hurried.client.post(hurried.path(), data=io.BytesIO(bytes(2 << 20))) as answer:
            return answer.status

    first = asyncio.create_task(post(), name="first")
    while not any(engine.bodies for engine in hurried.engines) and not first.done():
        await asyncio.sleep(0.01)
    async with hurried.client.post(hurried.path(), data=io.BytesIO(bytes(2 << 20))) as answer:
        assert answer.status == 503
        assert (await answer.json())["error"]["code"] == "too_many_uploads"
        assert answer.headers["Retry-After"]
    gate.set()
    assert await first == 200
    assert await post() == 200


async def test_bodies_of_one_deployment_leave_room_for_those_of_others(hurried):
    gate = asyncio.Event()

    async def wait(_):
        await gate.wait()
        return web.json_response({})

    for engine in hurried.engines:
        engine.handler = wait

    async def post(deployment, key, num_bytes):
        headers = {"Authorization": f"Bearer {key}"}
        data = io.BytesIO(bytes(num_bytes))
        path = hurried.path(deployment=deployment)
        async with hurried.client.post(path, data=data, headers=headers) as answer:
            return answer.status

    size = 256 << 10
    greedy = [asyncio.create_task(post("d-1", hurried.key, size), name=str(i)) for i in range(20)]
    while sum(task.done() for task in greedy) < 8:
        await asyncio.sleep(0.01)
    other = asyncio.create_task(post("d-2", hurried.other_key, size), name="other")
    await asyncio.wait([other], timeout=0.5)
    gate.set()
    assert await other == 200
    answers = await asyncio.gather(*greedy)
    assert (answers.count(200), answers.count(503)) == (12, 8)


async def test_unfinished_uploads_do_not_delay_a_stop(stack):
    reader, writer = await asyncio.open_connection(*stack.url[7:].split(":"))
    writer.write(head("Content-Length: 100", key=stack.key) + b'{"half":')
    while not stack.gateway._in_flight:
        await asyncio.sleep(0.01)
    started = time.monotonic()
    await stack.gateway.stop(grace_seconds=30)
    assert time.monotonic() - started < 30
    assert b" 503 " in await reader.readline()
    writer.close()
