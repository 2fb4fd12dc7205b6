"""More clients than the controller has descriptors for: each is answered, told, or waits, and none hung up on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import selectors
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from exo_inference import acceptor, connection_limits
from exo_inference.controller.http import server
from exo_inference.controller.http.routes import logs
from exo_inference.errors import BadRequest
from exo_inference.local_settings import LocalSettings, ensure_credentials, save_settings
from exo_inference.sdk import AsyncClient
from exo_inference.state_dir import StateDir
from scripts.free_ports import free_port
from tests.controller.conftest import Controller

HALF_A_BODY = b"POST /v2/ai/model HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"
ZONES = b"GET /v2/zone HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def crowded(
    stopped_controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Controller]:
    """A controller that takes eight connections at once."""
    monkeypatch.setattr(server, "client_connections", lambda _: 8)
    monkeypatch.setattr(logs, "client_connections", lambda _: 8)
    monkeypatch.setattr(acceptor, "SPARED_SECONDS", 0.05)
    monkeypatch.setattr(acceptor, "LOOK_SECONDS", 0.01)
    with stopped_controller.running() as controller:
        yield controller


def ask_all(port: int, num_clients: int) -> Counter[str]:
    """Ask so many times at once, each client on a connection that it keeps; count the first words of the answers."""
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as waiting:
        for _ in range(num_clients):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            client.sendall(ZONES)
            waiting.register(client, selectors.EVENT_READ)
        found: Counter[str] = Counter()
        while waiting.get_map():
            ready = waiting.select(30)
            assert ready, f"no answer for 30 s; so far {found}"
            for key, _ in ready:
                waiting.unregister(key.fileobj)
                try:
                    found[os.read(key.fd, 12).decode()] += 1
                except OSError as exc:
                    found[type(exc).__name__] += 1
        return found


def test_each_of_many_is_answered(crowded: Controller) -> None:
    assert ask_all(crowded.port, 300) == {"HTTP/1.1 200": 300}


@pytest.mark.parametrize("sent", [b"", b"GET /v2/zone HTT", ZONES, HALF_A_BODY])
def test_connections_that_ask_for_nothing_give_way(crowded: Controller, sent: bytes) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            client = socket.create_connection(("127.0.0.1", crowded.port), timeout=10)
            stack.enter_context(client).sendall(sent)
        assert crowded.call("GET", "/v2/zone").status_code == 200


def test_a_request_in_progress_never_gives_way(crowded: Controller) -> None:
    crowded.create_model()
    uid = crowded.create_deployment()
    crowded.platform.is_log_endless = True
    path = f"/v2/ai/deployment/{uid}/logs?follow=true"
    with contextlib.ExitStack() as stack:
        followed = [stack.enter_context(crowded.call("GET", path, stream=True)) for _ in range(2)]
        lines = [answer.iter_lines() for answer in followed]
        assert all(next(each) for each in lines)
        told = crowded.call("GET", path)
        assert (told.status_code, told.headers["retry-after"]) == (429, "5")
        assert "2 logs are followed at the moment" in told.text
        assert ask_all(crowded.port, 50) == {"HTTP/1.1 200": 50}
        assert all(next(each) for each in lines)

    def follow_again() -> bool:
        with crowded.call("GET", path, stream=True) as answer:
            return answer.status_code == 200

    crowded.wait_for(follow_again)


@pytest.mark.slow
async def test_many_writes_that_are_refused_at_once_are_told_why_and_hold_up_no_reads(
    controller: Controller,
) -> None:
    controller.create_model()
    signed = {"endpoint": controller.endpoint, "zone": controller.zone}
    async with AsyncClient(controller.key, controller.secret, **signed) as client:

        async def refuse(number: int) -> str:
            flags = [f"--no-such-flag-{number}"]
            with pytest.raises(BadRequest) as caught:
                await client.deployments.create(
                    "chat", model="org/m1", gpu_type="cpu", engine_parameters=flags
                )
            return str(caught.value)

        async def look(_: int) -> int:
            return len(await client.deployments.list())

        numbers = range(120)
        told, seen = await asyncio.gather(
            asyncio.gather(*map(refuse, numbers)), asyncio.gather(*map(look, range(30)))
        )
    assert all(
        f"--no-such-flag-{number}" in text for number, text in zip(numbers, told, strict=True)
    )
    assert set(seen) == {0}


@pytest.mark.slow
def test_with_128_descriptors_300_clients_are_answered(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "state")
    state.create()
    port = free_port()
    settings = LocalSettings(port=port)
    save_settings(state, settings)
    ensure_credentials(state, settings)
    command = [sys.executable, "-m", "exo_inference.controller", "--state-dir", str(state.root)]

    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))

    with subprocess.Popen(
        command,
        preexec_fn=lower,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            while process.poll() is None:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
            assert process.poll() is None
            assert ask_all(port, 300) == {"HTTP/1.1 200": 300}
            # Its own descriptors are few, and those of clients are free again.
            while len(os.listdir(f"/proc/{process.pid}/fd")) > 32:
                time.sleep(0.01)
        finally:
            process.terminate()


@pytest.mark.parametrize(
    ("descriptors", "connections"), [(64, 16), (128, 48), (65536, 2048), (8, 4)]
)
def test_clients_have_half_of_the_descriptors(descriptors: int, connections: int) -> None:
    assert connection_limits.client_connections(descriptors) == connections
