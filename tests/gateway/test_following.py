"""The gateway follows the table within a moment, and goes on without controller or file."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys

import aiohttp
import pytest

from exo_inference.gateway import table, usage_ledger
from exo_inference.gateway.answer_usage import Tokens
from exo_inference.gateway.app import Gateway
from exo_inference.gateway.usage_ledger import UsageLedger
from exo_inference.local_settings import LocalSettings, prepare_settings, save_settings


async def ask(stack, url=None):
    async with stack.client.post(url or stack.path(), json={}) as answer:
        return answer.status, await answer.json()


async def test_change_of_the_table_is_followed_within_a_second(stack):
    first, second = stack.engines
    for engine in (second, first):
        stack.write_table([engine])
        while {(await ask(stack))[1]["engine"] for _ in range(4)} != {engine.name}:
            pass
    assert table.POLL_SECONDS < 1


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param("", "JSON", id="empty"),
        pytest.param('{"version": 99, "routes": [', "JSON", id="half-written"),
        pytest.param(
            '{"format": 2, "version": 99, "routes": [], "public-keys": []}', "format", id="newer"
        ),
        pytest.param(
            '{"version": "99", "routes": [], "public-keys": []}', "version", id="wrong type"
        ),
        pytest.param(
            '{"version": 99, "routes": [], "public-keys": [{"id": "k", "sha256": "zz"}]}',
            "hexadecimal",
            id="bad digest",
        ),
        pytest.param(None, "exist", id="missing"),
    ],
)
async def test_unusable_table_changes_nothing_and_is_said(stack, content, problem):
    if content is None:
        stack.state.routes_file.unlink()
    else:
        stack.state.routes_file.write_text(content)
    while not (status := await stack.status())["table_problem"]:
        await asyncio.sleep(0.01)
    assert problem in status["table_problem"]
    assert status["table_version"] == stack.version
    assert (await ask(stack))[0] == 200
    stack.write_table()
    await stack.table_applied()
    assert (await stack.status())["table_problem"] == ""


async def test_gateway_without_a_table_is_503_and_starts_when_one_comes(state):
    gateway = Gateway(state)
    port = await gateway.start("127.0.0.1", 0)
    headers = {"Authorization": "Bearer x"}
    url = f"http://127.0.0.1:{port}/chat/v1/models"
    async with aiohttp.ClientSession(headers=headers) as client, client.get(url) as answer:
        assert answer.status == 503
        assert "no routing table yet" in (await answer.json())["error"]["message"]
    await gateway.stop()


async def test_background_work_that_fails_ends_the_gateway(state, monkeypatch, caplog):
    async def fail() -> None:
        raise RuntimeError("a bug")

    failed = asyncio.Event()
    gateway = Gateway(state, on_failure=failed.set)
    monkeypatch.setattr(gateway._tables, "run", fail)
    await gateway.start("127.0.0.1", 0)
    await asyncio.wait_for(failed.wait(), 5)
    await gateway.stop()
    assert "routing-table failed" in caplog.text


async def test_restarted_gateway_serves_from_the_file_and_keeps_its_counts(stack):
    assert (await ask(stack))[0] == 200
    before = await stack.status()
    await stack.gateway.stop()
    assert not stack.state.gateway_socket.exists()
    stack.gateway = Gateway(stack.state)
    port = await stack.gateway.start("127.0.0.1", 0)
    assert (await ask(stack, f"http://127.0.0.1:{port}/chat/v1/completions"))[0] == 200
    assert (await stack.status())["requests"] == before["requests"] + 1


async def test_pending_of_a_replica_that_left_the_table_is_shown_until_it_is_done(stack):
    first, second = stack.engines
    gate = asyncio.Semaphore(0)
    first.streams(*stack.chunks, gate=gate)
    stack.write_table([first])
    await stack.table_applied()
    answer = await stack.client.post(stack.path(), json={"stream": True})
    stack.write_table([second])
    await stack.table_applied()
    assert (await stack.status())["replicas"] == {
        first.name: {"pending": 1},
        second.name: {"pending": 0},
    }
    for _ in stack.chunks:
        gate.release()
    assert await answer.read() == b"".join(stack.chunks)
    assert list((await stack.status())["replicas"]) == [second.name]


async def test_usage_is_counted_per_deployment_and_key(stack):
    for engine in stack.engines:
        engine.answers(200, {"usage": {"prompt_tokens": 3, "completion_tokens": 4}})
    await ask(stack)
    await ask(stack)
    stack.client.headers["Authorization"] = f"Bearer {stack.public_key}"
    await ask(stack, stack.path(deployment="d-2"))
    rows = json.loads(await stack.admin("/usage"))["rows"]
    assert rows == [
        {
            "deployment_id": "d-1",
            "key_id": f"key-of-{stack.key}",
            "requests": {"200": 2},
            "prompt_tokens": 6,
            "completion_tokens": 8,
        },
        {
            "deployment_id": "d-2",
            "key_id": f"key-of-{stack.public_key}",
            "requests": {"200": 1},
            "prompt_tokens": 3,
            "completion_tokens": 4,
        },
    ]


@pytest.mark.parametrize("content", ["{", "[" * 200_000], ids=["cut", "nested"])
def test_damaged_usage_file_is_kept_aside(tmp_path, content):
    path = tmp_path / "usage.json"
    path.write_text(content)
    ledger = UsageLedger(path)
    ledger.load()
    assert ledger.num_requests == 0
    assert (tmp_path / "usage.damaged").read_text() == content


def test_a_named_pipe_as_usage_file_is_kept_aside(tmp_path):
    os.mkfifo(tmp_path / "usage.json")
    UsageLedger(tmp_path / "usage.json").load()
    assert [path.name for path in tmp_path.iterdir()] == ["usage.damaged"]


def test_counts_of_many_keys_are_bounded_and_lose_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(usage_ledger, "MAX_ROWS", 10)
    ledger = UsageLedger(tmp_path / "usage.json")
    for number in range(100):
        ledger.count("d-1", f"key-{number}", 200, Tokens(1, 2))
    rows = {(row.deployment_id, row.key_id): row for row in ledger}
    assert len(rows) == 10
    assert ("d-1", "key-99") in rows
    assert rows["d-1", ""].requests[200] == 91
    for number in range(100):
        ledger.count(f"other-{number}", "key", 200, Tokens(1, 2))
    rows = {(row.deployment_id, row.key_id): row for row in ledger}
    assert len(rows) == 10
    assert {(f"other-{number}", "key") for number in range(92, 100)} < rows.keys()
    assert ledger.num_requests == 200
    assert ledger.tokens == Tokens(200, 400)


async def test_file_of_more_counts_than_the_bound_is_joined_too(tmp_path, monkeypatch):
    ledger = UsageLedger(tmp_path / "usage.json")
    for number in range(50):
        ledger.count("d-1", f"key-{number}", 200, None)
    await ledger.save()
    monkeypatch.setattr(usage_ledger, "MAX_ROWS", 10)
    again = UsageLedger(tmp_path / "usage.json")
    again.load()
    again.count("d-1", "new", 200, None)
    assert len(list(again)) == 10
    assert again.num_requests == 51


async def test_usage_survives_a_full_disk(tmp_path, caplog):
    folder = tmp_path / "gone"
    folder.mkdir()
    ledger = UsageLedger(folder / "usage.json")
    ledger.count("d", "k", 200, None)
    folder.rmdir()
    await ledger.save()
    assert "cannot write usage.json" in caplog.text
    folder.mkdir()
    await ledger.save()
    again = UsageLedger(folder / "usage.json")
    again.load()
    assert again.num_requests == 1


async def test_stop_lets_requests_in_flight_end_and_takes_no_new_ones(stack):
    gate = asyncio.Semaphore(0)
    for engine in stack.engines:
        engine.streams(*stack.chunks, gate=gate)
    answer = await stack.client.post(stack.path(), json={})
    stopping = asyncio.ensure_future(stack.gateway.stop(grace_seconds=10))
    async with aiohttp.ClientSession() as newcomer:
        while True:
            try:
                await (await newcomer.get(f"{stack.url}/healthz")).read()
            except aiohttp.ClientConnectorError:
                break
    for _ in stack.chunks:
        gate.release()
    assert await answer.read() == b"".join(stack.chunks)
    await stopping


@pytest.fixture
def process(state):
    """The gateway as the supervisor starts it."""
    settings = prepare_settings(state).settings
    save_settings(state, settings)
    command = [sys.executable, "-m", "exo_inference.gateway", "--state-dir", str(state.root)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=state.root)
    yield process, settings
    process.kill()
    process.communicate()


async def test_process_listens_and_ends_on_sigterm(process, state):
    child, settings = process
    async with aiohttp.ClientSession() as client, asyncio.timeout(20):
        while True:
            try:
                async with client.get(f"{settings.gateway_url}/healthz") as answer:
                    assert answer.status == 200
                    break
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.02)
    child.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(child.wait, 10) == 0
    assert not state.gateway_socket.exists()


async def test_process_takes_the_socket_it_inherits(state):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        save_settings(state, LocalSettings(gateway_port=port))
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "exo_inference.gateway", "--state-dir", str(state.root)),
            env={**os.environ, "EXO_LISTEN_FD": str(listener.fileno())},
            pass_fds=[listener.fileno()],
            stderr=asyncio.subprocess.DEVNULL,
        )
        # Connected before the gateway runs, answered once it does.
        async with aiohttp.ClientSession() as client, asyncio.timeout(20):
            answer = await client.get(f"http://127.0.0.1:{port}/healthz")
            assert answer.status == 200
        child.terminate()
        assert await child.wait() == 0


def test_process_that_cannot_listen_says_why_in_its_last_line(stack_port, state):
    save_settings(state, LocalSettings(gateway_port=stack_port))
    command = [sys.executable, "-m", "exo_inference.gateway", "--state-dir", str(state.root)]
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, cwd=state.root, check=False)
    assert ended.returncode == 78
    last = ended.stderr.splitlines()[-1]
    assert last.startswith(f"exo-gateway: error: cannot listen on 127.0.0.1:{stack_port}")
    assert "held by process" in last


@pytest.fixture
def stack_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]
