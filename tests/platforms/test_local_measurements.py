"""What a replica's engine says that its start has measured, whatever it answers instead."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from exo_inference.platforms.local import LocalPlatform
from exo_inference.platforms.local.settings import LocalPlatformSettings
from exo_inference.state_dir import StateDir


async def ask(root: Path, answer: bytes | None) -> dict[str, object] | None:
    """Ask a replica whose engine sends these bytes and hangs up; None is silence."""
    state = StateDir(root / "state")
    directory = state.replicas_dir / "chat-1"
    directory.mkdir(parents=True)
    answered = asyncio.Event()

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"GET /measurements HTTP/1.1\r\n")
        if answer is None:
            await reader.read()  # until the platform gives up
        else:
            half = len(answer) // 2
            writer.write(answer[:half])
            await writer.drain()
            writer.write(answer[half:])
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        answered.set()

    descriptor = os.open(directory, os.O_PATH)
    server = await asyncio.start_unix_server(respond, f"/proc/self/fd/{descriptor}/engine.sock")
    try:
        seconds = 0.3 if answer is None else 60.0
        settings = LocalPlatformSettings(health_timeout_seconds=seconds)
        platform = LocalPlatform(state, settings=settings)
        found = await platform.measurements("chat-1")
        await answered.wait()
        return found
    finally:
        os.close(descriptor)
        server.close()
        await server.wait_closed()


def http(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status.encode(), len(body), body)


async def test_measurements_are_read(tmp_path: Path) -> None:
    body = b'{"simulated": false, "weights_bytes": 12, "note": "%b"}' % (b"x" * 40_000)
    found = await ask(tmp_path, http("200 OK", body))
    assert found is not None
    assert found["weights_bytes"] == 12


@pytest.mark.parametrize(
    "answer",
    [
        http("404 Not Found", b'{"weights_bytes": 12}'),
        http("503 Service Unavailable", b'{"status": "starting"}'),
        http("200 OK", b"<html>"),
        http("200 OK", b"[1]"),
        http("200 OK", b"\xff\xfe"),
        http("200 OK", b"[" * 60_000),
        http("200 OK", b'{"note": "%b"}' % (b"x" * 100_000)),
        b"SSH-2.0-OpenSSH_9.6\r\n",
        http("200 OK", b'{"weights_bytes": 12}')[:-5],
        b"",
        None,
    ],
    ids=[
        "missing",
        "loading",
        "html",
        "list",
        "binary",
        "deep",
        "long",
        "not-http",
        "torn",
        "closed",
        "silent",
    ],
)
async def test_an_engine_that_does_not_say_has_no_measurements(
    tmp_path: Path, answer: bytes | None
) -> None:
    assert await ask(tmp_path, answer) is None


async def test_a_replica_that_is_gone_has_no_measurements(tmp_path: Path) -> None:
    assert await LocalPlatform(StateDir(tmp_path)).measurements("chat-1") is None
