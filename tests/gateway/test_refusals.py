"""What the gateway refuses itself, each as the OpenAI error object with the right status."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest

from exo_inference.errors import PlatformError
from exo_inference.gateway.app import Gateway
from exo_inference.gateway.uploads import MAX_BODY_BYTES
from exo_inference.local_settings import LocalSettings


async def refusal(answer):
    """Check the form that every refusal has and return its error object."""
    body = await answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert answer.headers["Server"] == "exo-inference"
    assert answer.headers["X-Request-ID"]
    return body["error"]


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic c2s=", "sk-chat"])
async def test_missing_key_is_401(stack, header):
    headers = {} if header is None else {"Authorization": header}
    stack.client.headers.popall("Authorization")
    async with stack.client.post(stack.path(), headers=headers) as answer:
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert (await refusal(answer))["code"] == "missing_api_key"


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer sk-wrong"}], ids=["no", "wrong"])
async def test_a_stranger_is_told_the_same_of_every_name(stack, headers):
    stack.client.headers.popall("Authorization")
    answers = set()
    for deployment in ("d-1", "chat", "nothing"):
        for method, path in (
            ("POST", "/v1/chat/completions"),
            ("GET", "/health"),
            ("PUT", "/v1/x"),
        ):
            address = stack.path(path, deployment)
            async with stack.client.request(method, address, headers=headers) as answer:
                challenge = answer.headers["WWW-Authenticate"]
                answers.add((answer.status, challenge, await answer.text()))
    ((status, _, text),) = answers
    assert status == 401
    assert "chat" not in text


@pytest.mark.parametrize("deployment", ["d-1", "nothing"])
async def test_unknown_key_is_401_and_learns_nothing(stack, deployment):
    headers = {"Authorization": "Bearer sk-wrong"}
    async with stack.client.post(stack.path(deployment=deployment), headers=headers) as answer:
        assert answer.status == 401
        assert (await refusal(answer))["code"] == "invalid_api_key"
        assert "sk-wrong" not in await answer.text()


async def test_key_of_another_deployment_is_403(stack):
    headers = {"Authorization": f"Bearer {stack.other_key}"}
    async with stack.client.post(stack.path(), headers=headers) as answer:
        assert answer.status == 403
        assert "'d-1'" in (message := (await refusal(answer))["message"])
        assert "chat" not in message  # whoever has another key learns no names


@pytest.mark.parametrize("deployment", ["d-1", "d-2", "chat", "other"])
async def test_public_key_opens_every_deployment_by_id_and_name(stack, deployment):
    headers = {"Authorization": f"bearer {stack.public_key}"}
    async with stack.client.get(stack.path("/v1/models", deployment), headers=headers) as answer:
        assert answer.status == 200


async def test_unknown_deployment_is_404(stack):
    async with stack.client.post(stack.path(deployment="nothing")) as answer:
        assert answer.status == 404
        assert "'nothing'" in (await refusal(answer))["message"]


@pytest.mark.parametrize(
    "path", ["/", "/metrics", "/v1x", "/v1/%2e%2e/metrics", "/v1/..%2fmetrics"]
)
async def test_path_outside_v1_is_404_and_reaches_no_engine(stack, path):
    reader, writer = await asyncio.open_connection(*stack.url[7:].split(":"))
    head = f"GET /d-1{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {stack.key}\r\n"
    writer.write(head.encode() + b"Connection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "unknown_url"
    assert not any(engine.requests for engine in stack.engines)


@pytest.mark.parametrize(
    "head",
    [
        pytest.param("Content-Length: 5\r\nTransfer-Encoding: chunked", id="two lengths"),
        pytest.param("Content-Length: 5\r\nContent-Length: 6", id="length twice"),
        pytest.param("Transfer-Encoding: chunked, identity", id="chunked not last"),
        pytest.param("X-A: b\r\n c", id="folded header"),
        pytest.param("X-A\x0b: b", id="odd header name"),
    ],
)
async def test_ambiguous_requests_are_refused_before_any_engine(stack, head):
    reader, writer = await asyncio.open_connection(*stack.url[7:].split(":"))
    request = f"POST /d-1/v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {stack.key}"
    writer.write(f"{request}\r\n{head}\r\n\r\n0\r\n\r\n".encode())
    status = await reader.readline()
    writer.close()
    assert b" 400 " in status
    assert not any(engine.requests for engine in stack.engines)


@pytest.mark.parametrize("method", ["DELETE", "PUT", "PATCH", "OPTIONS", "TRACE"])
async def test_other_methods_are_405(stack, method):
    async with stack.client.request(method, stack.path()) as answer:
        assert answer.status == 405
        assert answer.headers["Allow"] == "GET, HEAD, POST"
        assert (await refusal(answer))["code"] == "method_not_allowed"


async def test_declared_huge_body_is_413_unread(stack):
    reader, writer = await asyncio.open_connection(*stack.url[7:].split(":"))
    head = f"POST /d-1/v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {stack.key}\r\n"
    writer.write(f"{head}Content-Length: {MAX_BODY_BYTES + 1}\r\n\r\n".encode())
    assert b" 413 " in await reader.readline()
    writer.close()


async def test_chunked_huge_body_is_413(stack):
    async def body():
        for _ in range(MAX_BODY_BYTES // (1 << 20) + 1):
            yield b"x" * (1 << 20)

    async with stack.client.post(stack.path(), data=body()) as answer:
        assert answer.status == 413
        assert "32 MiB" in (await refusal(answer))["message"]
    assert not any(engine.requests for engine in stack.engines)


async def test_unmet_expectation_is_417(stack):
    headers = {"Expect": "a-miracle"}
    async with stack.client.post(stack.path(), json={}, headers=headers) as answer:
        assert answer.status == 417
        await refusal(answer)


async def test_no_ready_replica_is_503_with_the_state(stack):
    stack.write_table([], state="deploying", **{"state-details": "loading weights 43 %"})
    await stack.table_applied()
    async with stack.client.post(stack.path(), json={}) as answer:
        assert answer.status == 503
        assert int(answer.headers["Retry-After"]) > 0
        error = await refusal(answer)
        assert error["message"] == "deployment 'chat' is deploying: loading weights 43 %"


async def test_full_replicas_are_429_until_one_is_free(stack):
    gate = asyncio.Semaphore(0)
    for engine in stack.engines:
        engine.streams(*stack.chunks, gate=gate)
    stack.write_table(**{"max-pending-per-replica": 1})
    await stack.table_applied()
    first = await stack.client.post(stack.path(), json={})
    second = await stack.client.post(stack.path(), json={})
    async with stack.client.post(stack.path(), json={}) as answer:
        assert answer.status == 429
        assert answer.headers["Retry-After"] == "1"
        assert (await refusal(answer))["type"] == "rate_limit_error"
    assert {len(engine.requests) for engine in stack.engines} == {1}
    for _ in range(2 * len(stack.chunks)):
        gate.release()
    await asyncio.gather(first.read(), second.read())
    stack.engines[0].handler = stack.engines[1].handler = None
    async with stack.client.post(stack.path(), json={}) as answer:
        assert answer.status == 200


async def test_openai_client_raises_its_own_error_classes(stack):
    wrong = openai.AsyncOpenAI(base_url=stack.path("/v1"), api_key="sk-wrong", max_retries=0)
    other = openai.AsyncOpenAI(base_url=stack.path("/v1"), api_key=stack.other_key, max_retries=0)
    async with wrong, other:
        with pytest.raises(openai.AuthenticationError, match="not known here"):
            await wrong.models.list()
        with pytest.raises(openai.PermissionDeniedError):
            await other.models.list()


async def test_taken_port_names_its_holder(stack, state):
    port = int(stack.url.rpartition(":")[2])
    second = Gateway(state)
    with pytest.raises(PlatformError, match=f"127\\.0\\.0\\.1:{port}.*held by process") as raised:
        await second.start("127.0.0.1", port)
    assert "--gateway-port" in raised.value.hint
    assert LocalSettings().gateway_host == "127.0.0.1"
    await second.stop()
