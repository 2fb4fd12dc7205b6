"""Many requests at 64 at once, a tenth given up and some broken, leave everything as it was.

1,000 of them, or as many as HARD_USE_REQUESTS says: `make test-hard-use` sends 10,000.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Stack, processes_of
from .hard_use import HardUse

pytestmark = pytest.mark.hard_use
NUM_REQUESTS = int(os.environ.get("HARD_USE_REQUESTS", "1000"))
NUM_BEFORE = 1_000
"""Sent first: what is imported, compiled and cached on first use is there then."""
MOST_GROWTH_BYTES = 20 * 10**6
SMALL_CACHE = "--num-gpu-blocks-override=512"
"""12 MB, which the first requests fill: blocks that nobody had before are pages that the kernel gives only then."""
CALM_SECONDS = 60
PASSING = re.compile(r"-m exo_(engine|inference)\.\S*(_process|worker) *$")
"""Processes that read what strangers send within limits; another takes the place of one that passed them."""


@pytest.fixture
def deployment(stack: Stack) -> Iterator[tuple[str, str]]:
    stack.exo("model", "create", "exo/tiny-chat", "--wait")
    stack.exo(
        *("deployment", "create", "hard", "--model-name", "exo/tiny-chat"),
        *("--gpu-type", "cpu", "--gpu-count", "1", "--inference-engine-params", SMALL_CACHE),
        "--wait",
    )
    shown = json.loads(stack.exo("deployment", "show", "hard", "-O", "json").stdout)
    revealed = json.loads(stack.exo("deployment", "reveal-api-key", "hard", "-O", "json").stdout)
    yield shown["deployment_url"], revealed["api_key"]
    stack.exo("deployment", "delete", "hard", "--force")
    stack.exo("model", "delete", "exo/tiny-chat", "--force", check=False)


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(re.search(r"^VmRSS:\s*(\d+)", status, re.MULTILINE)[1])


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def metric(page: str, name: str) -> float:
    values = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE)
    assert values, name
    return sum(map(float, values))


async def calm(stack: Stack, before: dict[int, int]) -> dict[int, int]:
    """Wait until nothing runs, and descriptors are no more than before; return them."""
    async with asyncio.timeout(CALM_SECONDS):
        while True:
            page = (await asyncio.to_thread(stack.exo, "metrics")).stdout
            is_idle = not any(
                metric(page, f"vllm:{name}")
                for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
            )
            found = {pid: descriptors(pid) for pid in processes_of(stack.state_dir)}
            if is_idle and all(found.get(pid, 0) <= number for pid, number in before.items()):
                return found
            await asyncio.sleep(0.2)


@pytest.mark.timeout(2400)
async def test_many_requests_leave_nothing_behind(
    stack: Stack, deployment: tuple[str, str]
) -> None:
    first = HardUse(*deployment, seed=1)
    await first.run(NUM_BEFORE)
    assert first.problems == []
    found = processes_of(stack.state_dir)
    names = {pid: name for pid, name in found.items() if not PASSING.search(name)}
    open_before = await calm(stack, {})
    resident = {pid: resident_bytes(pid) for pid in names}

    use = HardUse(*deployment, seed=2)
    await use.run(NUM_REQUESTS)
    assert use.problems == [], (len(use.problems), use.statuses)
    assert sum(use.statuses.values()) == NUM_REQUESTS
    await calm(stack, open_before)
    ended = names.keys() - processes_of(stack.state_dir).keys()
    assert not ended, [names[pid] for pid in ended]
    growth = {pid: resident_bytes(pid) - resident[pid] for pid in names}
    print({names[pid][:80]: f"{number / 1e6:.1f} MB" for pid, number in growth.items()})
    print(use.statuses)
    grown = {names[pid]: number for pid, number in growth.items() if number > MOST_GROWTH_BYTES}
    assert grown == {}
