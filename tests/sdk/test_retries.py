from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest

from exo_inference import errors
from exo_inference.sdk import AsyncClient, Client
from exo_inference.settings import Settings

from .fake_api import Answer, FakeApi, VirtualTime

OPERATION = {"id": "o-1", "state": "success"}
BUSY = Answer({"message": "busy"}, status=503)


def test_read_is_repeated_after_a_broken_connection(api: FakeApi, client: Client):
    api.on("GET", "/ai/model", Answer(hang_up=True), Answer({}, status=502), {"models": []})
    assert client.models.list() == []
    assert len(api.seen) == 3


def test_create_repeats_with_the_same_idempotency_key(api: FakeApi, client: Client):
    api.on("POST", "/ai/model", Answer(hang_up=True), BUSY, OPERATION)
    client.models.create("org/x")
    keys = {seen.headers["idempotency-key"] for seen in api.seen}
    assert len(api.seen) == 3
    assert len(keys) == 1


def test_all_attempts_at_a_write_have_one_signature_and_another_write_has_its_own(
    api: FakeApi, client: Client
):
    """So a server knows the repeat, and answers it as the attempt before."""
    api.on("DELETE", "/ai/model/m-1", Answer(hang_up=True), BUSY, OPERATION)
    client.models.delete("m-1")
    client.models.delete("m-1")
    *attempts, other = [seen.headers["authorization"] for seen in api.seen]
    assert len(attempts) == 3
    assert len(set(attempts)) == 1
    assert other not in attempts


async def test_asynchronous_attempts_have_one_signature(api: FakeApi, async_client: AsyncClient):
    api.on("DELETE", "/ai/model/m-1", Answer(hang_up=True), OPERATION)
    async with async_client as client:
        await client.models.delete("m-1")
    first, second = [seen.headers["authorization"] for seen in api.seen]
    assert first == second


def test_deletion_whose_first_answer_was_lost_says_so(api: FakeApi, client: Client):
    api.on("DELETE", "/ai/model/m-1", Answer(hang_up=True), Answer({}, status=404))
    with pytest.raises(errors.NotFound) as caught:
        client.models.delete("m-1")
    assert "may have deleted it" in caught.value.hint


def test_two_creates_have_two_keys(api: FakeApi, client: Client):
    api.on("POST", "/ai/model", OPERATION)
    client.models.create("org/x")
    client.models.create("org/x")
    first, second = api.seen
    assert first.headers["idempotency-key"] != second.headers["idempotency-key"]


@pytest.mark.parametrize("answer", [Answer(hang_up=True), BUSY], ids=["hang-up", "503"])
def test_changes_without_a_key_are_never_repeated(api: FakeApi, client: Client, answer: Answer):
    api.on("POST", "/ai/deployment/d-1/scale", answer, OPERATION)
    api.on("PATCH", "/ai/deployment/d-1", answer, OPERATION)
    with pytest.raises((errors.ConnectionFailed, errors.ServerError)):
        client.deployments.scale("d-1", 2)
    with pytest.raises((errors.ConnectionFailed, errors.ServerError)):
        client.deployments.update("d-1", name="x")
    assert len(api.seen) == 2


def test_lost_answer_of_a_change_says_that_it_may_have_happened(api: FakeApi, client: Client):
    api.on("POST", "/ai/deployment/d-1/scale", Answer(hang_up=True))
    with pytest.raises(errors.ConnectionFailed, match="may have been carried out") as caught:
        client.deployments.scale("d-1", 2)
    assert caught.value.request_sent


def test_refused_connection_is_repeated_for_any_request(clock: VirtualTime):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}/v2"
    with Client("EXOk", "s", endpoint=endpoint) as client:
        client._http.sleep = clock.sleep
        with pytest.raises(errors.ConnectionFailed, match="cannot connect to 127") as caught:
            client.deployments.scale("d-1", 2)
    assert clock.sleeps == [0.2, 0.4, 0.8]
    assert not caught.value.request_sent
    assert "status" in caught.value.hint


