"""Controllers as processes on an API server, and a client for each."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import requests

from scripts.free_ports import free_port
from tests.charts.service_accounts import kubeconfig_of
from tests.controller.conftest import DistinctAuth
from tests.controller.stores.conftest import install_crds
from tests.kubernetes_api import KubernetesApi

GROUP = "inference.exo.dev/v1alpha1"
MERGE = "application/merge-patch+json"
LEASE = "exo-controller"
CREDENTIALS = "exo-credentials"


def environment(name: str, directory: Path, **changes: str) -> dict[str, str]:
    """What the chart gives to a controller's pod."""
    platform = directory / "platform.json"
    if not platform.exists():
        platform.write_text("{}")
    return {
        "EXO_POD_NAME": name,
        "EXO_POD_NAMESPACE": "exo",
        "EXO_LISTEN_PORT": "8080",
        "EXO_METRICS_PORT": "9090",
        "EXO_ZONE": "at-vie-2",
        "EXO_LEASE": LEASE,
        "EXO_CREDENTIALS_SECRET": CREDENTIALS,
        "EXO_GATEWAY_URL": "http://gateway.example",
        "EXO_GATEWAY_NAMESPACE": "exo",
        "EXO_PLATFORM_FILE": str(platform),
        **changes,
    }


@dataclass
class Process:
    """One controller."""

    name: str
    port: int
    metrics_port: int
    popen: subprocess.Popen[str]
    log: Path

    def probe(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.metrics_port}{path}", timeout=5
            ) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as exc:
            return exc.code, ""
        except OSError:
            return 0, ""

    @property
    def is_leading(self) -> bool:
        return "exo_controller_leading 1.0" in self.probe("/metrics")[1]


