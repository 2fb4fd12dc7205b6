"""A client that leaves in the middle of its answer is no error of the server's."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from exo_engine.server.app import _with_errors_and_log
from exo_engine.server.readers import Readers
from exo_engine.server.routes.streaming import send_events
from exo_engine.server.service import Service

pytestmark = pytest.mark.filterwarnings("ignore::aiohttp.web.NotAppKeyWarning")


@pytest.mark.parametrize("num_sent", [0, 2])
async def test_a_stream_that_nobody_reads_ends_quietly(
    caplog: pytest.LogCaptureFixture, num_sent: int
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        async def events() -> AsyncGenerator[list[dict[str, Any]], None]:
            for number in range(num_sent):
                yield [{"number": number}]
            assert request.transport is not None
            request.transport.close()  # as the client's end of it would, seen before the next write
            yield [{"number": num_sent}]

        return await send_events(request, events(), Readers())

    caplog.set_level(logging.DEBUG)
    service = SimpleNamespace(
        options=SimpleNamespace(is_request_log_on=True), new_id=lambda: "some-id"
    )
    app = web.Application(middlewares=[_with_errors_and_log(cast(Service, service))])
    app.router.add_post("/", answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            async with session.post(server.make_url("/")) as response:
                await response.read()
    assert [each for each in caplog.records if each.levelno > logging.INFO] == []
    (told,) = [
        each for each in caplog.records if each.levelno == logging.INFO and hasattr(each, "status")
    ]
    assert (vars(told)["status"], vars(told)["error"]) == (499, "the client hung up")


async def test_a_connection_of_the_server_s_own_that_breaks_is_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        raise ConnectionResetError("a connection to another process")

    service = SimpleNamespace(
        options=SimpleNamespace(is_request_log_on=False), new_id=lambda: "some-id"
    )
    app = web.Application(middlewares=[_with_errors_and_log(cast(Service, service))])
    app.router.add_post("/", answer)
    async with (
        TestServer(app) as server,
        aiohttp.ClientSession() as session,
        session.post(server.make_url("/")) as response,
    ):
        assert response.status == 500
    assert [each.levelname for each in caplog.records] == ["ERROR"]
