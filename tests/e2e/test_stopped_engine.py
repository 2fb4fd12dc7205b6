"""SIGSTOP of the only replica's real engine while it answers: nobody waits without an end, and it is started anew."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from exo_inference import AsyncClient

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


def pids_of(state_dir: Path) -> dict[str, int]:
    """Return the two processes of the engine by their part."""
    (record,) = (state_dir / "replicas").glob("[!.]*/process.json")
    engine = json.loads(record.read_text())["engine_pid"]
    children = Path(f"/proc/{engine}/task/{engine}/children").read_text().split()
    cores = [
        int(pid) for pid in children if b"core_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return {"API": engine, "core": cores[0]}


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
