"""A whole controller in a thread: real uvicorn, real SQLite, fake platform and model source."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import requests
from exoscale.api.v2 import Client
from exoscale_auth import ExoscaleV2Auth

from exo_inference.controller.http.server import Running
from exo_inference.controller.local.server import serve
from exo_inference.controller.settings import ControllerSettings
from exo_inference.local_settings import LocalSettings, ensure_credentials
from exo_inference.state_dir import StateDir
from tests.controller.fakes import FakeHub, FakePlatform, FakeSource
from tests.controller.openapi import check_response


class DistinctAuth(ExoscaleV2Auth):
    """Signs equal requests of one second differently, so that none is taken for the repeat of another.

    They end 100 s and more before those of the vendor's, which end in 600 s: an equal request that was captured
    some seconds ago has another signature as well.
    """

    _count = itertools.count()

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        self._sign_request(request, int(time.time()) + 300 + next(self._count) % 200)
        return request


@dataclass
class Controller:
    """One running controller and clients for it."""

    state: StateDir
    platform: FakePlatform = field(default_factory=FakePlatform)
    source: FakeSource = field(default_factory=FakeSource)
    hub: FakeHub = field(default_factory=FakeHub, repr=False)
    zone: str = "ch-dk-2"
    gateway_timeout_seconds: float = 0.0
    port: int = 0
    key: str = ""
    secret: str = ""
    _stop: Callable[[], None] = lambda: None
    _clients: list[Client] = field(default_factory=list)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/v2"

    @contextlib.contextmanager
    def running(self) -> Iterator[Controller]:
        """Run it until the block ends, as often as wanted on the same state."""
        self.state.create()
        credentials = ensure_credentials(self.state, LocalSettings(port=1))
        self.key, self.secret = credentials.key, credentials.secret
        answered, failures = Event(), []
        thread = threading.Thread(target=self._serve, args=(answered, failures), name="controller")
        thread.start()
        try:
            # Without limits but the test's own: one that outlived its test would go on to the end of the
            # process, where Python takes its threads away ("cannot schedule new futures after shutdown").
            answered.wait()
            assert not failures, failures
            yield self
        finally:
            for client in self._clients:
                client.http_client.close()
            self._stop()
            thread.join()
        assert not failures, failures

    def _serve(self, answered: Event, failures: list[BaseException]) -> None:
        async def main() -> None:
            loop, serving = asyncio.get_running_loop(), asyncio.current_task()
            assert serving is not None
            self._stop = lambda: loop.call_soon_threadsafe(serving.cancel)

            def started(running: Running) -> None:
                self.port = running.port
                self._stop = lambda: loop.call_soon_threadsafe(running.stop)
                answered.set()

            settings = ControllerSettings(
                state=self.state,
                zone=self.zone,
                gateway_url="http://127.0.0.1:8999",
                gateway_timeout_seconds=self.gateway_timeout_seconds,
                resync_seconds=0.2,
                model_retry_seconds=0.1,
            )
            await serve(
                settings,
                platform=self.platform,
                find_source=self.source.find,
                fetch=self.hub.fetch,
                started=started,
            )

        try:
            asyncio.run(main())
        except BaseException as exc:
            failures.append(exc)
        finally:
            answered.set()

    def client(self) -> Client:
        """Return the vendor's client; every answer it gets is checked."""
        client = Client(self.key, self.secret, url=self.endpoint)
        client.http_client.hooks["response"].append(check_response)
        self._clients.append(client)
        return client

    def _distinct_client(self) -> Client:
        """Return one for helpers: what they create again within a second is a new request."""
        client = self.client()
        client.http_client.auth = DistinctAuth(self.key, self.secret)
        return client

    def call(self, method: str, path: str, **kwargs: Any) -> requests.Response:
        """Send one signed request and check the form of its answer."""
        auth = DistinctAuth(self.key, self.secret)
        url = f"http://127.0.0.1:{self.port}{path}"
        return requests.request(
            method, url, auth=auth, hooks={"response": check_response}, timeout=20, **kwargs
        )

    def wait_for(self, what: Callable[[], Any], *, seconds: float = 30) -> Any:
        """Ask until the answer is true, and return it."""
        deadline = time.monotonic() + seconds
        while not (found := what()):
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.02)
        return found

    def create_model(self, name: str = "org/m1") -> str:
        """Create a model, wait until it is ready, return its id."""
        client = self._distinct_client()
        uid: str = client.create_model(name=name)["reference"]["id"]
        self.wait_for(lambda: client.get_model(id=uid)["state"] == "ready")
        return uid

    def create_deployment(self, name: str = "chat", *, wait: bool = True, **fields: Any) -> str:
        """Create a deployment of `org/m1`, wait until it is ready, return its id."""
        client = self._distinct_client()
        body = {"gpu_type": "cpu", "gpu_count": 1, "replicas": 1, "model": {"name": "org/m1"}}
        uid: str = client.create_deployment(name=name, **{**body, **fields})["reference"]["id"]
        if wait:
            self.wait_for(lambda: client.get_deployment(id=uid)["state"] == "ready")
        return uid


@pytest.fixture
def stopped_controller(tmp_path: Path) -> Controller:
    return Controller(StateDir(tmp_path / "state"))


@pytest.fixture
def controller(stopped_controller: Controller) -> Iterator[Controller]:
    with stopped_controller.running():
        yield stopped_controller


@pytest.fixture(scope="module")
def idle_controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    """One controller for all tests of a module; for those that leave nothing behind."""
    controller = Controller(StateDir(tmp_path_factory.mktemp("idle") / "state"))
    with controller.running():
        yield controller
