"""Gateways that share a port, as those of a pod do: one ends, and no other request notices."""

from __future__ import annotations

import asyncio
import http.client
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from exo_inference.errors import ConfigurationError
from exo_inference.gateway.app import Gateway
from exo_inference.kubernetes_api.pod import bind_shared, listen_everywhere
from tests.controller.stores.conftest import install_crds
from tests.gateway.test_cluster_tables import Cluster
from tests.kubernetes_api import KubernetesApi

KEY = "sk-own"


def connects(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_port_is_shared_with_those_alone_who_share_it() -> None:
    with bind_shared(0) as first:
        port = first.getsockname()[1]
        assert not connects(port)
        first.listen()
        with bind_shared(port) as second:
            second.listen()
            first.close()
            assert connects(port)
            with pytest.raises(ConfigurationError, match=f"cannot listen on port {port}"):
                listen_everywhere(port)
    with listen_everywhere(0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"cannot listen on port {port}"):
            bind_shared(port)


async def test_a_gateway_that_shares_its_port_listens_once_it_has_routes(stack: Any) -> None:
    stack.state.routes_file.unlink()
    gateway, stop = Gateway(stack.state), asyncio.Event()
    with bind_shared(0) as listener:
        port = listener.getsockname()[1]
        starting = asyncio.create_task(gateway.start_when_ready(listener, stop))
        while "503" not in await ready(stack):
            await asyncio.sleep(0.01)
        assert not connects(port)
        stack.write_table()
        await starting
        url = f"http://127.0.0.1:{port}/chat/v1/models"
        async with stack.client.get(url) as answer:
            assert answer.status == 200
        await gateway.stop()


async def ready(stack: Any) -> str:
    """Return what the newest gateway's probe says; it has taken the admin socket."""
    connector = aiohttp.UnixConnector(str(stack.state.gateway_socket))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get("http://gateway/readyz") as answer,
    ):
        return f"{answer.status} {await answer.text()}"


async def test_a_gateway_may_be_stopped_before_it_has_routes(state: Any) -> None:
    gateway, stop = Gateway(state), asyncio.Event()
    with bind_shared(0) as listener:
        starting = asyncio.create_task(gateway.start_when_ready(listener, stop))
        await asyncio.sleep(0)
        stop.set()
        await asyncio.wait_for(starting, 60)
        assert not connects(listener.getsockname()[1])
        await gateway.stop()


