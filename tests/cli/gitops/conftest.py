"""The real controller with a platform and a model source that are ready at once, and `exo` run on it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from exo_inference.cli.main import main
from exo_inference.controller.http.server import Running
from exo_inference.controller.local.server import serve
from exo_inference.controller.settings import ControllerSettings
from exo_inference.errors import NotFound
from exo_inference.hub.base import InvalidModelName, ModelNotFound, ProgressCallback, ResolvedModel
from exo_inference.local_settings import LocalSettings, ensure_credentials
from exo_inference.platforms.base import (
    DesiredDeployment,
    InstanceTypeInfo,
    LogLine,
    LogQuery,
    ObservedDeployment,
    ObservedReplica,
    ReplicaPhase,
)
from exo_inference.sdk import Client
from exo_inference.state_dir import StateDir

COMMIT = "0123456789abcdef0123456789abcdef01234567"
UNKNOWN_COMMIT = "f" * 40


class InstantPlatform:
    """Every replica is ready at once, unless its deployment is named `never`."""

    name = "instant"
    rolls_back = False

    def __init__(self) -> None:
        self.desired: dict[str, DesiredDeployment] = {}

    async def apply(self, desired: DesiredDeployment) -> ObservedDeployment:
        self.desired[desired.uid] = desired
        phase = ReplicaPhase.STARTING if desired.name == "never" else ReplicaPhase.READY
        replicas = [
            ObservedReplica(f"{desired.uid}-{n}", phase, current=True, address=f"unix:{n}.sock")
            for n in range(desired.spec.replicas)
        ]
        return ObservedDeployment(tuple(replicas), next_check_seconds=0.2)

    async def delete(self, uid: str) -> bool:
        self.desired.pop(uid, None)
        return True

    async def deployments(self) -> set[str]:
        return set(self.desired)

    async def logs(self, uid: str, query: LogQuery) -> AsyncIterator[LogLine]:
        if uid in self.desired:
            yield LogLine(datetime.now(UTC), "here", f"{uid}-0", "hello")

    async def instance_types(self) -> list[InstanceTypeInfo]:
        return [InstanceTypeInfo("cpu", 8, 8), InstanceTypeInfo("gpua5000", 4, 4)]


class InstantSource:
    """Every model exists and is empty, except those with `missing` in the name or of a commit that is unknown."""

    async def resolve(
        self, source: str, *, revision: str | None, token: str | None
    ) -> ResolvedModel:
        if "missing" in source:
            raise ModelNotFound(f"there is no model {source}")
        if revision == UNKNOWN_COMMIT:
            raise ModelNotFound(f"no such revision of {source}")
        return ResolvedModel(source, COMMIT, ())

    async def fetch(
        self,
        model: ResolvedModel,
        directory: Path,
        *,
        token: str | None,
        progress: ProgressCallback,
    ) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        return directory


def find_instant_source(name: str) -> InstantSource:
    if "/" not in name:
        raise InvalidModelName(f"{name!r} is not the name of a model")
    return InstantSource()


class RunningController:
    """The real controller on a thread of its own."""

    def __init__(self, root: Path) -> None:
        self.state = StateDir(root)
        self.platform = InstantPlatform()
        self._settings = ControllerSettings(self.state, gateway_timeout_seconds=0.05)
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        await serve(
            self._settings,
            platform=self.platform,
            find_source=find_instant_source,
            started=self._note_start,
        )

    def _note_start(self, running: Running) -> None:
        self._running = running
        ensure_credentials(self.state, LocalSettings(port=running.port))
        self._started.set()

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(30), "the controller did not start"

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._running.stop)
        self._thread.join()


@dataclass(frozen=True)
class Ran:
    """What one command line did."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> object:
        return json.loads(self.out)


Exo = Callable[..., Ran]


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    running = RunningController(tmp_path_factory.mktemp("plane"))
    running.start()
    yield running
    running.stop()


@pytest.fixture
def zone(controller: RunningController) -> Iterator[Client]:
    """A client of a zone that is empty again after the test."""
    with Client(state_dir=controller.state.root) as client:
        yield client
        for deployment in client.deployments.list():
            with contextlib.suppress(NotFound):
                client.deployments.delete(deployment.id)
        for model in client.models.list():
            with contextlib.suppress(NotFound):
                client.models.delete(model.id)
        deadline = time.monotonic() + 20
        while client.deployments.list() or client.models.list():
            assert time.monotonic() < deadline, "the zone did not become empty"
            time.sleep(0.02)


@pytest.fixture
def exo(
    zone: Client,
    controller: RunningController,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Exo:
    """Run `exo ai …` against the controller; the working directory is a new one."""
    for name in ("HF_TOKEN", "EXOSCALE_API_KEY", "EXOSCALE_API_SECRET", "EXOSCALE_ZONE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EXO_STATE_DIR", str(controller.state.root))
    monkeypatch.chdir(tmp_path)

    def run(*argv: str) -> Ran:
        capsys.readouterr()
        code = main(["ai", *argv])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run
