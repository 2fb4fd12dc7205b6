"""SIGSTOP of a real engine while it answers: nobody waits without an end, it gets no more, and it is started anew."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from exo_inference import AsyncClient
from exo_inference.wire import Deployment

from .conftest import Stack, processes_of, run_exo, start_stack
from .load import Load
from .test_chaos_alone import PATIENT, answers_go_on, start_only_replica

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NUM_CLIENTS = 2
MAX_TOKENS = 4
ANSWER_SECONDS = 600.0
"""A request is held until the engine runs again, which beside other work takes minutes."""


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    stack = start_stack(tmp_path / "stopped", variables=PATIENT)
    yield stack
    run_exo(stack.state_dir, "down", check=False)
    assert processes_of(stack.state_dir) == {}, "down left processes behind"


def pids_of(state_dir: Path, replica: str = "[!.]*") -> dict[str, int]:
    """Return the two processes of an engine by their part."""
    (record,) = (state_dir / "replicas").glob(f"{replica}/process.json")
    engine = json.loads(record.read_text())["engine_pid"]
    children = Path(f"/proc/{engine}/task/{engine}/children").read_text().split()
    (core,) = [int(pid) for pid in children if is_core(pid)]
    return {"API": engine, "core": core}


def is_core(pid: str) -> bool:
    try:
        return b"core_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # a process that renders templates, or reads texts, which has ended meanwhile
        return False


async def test_requests_of_a_stopped_engine_end_and_those_that_wait_are_served(
    stack: Stack,
) -> None:
    signed = {"endpoint": stack.endpoint, "zone": stack.zone}
    async with AsyncClient(stack.key, stack.secret, **signed) as client:
        uid = await start_only_replica(client)
        deployment = await client.deployments.get(uid)
        key = await client.deployments.reveal_api_key(uid)
        load = Load(
            deployment.deployment_url,
            key,
            NUM_CLIENTS,
            max_tokens=MAX_TOKENS,
            timeout_seconds=ANSWER_SECONDS,
        )
        stopped: dict[str, float] = {}
        async with load.running():
            for part in ("API", "core"):
                await answers_go_on(load)
                before = pids_of(stack.state_dir)
                stopped[part] = time.time()
                os.kill(before[part], signal.SIGSTOP)
                await answers_go_on(load)
                assert set(before.values()).isdisjoint(pids_of(stack.state_dir).values())
        events = await client.deployments.events(uid)
    print(load.summary(), f"longest {max(o.ended - o.started for o in load.outcomes):.0f} s")
    for failure in load.failures:  # an answer that had begun breaks, and others are sent again
        assert failure.begun, failure
        assert any(failure.started <= at <= failure.ended for at in stopped.values()), failure
    assert sum("stopped" in event.message for event in events) >= len(stopped)


ONE_AT_A_TIME = ["--max-num-seqs=1", "--num-gpu-blocks-override=256"]
NUM_WAITING, NUM_TOKENS = 12, 20
"""Requests for two replicas that compute one each: most wait without a byte."""


def routed(state_dir: Path) -> set[str]:
    """Return the replicas that the gateway is told of."""
    (route,) = json.loads((state_dir / "routes.json").read_text())["routes"]
    return {each["name"] for each in route["replicas"]}


async def ask(session: aiohttp.ClientSession, url: str) -> int:
    body = {
        "model": "exo/tiny-chat",
        "prompt": "Hello",
        "max_tokens": NUM_TOKENS,
        "ignore_eos": True,
    }
    async with session.post(f"{url}/completions", json=body) as answer:
        text = await answer.text()
        assert (
            answer.status != 200 or json.loads(text)["usage"]["completion_tokens"] == NUM_TOKENS
        ), text
        return answer.status


async def start_two(client: AsyncClient) -> Deployment:
    model = await client.models.create("exo/tiny-chat")
    await client.models.wait_until_ready(model.reference.id, timeout=60)
    options = {"model": "exo/tiny-chat", "gpu_type": "cpu", "replicas": 2}
    created = await client.deployments.create("two", engine_parameters=ONE_AT_A_TIME, **options)
    await client.deployments.wait_until_ready(created.reference.id, timeout=600)
    return await client.deployments.wait_until_scaled(created.reference.id, timeout=600)


async def test_requests_that_wait_at_a_stopped_engine_are_answered_by_the_other(
    stack: Stack,
) -> None:
    """Before that both have more than they can compute, and stay in the table."""
    signed = {"endpoint": stack.endpoint, "zone": stack.zone}
    async with AsyncClient(stack.key, stack.secret, **signed) as client:
        deployment = await start_two(client)
        url, key = deployment.deployment_url, await client.deployments.reveal_api_key(deployment.id)
        both = routed(stack.state_dir)
        assert len(both) == 2
        first = min(both)
        before = {name: pids_of(stack.state_dir, name) for name in both}
        limit = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        headers = {"Authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession(timeout=limit, headers=headers) as session:
            saturating = [asyncio.create_task(ask(session, url)) for _ in range(3 * NUM_WAITING)]
            while not all(task.done() for task in saturating):
                assert routed(stack.state_dir) == both
                await asyncio.sleep(0.1)
            assert {task.result() for task in saturating} == {200}
            assert {name: pids_of(stack.state_dir, name) for name in both} == before

            os.kill(before[first]["core"], signal.SIGSTOP)
            waiting = [asyncio.create_task(ask(session, url)) for _ in range(NUM_WAITING)]
            while first in routed(stack.state_dir):
                await asyncio.sleep(0.05)
            assert {await task for task in waiting} == {200}
        await client.deployments.wait_until_scaled(deployment.id, timeout=600)
        events = await client.deployments.events(deployment.id)
    after = {name: pids_of(stack.state_dir, name) for name in routed(stack.state_dir)}
    assert before[first]["core"] not in {each["core"] for each in after.values()}
    other = (both - {first}).pop()
    assert after[other] == before[other]
    assert any("stopped" in event.message for event in events)
