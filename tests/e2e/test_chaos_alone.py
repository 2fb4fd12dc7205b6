"""`kill -9` of the only replica and of the gateway, fifty times, under eight clients.

Only answers that have begun break, and connections to a gateway that is killed. EXO_CHAOS_SEED repeats a
run's choices, EXO_CHAOS_KILLS changes how many.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from exo_inference import AsyncClient
from exo_inference.state_dir import StateDir

from .chaos_writes import BLOCKS
from .conftest import Stack, processes_of, run_exo, start_stack
from .load import Load, Outcome
from .test_chaos import Kill, in_flight, restart_supervisor

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

NUM_KILLS = int(os.environ.get("EXO_CHAOS_KILLS", "50"))
NUM_CLIENTS = 8
PATIENT = {"EXO_HOLD_SECONDS": "600"}
"""An engine may take longer than a minute to start, several times in a row, beside other work."""


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Stack]:
    stack = start_stack(tmp_path / "alone", variables=PATIENT)
    yield stack
    run_exo(stack.state_dir, "down", check=False)
    assert processes_of(stack.state_dir) == {}, "down left processes behind"


async def start_only_replica(client: AsyncClient) -> str:
    model = await client.models.create("exo/tiny-chat")
    await client.models.wait_until_ready(model.reference.id, timeout=60)
    created = await client.deployments.create(
        "alone", model="exo/tiny-chat", gpu_type="cpu", engine_parameters=[BLOCKS]
    )
    await client.deployments.wait_until_ready(created.reference.id, timeout=120)
    return created.reference.id


async def answers_go_on(load: Load) -> None:
    """Wait until requests are answered that have begun from now on."""
    now = time.time()
    async with asyncio.timeout(300):
        while not any(o.started > now and not o.error for o in load.outcomes):
            await asyncio.sleep(0.05)


def kill(state: StateDir, name: str) -> Kill:
    if name == "gateway":
        pid = state.read_record("gateway").pid
    else:
        (process,) = state.replicas_dir.glob("[!.]*/process.json")
        pid = json.loads(process.read_text())["engine_pid"]
    moment = time.time()
    os.kill(pid, signal.SIGKILL)
    return Kill(moment, name, "server")


def is_explained(failure: Outcome, kills: list[Kill]) -> bool:
    """Whether the answer had begun when its process was killed, or its connection went with the gateway."""
    if failure.refused or failure.error.startswith("TimeoutError"):
        return False
    for one in kills:
        if not in_flight(failure, one.time):
            continue
        if one.name == "gateway" and not failure.error[:3].isdigit():
            return True
        # The engine sends the head of a stream with its first event, and a plain answer at once.
        if one.name == "engine" and failure.streamed and not failure.error[:3].isdigit():
            return True
        if "broke off while it answered" in failure.error:
            return True
    return False


async def test_only_answers_that_had_begun_break(alone: Stack) -> None:
    seed = int(os.environ.get("EXO_CHAOS_SEED", random.randrange(1 << 32)))
    print(f"\n  EXO_CHAOS_SEED={seed}")
    chance = random.Random(seed)
    state = StateDir(alone.state_dir)
    kills: list[Kill] = []
    async with AsyncClient(state_dir=state.root) as client:
        uid = await start_only_replica(client)
        url, key = f"{alone.gateway}/{uid}/v1", await client.deployments.reveal_api_key(uid)
        load = Load(url, key, num_workers=NUM_CLIENTS, timeout_seconds=900)
        async with load.running():
            while len(kills) < NUM_KILLS:
                await answers_go_on(load)
                if len(kills) == NUM_KILLS // 2:  # the gateway is an adopted one from here on
                    await restart_supervisor(alone, state, PATIENT)
                await asyncio.sleep(chance.uniform(0.0, 0.5))
                kills.append(kill(state, chance.choice(("engine", "gateway"))))
            await answers_go_on(load)
    print(f"  kills: {dict(Counter(one.name for one in kills))}")
    print(f"  requests: {load.summary()}")
    assert [failure for failure in load.failures if not is_explained(failure, kills)] == []
