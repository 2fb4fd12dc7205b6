"""What an engine of somebody else's answers to /health is a state at most: the control plane goes on."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from exo_inference.platforms.kubernetes.models import read_progress
from exo_inference.platforms.local.health import check_health, read_measurements
from exo_inference.platforms.local.replica_dir import SOCKET_NAME

NESTED = b"[" * 60_000


@asynccontextmanager
async def engine(body: bytes, status: int) -> AsyncIterator[Path]:
    """Answer everything with this; what is yielded is the directory of its replica."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, status=status)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    with tempfile.TemporaryDirectory(prefix="exo-health-", dir="/tmp") as directory:
        await runner.setup()
        await web.UnixSite(runner, f"{directory}/{SOCKET_NAME}").start()
        try:
            yield Path(directory)
        finally:
            await runner.cleanup()


@pytest.mark.parametrize(
    "body",
    [
        NESTED,
        b'{"detail":' + NESTED,
        b'{"detail": 9' + b"9" * 5000 + b"}",
        b'{"detail": ["a"], "status": {"a": 1}}',
        b'{"detail": "' + b"x" * 100_000,
        b"\xff\xfe",
        b"null",
        b"",
    ],
    ids=["nested", "nested detail", "number", "list", "long", "no text", "null", "empty"],
)
async def test_an_answer_of_no_form_is_one_of_an_engine_that_is_not_ready(body: bytes) -> None:
    async with engine(body, 503) as directory:
        health = await check_health(directory, 10.0)
    assert health.answered
    assert (health.ready, health.draining, health.stalled) == (False, False, False)


async def test_half_a_character_is_shown_as_one_that_can_be_written() -> None:
    async with engine(b'{"detail": "loading \\ud800\\n weights"}', 503) as directory:
        health = await check_health(directory, 10.0)
    assert health.detail == "loading ? weights"
    json.dumps(health.detail, ensure_ascii=False).encode()


async def test_measurements_that_are_nested_too_deeply_are_none() -> None:
    async with engine(NESTED, 200) as directory:
        assert await read_measurements(directory, 10.0) is None


def test_a_line_of_a_download_that_is_nested_too_deeply_is_passed_over() -> None:
    assert read_progress(['{"downloaded_bytes": 7}', NESTED.decode()]) == 7
