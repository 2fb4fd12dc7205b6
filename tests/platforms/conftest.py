"""Fixtures of the platform tests: a local platform on a fake engine, and all of it ended after."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from exo_inference.engines import Failure, ReplicaCommand
from exo_inference.engines.exo import ExoEngine
from exo_inference.platforms.base import DesiredDeployment, ObservedDeployment, ReplicaPhase
from exo_inference.platforms.local import LocalPlatform, LocalPlatformSettings
from exo_inference.platforms.local.shim import find_processes
from exo_inference.state_dir import StateDir
from tests.desired_deployments import altered, desired_deployment

FAKE_ENGINE = Path(__file__).with_name("fake_engine.py")

FAST = LocalPlatformSettings(
    drain_grace_seconds=5.0, first_backoff_seconds=0.05, max_backoff_seconds=0.4
)

LONG_BACK_OFF = {
    "first_backoff_seconds": 3600.0,
    "max_backoff_seconds": 3600.0,
    "max_backoff_after_ready_seconds": 3600.0,
    "max_backoff_after_kill_seconds": 3600.0,
}
"""Changes of settings with which a back-off is seen, however late a pass is; another platform ends it."""


class FakeEngine:
    """Starts `fake_engine.py`; reads failures as the real engine's part does."""

    name = "fake"

    def command(self, replica: ReplicaCommand) -> tuple[str, ...]:
        python = (sys.executable, "-I", "-S", str(FAKE_ENGINE))
        return (*python, "--uds", replica.socket, *replica.parameters)

    def diagnose(self, exit_code: int | None, log_tail: Sequence[str]) -> Failure:
        return ExoEngine().diagnose(exit_code, log_tail)


class Rig:
    """One state directory with a platform on it, driven the way the reconciler does."""

    def __init__(self, root: Path) -> None:
        self.state_dir = StateDir(root)
        self.state_dir.create()
        self.environment = dict(os.environ)
        self.settings = FAST
        self.platform = self.new_platform()

    def new_platform(self, **changes: float) -> LocalPlatform:
        """Return another platform object on the same directory, as a restarted controller has."""
        self.platform = LocalPlatform(
            self.state_dir,
            settings=replace(self.settings, **changes),
            engine=FakeEngine(),  # type: ignore[arg-type]
            environment=self.environment,
        )
        return self.platform

    def desired(self, replicas: int = 1, *parameters: str, **changes: object) -> DesiredDeployment:
        desired = desired_deployment(
            uid="11111111-1111-4111-8111-111111111111",
            name="chat",
            model="exo/tiny-chat",
            model_path="/nowhere",
            gpu_type="cpu",
            gpu_count=1,
            replicas=replicas,
            engine_parameters=parameters,
        )
        return altered(desired, **changes)  # type: ignore[arg-type]

    async def until(
        self,
        desired: DesiredDeployment,
        condition: Callable[[ObservedDeployment], bool],
        *,
        seconds: float = 60.0,
        each: Callable[[ObservedDeployment], Awaitable[None] | None] | None = None,
    ) -> ObservedDeployment:
        """Apply until the condition holds; draining replicas count as unrouted one pass later.

        Beside much work a start takes seconds, and some conditions need five of them.
        """
        end = time.monotonic() + seconds
        unrouted: frozenset[str] = frozenset()
        while True:
            observed = await self.platform.apply(altered(desired, unrouted=unrouted))
            if each is not None and (waiting := each(observed)) is not None:
                await waiting
            if condition(observed):
                return observed
            assert time.monotonic() < end, f"not reached: {observed}"
            unrouted = frozenset(
                r.name for r in observed.replicas if r.phase is not ReplicaPhase.READY
            )
            await asyncio.sleep(min(0.05, observed.next_check_seconds))

    async def until_ready(self, desired: DesiredDeployment, **more: object) -> ObservedDeployment:
        def settled(observed: ObservedDeployment) -> bool:
            good = [r for r in observed.replicas if r.phase is ReplicaPhase.READY and r.current]
            return len(good) == desired.spec.replicas == len(observed.replicas)

        return await self.until(desired, settled, **more)  # type: ignore[arg-type]

    def directory(self, name: str) -> Path:
        return self.state_dir.replicas_dir / name

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def edit(self, file: Path, **changes: object) -> None:
        """Change fields of one of a replica's documents."""
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    def processes(self) -> list[int]:
        """Return all processes of all replicas, strays of removed ones included."""
        root = str(self.state_dir.replicas_dir).encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    environment = (entry / "environ").read_bytes()
                except OSError:
                    continue
                if b"EXO_REPLICA_DIR=" + root in environment:
                    found.append(int(entry.name))
        return found


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path / "state")
    yield rig
    end = time.monotonic() + 5
    while pids := rig.processes():
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        await asyncio.sleep(0.01)
        rig.platform._lifecycle.reap()
        assert time.monotonic() < end, f"cannot end {pids}"


__all__ = ["FAST", "LONG_BACK_OFF", "FakeEngine", "Rig", "find_processes"]
