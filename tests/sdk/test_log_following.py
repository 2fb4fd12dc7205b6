from __future__ import annotations

from datetime import UTC, datetime

import pytest

from exo_inference import errors
from exo_inference.sdk import AsyncClient, Client

from .fake_api import Answer, FakeApi

LOGS = "/ai/deployment/d-1/logs"
GONE = Answer({}, status=404)


def line(second: float, message: str, replica: str = "r-1") -> dict[str, str]:
    moment = datetime.fromtimestamp(1_800_000_000 + second, UTC)
    text = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"time": text, "node": "n", "message": message, "replica": replica}


def stream(*lines: object, hang_up: bool = False) -> Answer:
    return Answer(lines=lines, hang_up=hang_up)


def test_logs_are_typed_entries(api: FakeApi, client: Client):
    api.on("GET", LOGS, {"logs": [line(0, "a"), line(1, "b\nc")]})
    entries = list(client.deployments.logs("d-1", tail=2, previous=True))
    assert [entry.message for entry in entries] == ["a", "b\nc"]
    assert api.seen[0].query == {"tail": "2", "previous": "true"}


def test_since_needs_a_time_zone(client: Client):
    with pytest.raises(errors.UsageError, match="no time zone"):
        list(client.deployments.logs("d-1", since=datetime(2026, 1, 1)))


def test_followed_log_goes_on_after_a_broken_connection_without_loss_or_repeat(
    api: FakeApi, client: Client
):
    api.on(
        "GET",
        LOGS,
        stream(line(0, "a"), "", line(5, "b"), line(5, "b"), hang_up=True),
        stream(line(4, "late", "r-2"), line(5, "b"), line(5, "b"), line(5, "b"), line(6, "c")),
        GONE,
    )
    messages = [entry.message for entry in client.deployments.logs("d-1", tail=5, follow=True)]
    assert messages == ["a", "b", "b", "late", "b", "c"]
    first, second, third = api.seen
    assert first.query == {"tail": "5", "follow": "true"}
    assert second.query["since"] == line(3, "")["time"].replace(".000", "")
    assert third.query["since"] == line(4, "")["time"].replace(".000", "")


def test_a_message_with_what_python_takes_for_ends_of_lines_is_one(api: FakeApi, client: Client):
    """The controller writes JSON without escapes where it needs none; engines log what they like."""
    message = "a\u2028b\u0085c\u2029d"
    api.on("GET", LOGS, stream(line(0, message), line(1, "b")), GONE)
    messages = [entry.message for entry in client.deployments.logs("d-1", follow=True)]
    assert messages == [message, "b"]


def test_following_ends_when_the_deployment_is_deleted(api: FakeApi, client: Client):
    api.on("GET", LOGS, stream(line(0, "a")), GONE)
    assert [e.message for e in client.deployments.logs("d-1", follow=True)] == ["a"]


def test_following_what_never_existed_is_an_error(api: FakeApi, client: Client):
    api.on("GET", LOGS, GONE)
    with pytest.raises(errors.NotFound):
        list(client.deployments.logs("d-1", follow=True))


def test_silent_connections_that_break_do_not_end_following(api: FakeApi, client: Client):
    quiet = stream(hang_up=True)
    api.on("GET", LOGS, *[quiet] * 40, stream(line(0, "at last")), GONE)
    assert [e.message for e in client.deployments.logs("d-1", follow=True)] == ["at last"]


def test_server_that_does_not_know_follow_is_polled(api: FakeApi, client: Client):
    """The real API answers with its last lines, whatever `since` and `follow` say."""
    first = [line(0, "a"), line(10, "b")]
    api.on("GET", LOGS, {"logs": first}, {"logs": [*first, line(11, "c")]}, GONE)
    assert [e.message for e in client.deployments.logs("d-1", follow=True)] == ["a", "b", "c"]


def test_following_gives_up_when_the_server_stays_away(api: FakeApi, client: Client):
    api.on("GET", LOGS, stream(line(0, "a")), Answer({}, status=500))
    entries = client.deployments.logs("d-1", follow=True)
    assert next(entries).message == "a"
    with pytest.raises(errors.ServerError):
        next(entries)
    assert len(api.seen) == 31


async def test_asynchronous_following_is_the_same(api: FakeApi, async_client: AsyncClient):
    api.on(
        "GET", LOGS, stream(line(0, "a"), hang_up=True), stream(line(0, "a"), line(1, "b")), GONE
    )
    async with async_client as client:
        entries = [e.message async for e in client.deployments.logs("d-1", follow=True)]
    assert entries == ["a", "b"]


async def test_leaving_a_followed_log_early_closes_its_connection(
    api: FakeApi, async_client: AsyncClient
):
    api.on("GET", LOGS, stream(*[line(n, str(n)) for n in range(50)]))
    async with async_client as client:
        entries = client.deployments.logs("d-1", follow=True)
        async for entry in entries:
            if entry.message == "3":
                break
        await entries.aclose()
        assert not client._http._client._transport._pool.connections  # type: ignore[attr-defined]