def test_retry_after_is_honoured_for_any_request(api: FakeApi, client: Client, clock: VirtualTime):
    slow_down = Answer({}, status=429, headers={"Retry-After": "7"})
    api.on("POST", "/ai/deployment/d-1/scale", slow_down, OPERATION)
    client.deployments.scale("d-1", 2)
    assert clock.sleeps == [7]


@pytest.fixture
def dripping() -> Iterator[str]:
    """A server that sends a byte of a head every 20 ms, or a byte of a body, and never ends."""
    ended = threading.Event()

    def drip(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            is_head = b"/model" in connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            connection.sendall(b"X: " if is_head else b"Content-Length: 100000\r\n\r\n")
            while not ended.wait(0.02):
                connection.sendall(b"1")

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=drip, args=listener.accept()[:1], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v2"
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("kind", ["models", "deployments"])
async def test_limit_holds_for_an_answer_that_drips(dripping: str, kind: str):
    """Each byte comes in time, and the answer never."""
    settings = Settings(endpoint=dripping, key="EXOk", secret="s", zone=None, timeout_seconds=0.1)
    message = "did not answer in time"
    with Client(settings=settings) as client, pytest.raises(errors.ConnectionFailed, match=message):
        getattr(client, kind).list()
    async with AsyncClient(settings=settings) as async_client:
        with pytest.raises(errors.ConnectionFailed, match=message):
            await getattr(async_client, kind).list()


def test_long_retry_after_is_left_to_the_caller(api: FakeApi, client: Client, clock: VirtualTime):
    api.on("GET", "/ai/model", Answer({}, status=429, headers={"Retry-After": "3600"}))
    with pytest.raises(errors.TooManyRequests) as caught:
        client.models.list()
    assert caught.value.retry_after_seconds == 3600
    assert clock.sleeps == []


def test_attempts_are_bounded_and_the_last_error_is_told(
    api: FakeApi, client: Client, clock: VirtualTime
):
    api.on("GET", "/ai/model", Answer({"title": "Down", "detail": "for a while"}, status=503))
    with pytest.raises(errors.ServerError, match="Down: for a while"):
        client.models.list()
    assert len(api.seen) == 4


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 412, 501])
def test_refusals_are_not_repeated(api: FakeApi, client: Client, status: int):
    api.on("GET", "/ai/model", Answer({}, status=status))
    with pytest.raises(errors.ApiError):
        client.models.list()
    assert len(api.seen) == 1


async def test_asynchronous_client_repeats_likewise(api: FakeApi, async_client: AsyncClient):
    api.on("DELETE", "/ai/model/m-1", Answer(hang_up=True), BUSY, OPERATION)
    async with async_client as client:
        operation = await client.models.delete("m-1")
    assert operation.id == "o-1"
    assert len(api.seen) == 3


FOREIGN = [
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.ReadTimeout,
    httpx.WriteTimeout,
    httpx.PoolTimeout,
    httpx.ReadError,
    httpx.WriteError,
    httpx.CloseError,
    httpx.RemoteProtocolError,
    httpx.LocalProtocolError,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
    httpx.DecodingError,
    httpx.TooManyRedirects,
    ConnectionResetError,
    TimeoutError,
]


@pytest.mark.parametrize("foreign", FOREIGN, ids=lambda kind: kind.__name__)
def test_foreign_exceptions_do_not_leak(foreign: type[Exception], clock: VirtualTime):
    def fail(request: httpx.Request) -> httpx.Response:
        raise foreign("boom")

    client = Client("EXOk", "s", endpoint="http://h/v2", transport=httpx.MockTransport(fail))
    client._http.sleep = clock.sleep
    with client:
        with pytest.raises(errors.ExoError) as caught:
            client.models.list()
        with pytest.raises(errors.ExoError):
            list(client.deployments.logs("d-1", follow=True))
    assert isinstance(caught.value.__cause__, foreign)


