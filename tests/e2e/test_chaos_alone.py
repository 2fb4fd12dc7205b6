"""`kill -9` of the only replica and of the gateway, fifty times, under eight clients.

Only answers that have begun break, and connections to a gateway that is killed. EXO_CHAOS_SEED repeats a
run's choices, EXO_CHAOS_KILLS changes how many.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from exo_inference import AsyncClient
from exo_inference.gateway.proxy import MAX_DEATHS
from exo_inference.state_dir import StateDir

from .chaos_writes import BLOCKS
from .conftest import Stack, processes_of, run_exo, start_stack
from .kills import Kill, describe, kill_and_wait
from .load import Load, Outcome
from .test_chaos import restart_supervisor

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
    await client.deployments.wait_until_ready(created.reference.id, timeout=600)
    return created.reference.id


async def answers_go_on(load: Load) -> None:
    """Wait until requests are answered that have begun from now on."""
    now = time.time()
    async with asyncio.timeout(300):
        while not any(o.started > now and not o.error for o in load.outcomes):
            await asyncio.sleep(0.05)


async def kill(state: StateDir, name: str) -> Kill:
    if name == "gateway":
        return await kill_and_wait(state.read_record("gateway").pid, name, "server")
    (process,) = state.replicas_dir.glob("[!.]*/process.json")
    return await kill_and_wait(json.loads(process.read_text())["engine_pid"], name, "engine")


def is_explained(failure: Outcome, kills: list[Kill]) -> bool:
    """Whether the answer had begun when its engine was killed, or its connection went with the gateway.

    A third end of the engine on one request is told to the client: the request might be the cause.
    """
    if failure.refused or failure.error.startswith("TimeoutError"):
        return False
    if "died on this request" in failure.error:
        return sum(one.met(failure) for one in kills if one.name == "engine") > MAX_DEATHS
    if failure.error[:3].isdigit():
        return False
    if any(one.cut(failure) for one in kills if one.name == "gateway"):
        return True
    begun = failure.streamed and failure.begun
    return begun and any(one.met(failure) for one in kills if one.name == "engine")


async def test_only_answers_that_had_begun_break(alone: Stack) -> None:
    seed = int(os.environ.get("EXO_CHAOS_SEED", random.randrange(1 << 32)))
    print(f"\n  EXO_CHAOS_SEED={seed}")
    chance = random.Random(seed)
    state, zero = StateDir(alone.state_dir), time.time()
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
                kills.append(await kill(state, chance.choice(("engine", "gateway"))))
            await answers_go_on(load)
    print(f"  kills: {dict(Counter(one.name for one in kills))}")
    print(f"  requests: {load.summary()}")
    wrong = [failure for failure in load.failures if not is_explained(failure, kills)]
    told = "\n".join(describe(failure, kills, state, zero) for failure in wrong)
    assert not wrong, f"EXO_CHAOS_SEED={seed}, {len(wrong)} answers broke without a cause\n{told}"