async def test_a_gateway_that_stops_ends_kept_connections_with_an_answer(
    stack: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exo_inference.gateway.app.LAST_CALL_SECONDS", 60.0)
    async with stack.client.get(stack.path("/v1/models")) as answer:
        assert "Connection" not in answer.headers
        await answer.read()
    stopping = asyncio.create_task(stack.gateway.stop(grace_seconds=60))
    while stack.gateway._runners[0].sites:
        await asyncio.sleep(0)
    async with stack.client.get(stack.path("/v1/models")) as answer:
        assert answer.status == 200
        assert answer.headers["Connection"] == "close"
        await answer.read()
    await asyncio.wait_for(stopping, 50)  # at once, as nobody is left who could ask for more


# -- processes


@dataclass
class Pod:
    """Gateways as the chart starts them: one port, metrics ports of their own, one volume."""

    cluster: Cluster
    directory: Path
    kubeconfig: Path
    port: int
    metrics_ports: list[int]
    processes: dict[int, subprocess.Popen[str]] = field(default_factory=dict)

    def start(self, number: int) -> None:
        environment = {
            **os.environ,
            "EXO_POD_NAME": "gateway-1",
            "EXO_POD_NAMESPACE": self.cluster.api.namespace,
            "EXO_LISTEN_PORT": str(self.port),
            "EXO_METRICS_PORT": str(self.metrics_ports[number]),
            "EXO_DRAIN_SECONDS": "20",
            "TMPDIR": str(self.directory),
        }
        command = [sys.executable, "-m", "exo_inference.gateway", "--platform=kubernetes"]
        command.append(f"--kubeconfig={self.kubeconfig}")
        self.processes[number] = subprocess.Popen(
            command, env=environment, stderr=subprocess.DEVNULL, text=True
        )

    def readiness(self, number: int) -> int:
        """Return the status of a probe; 0 is no answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.metrics_ports[number], timeout=30)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()

    def wait_ready(self, *numbers: int) -> None:
        wait_for(lambda: all(self.readiness(number) == 200 for number in numbers))


def wait_for(is_so: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


@pytest.fixture
def pod(kubernetes_api: KubernetesApi, tmp_path: Path) -> Iterator[Pod]:
    install_crds(kubernetes_api.server)
    with bind_shared(0) as one, bind_shared(0) as two, bind_shared(0) as three:
        port, *metrics_ports = (found.getsockname()[1] for found in (one, two, three))
    cluster = Cluster(kubernetes_api)
    pod = Pod(cluster, tmp_path, kubernetes_api.kubeconfig, port, metrics_ports)
    yield pod
    for process in pod.processes.values():
        process.kill()
        process.wait(10)


@dataclass
class Load:
    """Requests of clients that try nothing twice, and what became of them."""

    answered: int = 0
    wrong: list[str] = field(default_factory=list)
    failures: list[tuple[float, float, str]] = field(default_factory=list)
    """When each that failed had begun and ended, and how it failed."""


@contextmanager
def load(port: int, path: str, *, num_keeping: int, num_new: int) -> Iterator[Load]:
    """Send requests until the block ends, by clients that keep their connection or make new ones."""
    found, stop = Load(), threading.Event()

    def send(keeps: bool) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while not stop.is_set():
            began = time.monotonic()
            try:
                connection.request("GET", path, headers={"Authorization": f"Bearer {KEY}"})
                answer = connection.getresponse()
                body = answer.read().decode()
                if answer.status != 503 or "is not ready" in body or "no routing table" in body:
                    found.wrong.append(body)
                found.answered += 1
            except (OSError, http.client.HTTPException) as exc:
                found.failures.append((began, time.monotonic(), repr(exc)))
                connection.close()
            if not keeps:
                connection.close()
        connection.close()

    threads = [
        threading.Thread(target=send, args=(number < num_keeping,))
        for number in range(num_keeping + num_new)
    ]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


def pass_requests(found: Load, num: int = 100) -> None:
    until = found.answered + num
    wait_for(lambda: found.answered >= until)


def test_killing_a_process_fails_no_request_that_begins_afterwards(pod: Pod) -> None:
    uid = pod.cluster.create_deployment("chat", KEY)
    for number in (0, 1):
        pod.start(number)
    pod.wait_ready(0, 1)
    killed = []
    with load(pod.port, f"/{uid}/v1/models", num_keeping=1, num_new=1) as found:
        for number in (0, 1):
            pass_requests(found)
            begun = time.monotonic()
            pod.processes[number].kill()
            pod.processes[number].wait(60)
            killed.append((begun, time.monotonic()))
            pass_requests(found)
            pod.start(number)
            pod.wait_ready(number)
        pass_requests(found)
    assert found.wrong == []
    for began, ended, failure in found.failures:
        assert any(began < gone and begun < ended for begun, gone in killed), failure


def test_a_process_that_is_told_to_end_fails_no_request_of_clients_that_keep_connections(
    pod: Pod,
) -> None:
    uid = pod.cluster.create_deployment("chat", KEY)
    for number in (0, 1):
        pod.start(number)
    pod.wait_ready(0, 1)
    with load(pod.port, f"/{uid}/v1/models", num_keeping=4, num_new=0) as found:
        for number in (0, 1):
            pass_requests(found)
            pod.processes[number].terminate()
            assert pod.processes[number].wait(30) == 0
            pod.start(number)
            pod.wait_ready(number)
    assert found.failures == []
    assert found.wrong == []
    usage = {path.parent.name for path in pod.directory.glob("*/usage.json")}
    assert usage == {f"exo-gateway-{port}" for port in pod.metrics_ports}, "each counts for itself"


def test_a_process_that_cannot_read_its_routes_leaves_the_port_to_others(pod: Pod) -> None:
    uid = pod.cluster.create_deployment("chat", KEY)
    pod.start(0)
    pod.wait_ready(0)
    reachable = pod.kubeconfig
    with socket.create_server(("127.0.0.1", 0)) as deaf:  # takes connections, answers nothing
        pod.kubeconfig = pod.directory / "kubeconfig"
        url = f"https://127.0.0.1:{deaf.getsockname()[1]}"
        server = pod.cluster.api.server.url
        pod.kubeconfig.write_text(reachable.read_text().replace(server, url))
        pod.start(1)
        wait_for(lambda: pod.readiness(1) == 503)
        with load(pod.port, f"/{uid}/v1/models", num_keeping=0, num_new=2) as found:
            pass_requests(found, 200)
        assert (found.failures, found.wrong) == ([], [])
        pod.processes[1].terminate()
        assert pod.processes[1].wait(30) == 0