@dataclass
class ControlPlane:
    """Two controllers, and a client for each."""

    api: KubernetesApi
    directory: Path
    processes: list[Process] = field(default_factory=list)

    def start(self, name: str, **changes: str) -> Process:
        ports = [free_port(), free_port()]
        told = environment(
            name,
            self.directory,
            EXO_LISTEN_PORT=str(ports[0]),
            EXO_METRICS_PORT=str(ports[1]),
            TMPDIR=str(self.directory / name),
            **changes,
        )
        (self.directory / name).mkdir(exist_ok=True)
        log = self.directory / f"{name}.log"
        command = [sys.executable, "-m", "exo_inference.controller", "--platform=kubernetes"]
        kubeconfig = kubeconfig_of("controller", self.api)
        command += [f"--namespace={self.api.namespace}", f"--kubeconfig={kubeconfig}"]
        with log.open("w") as file:
            popen = subprocess.Popen(command, env={**os.environ, **told}, stderr=file, text=True)
        process = Process(name, ports[0], ports[1], popen, log)
        self.processes.append(process)
        return process

    @property
    def leader(self) -> Process:
        (found,) = [process for process in self.processes if process.is_leading]
        return found

    @property
    def other(self) -> Process:
        return next(process for process in self.processes if not process.is_leading)

    def secret(self, name: str) -> dict[str, str]:
        found = self.api.request("GET", f"/api/v1/namespaces/{self.api.namespace}/secrets/{name}")
        return {
            key: base64.b64decode(value).decode("latin-1") for key, value in found["data"].items()
        }

    def call(self, process: Process, method: str, path: str, body: Any = None) -> Any:
        answer = self.send(process, method, path, body)
        assert answer.status_code < 400, answer.text
        return answer.json()

    def send(self, process: Process, method: str, path: str, body: Any = None) -> requests.Response:
        secret = self.secret(CREDENTIALS)
        auth = DistinctAuth(secret["api-key"], secret["api-secret"])
        url = f"http://127.0.0.1:{process.port}/v2{path}"
        return requests.request(method, url, auth=auth, json=body, timeout=20)

    def path(self, plural: str, name: str = "", group: str = GROUP) -> str:
        prefix = f"/apis/{group}" if group else "/api/v1"
        return f"{prefix}/namespaces/{self.api.namespace}/{plural}/{name}".rstrip("/")

    def deployments(self) -> list[Any]:
        return list(self.api.request("GET", self.path("deployments", group="apps/v1"))["items"])

    def apply(self, name: str, annotations: dict[str, str] | None = None, **spec: Any) -> None:
        body = {
            "apiVersion": GROUP,
            "kind": "InferenceDeployment",
            "metadata": {"name": name, "annotations": annotations or {}},
            "spec": {"model": "exo/tiny-chat", "gpuType": "cpu", **spec},
        }
        self.api.kubectl("apply", "-f", "-", stdin=json.dumps(body))

    def conditions(self, name: str) -> dict[str, Any]:
        found = self.api.request("GET", self.path("inferencedeployments", name))
        return {item["type"]: item for item in found.get("status", {}).get("conditions", ())}

    def make_node(self) -> None:
        """Make a node, which nobody runs, so that there is a CPU to ask for."""
        client = self.api.client
        client.request("POST", "/api/v1/nodes", {"metadata": {"name": "node-of-this-test"}})
        status = {
            "allocatable": {"cpu": "8", "memory": "64Gi"},
            "capacity": {"cpu": "8", "memory": "64Gi"},
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        client.request("PATCH", "/api/v1/nodes/node-of-this-test/status", {"status": status}, MERGE)

    def remove_node(self) -> None:
        """Remove it, where the API server goes on to serve other tests."""
        self.api.client.request("DELETE", "/api/v1/nodes/node-of-this-test")

    def set_node_memory(self, memory: str) -> None:
        status = {"allocatable": {"memory": memory}, "capacity": {"memory": memory}}
        self.api.client.request(
            "PATCH", "/api/v1/nodes/node-of-this-test/status", {"status": status}, MERGE
        )

    def create_ready_model(self, process: Process | None = None) -> str:
        """Create the built-in model and end its download well."""
        asked = process or self.other
        made = self.call(asked, "POST", "/ai/model", {"name": "exo/tiny-chat"})
        uid = made["reference"]["id"]
        jobs = self.path("jobs", group="batch/v1")
        wait_for(lambda: self.api.request("GET", jobs)["items"], seconds=60)
        (job,) = self.api.request("GET", jobs)["items"]
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        conditions = [
            {"type": kind, "status": "True", "reason": "", "lastTransitionTime": now}
            for kind in ("SuccessCriteriaMet", "Complete")
        ]
        status = {"conditions": conditions, "startTime": now, "completionTime": now}
        path = f"{jobs}/{job['metadata']['name']}/status"
        self.api.client.request("PATCH", path, {"status": status}, MERGE)
        wait_for(lambda: self.call(asked, "GET", f"/ai/model/{uid}")["state"] == "ready")
        return str(uid)

    def create_deployment(self, process: Process, name: str = "chat", query: str = "") -> str:
        body = {
            "name": name,
            "gpu-type": "cpu",
            "gpu-count": 1,
            "replicas": 1,
            "model": {"name": "exo/tiny-chat"},
        }
        made = self.call(process, "POST", f"/ai/deployment{query}", body)
        return str(made["reference"]["id"])


def wait_for(what: Callable[[], Any], *, seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return found


@pytest.fixture
def alone(kubernetes_api: KubernetesApi, tmp_path: Path) -> Iterator[ControlPlane]:
    """A control plane of which nothing is started."""
    install_crds(kubernetes_api.server)
    plane = ControlPlane(kubernetes_api, tmp_path)
    plane.make_node()
    yield plane
    for process in plane.processes:
        if process.popen.poll() is None:
            process.popen.kill()
        process.popen.wait(10)


@pytest.fixture
def plane(alone: ControlPlane) -> ControlPlane:
    for name in ("controller-1", "controller-2"):
        alone.start(name)
    wait_for(lambda: all(p.probe("/readyz")[0] == 200 for p in alone.processes), seconds=40)
    wait_for(lambda: any(process.is_leading for process in alone.processes))
    return alone