def test_closed_client_says_so(client: Client):
    client.close()
    with pytest.raises(errors.UsageError, match="this client is closed"):
        client.models.list()


def test_our_errors_do_not_subclass_foreign_ones():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    assert len(kinds) > 10
    for kind in kinds:
        homes = {base.__module__.partition(".")[0] for base in kind.__mro__}
        assert homes == {"exo_inference", "builtins"}, kind


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b'"text"',
        b'{"models": 3}',
        b'{"models": [{"id": "x"}]}',
        b'{"models": [{"id": "x", "name": "n", "state": 1, "model-size": 2.5}]}',
        b"\xff",
    ],
    ids=repr,
)
def test_unreadable_success_is_an_error_of_ours(api: FakeApi, client: Client, body: bytes):
    api.on("GET", "/ai/model", Answer(body))
    with pytest.raises(errors.InvalidAnswer, match="listing the models"):
        client.models.list()


def silent(clock: VirtualTime, steps: list[dict[str, float]]):
    """Return what takes every request and answers none, in virtual time."""

    def handle(request: httpx.Request) -> httpx.Response:
        steps.append(request.extensions["timeout"])
        clock.sleep(steps[-1]["read"])
        raise httpx.ReadTimeout("no answer", request=request)

    return httpx.MockTransport(handle)


def test_one_limit_holds_for_all_attempts(clock: VirtualTime):
    steps: list[dict[str, float]] = []
    endpoint = "http://127.0.0.1/v2"
    with Client(
        "EXOk", "s", endpoint=endpoint, timeout_seconds=3.0, transport=silent(clock, steps)
    ) as client:
        client._http.sleep, client._http.monotonic = clock.sleep, clock.monotonic
        begun = clock.monotonic()
        with pytest.raises(errors.ConnectionFailed, match="did not answer in time"):
            client.models.list()
    assert clock.monotonic() - begun == pytest.approx(3.0)
    assert [step["read"] for step in steps] == [3.0]


async def test_one_limit_holds_for_all_asynchronous_attempts(clock: VirtualTime):
    steps: list[dict[str, float]] = []
    async with AsyncClient(
        "EXOk",
        "s",
        endpoint="http://127.0.0.1/v2",
        timeout_seconds=3.0,
        transport=silent(clock, steps),
    ) as client:
        client._http.sleep, client._http.monotonic = clock.asleep, clock.monotonic
        begun = clock.monotonic()
        with pytest.raises(errors.ConnectionFailed, match="did not answer in time"):
            await client.models.list()
    assert clock.monotonic() - begun == pytest.approx(3.0)


def test_a_repeat_has_what_is_left_of_the_limit(clock: VirtualTime):
    limits: list[float] = []

    def handle(request: httpx.Request) -> httpx.Response:
        limits.append(request.extensions["timeout"]["read"])
        clock.sleep(1.0)
        return httpx.Response(503, json={})

    with Client(
        "EXOk",
        "s",
        endpoint="http://127.0.0.1/v2",
        timeout_seconds=3.0,
        transport=httpx.MockTransport(handle),
    ) as client:
        client._http.sleep, client._http.monotonic = clock.sleep, clock.monotonic
        with pytest.raises(errors.ServerError):
            client.models.list()
    assert limits == pytest.approx([3.0, 1.8, 0.4])


def test_without_a_limit_no_attempt_has_one(clock: VirtualTime):
    limits: list[dict[str, float | None]] = []

    def handle(request: httpx.Request) -> httpx.Response:
        limits.append(request.extensions["timeout"])
        return httpx.Response(503, json={})

    with Client(
        "EXOk",
        "s",
        endpoint="http://127.0.0.1/v2",
        timeout_seconds=float("inf"),
        transport=httpx.MockTransport(handle),
    ) as client:
        client._http.sleep, client._http.monotonic = clock.sleep, clock.monotonic
        with pytest.raises(errors.ServerError):
            client.models.list()
    assert len(limits) == 4
    assert {value for each in limits for value in each.values()} == {None}
