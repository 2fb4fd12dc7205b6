"""The wall clock jumps by an hour, both ways, under a whole control plane with its engines: nobody notices.

Every process, the command line too, preloads `jumping_clock.c`. What counts time must be on the other clock, which
no jump moves; what is stamped or signed is of the time that all see.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from exo_inference.state_dir import StateDir

from .conftest import processes_of, run_exo
from .load import Load
from .test_chaos_alone import PATIENT, answers_go_on

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

HOUR = 3600
SOURCE = Path(__file__).with_name("jumping_clock.c")
PASSES_ON = """
from exo_inference.platforms.local import environment
environment._PASSED_ON = (*environment._PASSED_ON, "LD_PRELOAD", "JUMPING_CLOCK")
"""
"""Python runs it as it starts: engines get but a few variables, and here these as well."""


@dataclass
class Jumping:
    """A control plane whose clock is moved."""

    state: StateDir
    moved: Path
    variables: dict[str, str]

    def move(self, seconds: int) -> None:
        """Have the clock of all processes say so much more than it is."""
        with self.moved.open(
            "r+b"
        ) as file:  # never shorter: what has it mapped would end with SIGBUS
            file.write(struct.pack("q", seconds))

    def exo(self, *words: str, timeout: float = 300) -> Any:
        """Return what a command of the same clock prints."""
        args = (*words, "-O", "json")
        done = run_exo(self.state.root, *args, timeout=timeout, variables=self.variables)
        return json.loads(done.stdout) if done.stdout.strip() else None

    def servers(self) -> dict[str, int]:
        """Return the pids of the servers by name."""
        return {name: self.state.read_record(name).pid for name in ("controller", "gateway")}

    def engines(self) -> set[int]:
        """Return the pids of the engines."""
        records = (self.state.root / "replicas").glob("[!.]*/process.json")
        return {json.loads(each.read_text())["engine_pid"] for each in records}


@pytest.fixture
def jumping(tmp_path: Path) -> Iterator[Jumping]:
    library, moved = tmp_path / "clock.so", tmp_path / "moved"
    command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "sitecustomize.py").write_text(PASSES_ON)
    variables = {"LD_PRELOAD": str(library), "JUMPING_CLOCK": str(moved)}
    variables |= {"PYTHONPATH": str(tmp_path / "start"), **PATIENT}
    found = Jumping(StateDir(tmp_path / "jumping"), moved, variables)
    moved.write_bytes(bytes(8))
    yield found
    run_exo(found.state.root, "down", check=False, variables=variables)
    assert processes_of(found.state.root) == {}, "down left processes behind"


def use(jumping: Jumping, number: int) -> None:
    """Do what users do; each command fails the test if it fails."""
    jumping.exo("status")
    assert len(jumping.exo("deployment", "list")) == 1
    jumping.exo("deployment", "scale", "chat", "2", "--wait")
    jumping.exo("deployment", "scale", "chat", "1", "--wait")
    jumping.exo("api-key", "create", f"key-{number}", "--deployment", "chat")
    jumping.exo("api-key", "delete", f"key-{number}", "-f")


async def test_clock_that_jumps_by_an_hour_is_not_noticed(jumping: Jumping) -> None:
    jumping.exo("up")
    jumping.exo("model", "create", "exo/tiny-chat", "--wait")
    create = ["deployment", "create", "chat", "--model-name", "exo/tiny-chat", "--gpu-type", "cpu"]
    made = jumping.exo(*create, "--gpu-count", "1", "--replicas", "1", "--wait")
    key = jumping.exo("deployment", "reveal-api-key", "chat")["api_key"]
    servers, (engine,) = jumping.servers(), jumping.engines()
    assert b"JUMPING_CLOCK" in Path(f"/proc/{engine}/environ").read_bytes()
    load = Load(made["deployment_url"], key, 2, max_tokens=4, timeout_seconds=900)
    async with load.running():
        for number, seconds in enumerate((HOUR, 0, -HOUR, 0)):
            await answers_go_on(load)
            jumping.move(seconds)
            await answers_go_on(load)
            await asyncio.to_thread(use, jumping, number)
    print(load.summary())
    assert not load.failures
    assert jumping.servers() == servers, "none was taken for hung"
    for seconds in (HOUR, -HOUR):
        (engine,) = jumping.engines()
        os.kill(engine, signal.SIGKILL)
        jumping.move(seconds)
        async with load.running():
            await answers_go_on(load)
        assert engine not in jumping.engines()
