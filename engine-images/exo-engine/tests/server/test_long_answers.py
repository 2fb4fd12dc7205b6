"""An answer of many items is made as its client takes it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from aiohttp import test_utils, web
from exo_engine.server.readers import Readers
from exo_engine.server.routes.long_answers import PIECE_BYTES, send_items

pytestmark = pytest.mark.filterwarnings("ignore:It is recommended to use web.RequestKey")
HEAD = {"id": "x", "usage": {"prompt_tokens": 1}}


class Items:
    """So many items of 10 kB, counted as they are made."""

    def __init__(self, number: int, text: str = "") -> None:
        self.number = number
        self.text = text or "x" * 10_000
        self.num_made = 0
        self.has_ended = asyncio.Event()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            for index in range(self.number):
                self.num_made += 1
                yield {"index": index, "text": self.text}
        finally:
            self.has_ended.set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        request["id"] = "r-1"
        readers = Readers(patience_seconds=0.2)
        return await send_items(request, HEAD, "data", iter(self), readers)


def serving(items: Items) -> test_utils.TestServer:
    app = web.Application()
    app.router.add_get("/", items.answer)
    return test_utils.TestServer(app, handler_cancellation=True)


async def test_client_that_takes_nothing_has_little_made_and_is_hung_up_on() -> None:
    items = Items(20_000)
    async with serving(items) as server:
        _, writer = await asyncio.open_connection(server.host, server.port, limit=4096)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await items.has_ended.wait()
        writer.close()
    assert PIECE_BYTES < items.num_made * 10_000 < 100 << 20


@pytest.mark.parametrize("number", [0, 1, 6, 7, 300])
async def test_answer_is_that_of_one_dump(number: int) -> None:
    items = Items(number, "\u00e4\ud800" * 3000)
    async with (
        serving(items) as server,
        aiohttp.ClientSession() as client,
        client.get(server.make_url("/")) as answer,
    ):
        raw = await answer.read()
        assert answer.content_type == "application/json"
    expected = json.dumps({**HEAD, "data": list(items)}, ensure_ascii=False)
    assert raw == expected.encode(errors="replace")
