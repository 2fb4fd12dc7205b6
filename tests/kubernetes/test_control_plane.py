"""The control plane installed by its chart on a whole cluster: real pods, driven by the command line.

Controllers, gateways, downloads and engines run from the project's images. A stream of requests goes
through the gateways' Service in the background, as users' requests would.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from openai import OpenAI

from exo_inference.platforms.kubernetes.helm import find_helm
from tests.kubernetes_api import KubernetesCluster

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "exo-inference"
EXAMPLES = ROOT / "examples"
VALUES: dict[str, Any] = {
    "gateway": {"drainSeconds": 20},
    "platform": {
        "deploymentValues": {"drain": {"preStopSeconds": 3, "timeoutSeconds": 20}},
        "modelValues": {"storage": {"existingClaim": "models"}},
    },
}
"""What is added to those of the README: short drains, and a volume, as no storage class is here."""

MISSING_TEMPLATE = "--chat-template=/no/such/template.jinja"
FAIL_OVER_SECONDS = 20.0


@dataclass
class Stream:
    """Requests one after the other, none of them tried twice, and what became of them."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    failed: list[tuple[float, float]] = field(default_factory=list)
    """When each that failed had begun and ended, as `time.monotonic` counts."""


@dataclass
class Plane:
    """An installed control plane."""

    cluster: KubernetesCluster
    directory: Path
    key: str = ""

    def helm(self, *words: str, stdin: str | None = None) -> str:
        command = [find_helm(os.environ), f"--kubeconfig={self.cluster.kubeconfig}", *words]
        ended = subprocess.run(
            command, input=stdin, capture_output=True, text=True, check=False, timeout=120
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def get(self, what: str, selector: str = "") -> list[Any]:
        words = [f"--selector={selector}"] if selector else []
        return list(json.loads(self.cluster.kubectl("get", what, *words, "-ojson").stdout)["items"])

    def pods(self, component: str) -> list[str]:
        """Return the names of a component's pods that are not ending."""
        found = self.get("pods", f"app.kubernetes.io/component={component}")
        return [
            pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]
        ]

    def ready(self, component: str) -> int:
        found = self.get("pods", f"app.kubernetes.io/component={component}")
        return sum(is_ready(pod) for pod in found)

    def address(self, service: str) -> str:
        path = f"/api/v1/namespaces/{self.cluster.namespace}/services/{service}"
        return f"http://{self.cluster.request('GET', path)['spec']['clusterIP']}"

    def exo(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the command line as its user does."""
        path = f"/api/v1/namespaces/{self.cluster.namespace}/secrets/exo-credentials"
        data = self.cluster.request("GET", path)["data"]
        environment = {
            **os.environ,
            "EXOSCALE_API_ENDPOINT": f"{self.address('exo-controller')}/v2",
            "EXOSCALE_API_KEY": base64.b64decode(data["api-key"]).decode(),
            "EXOSCALE_API_SECRET": base64.b64decode(data["api-secret"]).decode(),
            "HOME": str(self.directory),
        }
        program = Path(sys.executable).parent / "exo"
        command = [str(program), "dedicated-inference", *words, "-z", "at-vie-2"]
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=300
        )
        assert not check or ended.returncode == 0, f"{words}: {ended.stdout}{ended.stderr}"
        return ended

    def show(self, name: str = "chat") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            self.exo("deployment", "show", name, "-O", "json").stdout
        )
        return found

    def openai(self, name: str = "chat", *, num_kept: int = 20) -> OpenAI:
        """Return a client that tries nothing twice and keeps at most so many idle connections."""
        if not self.key:
            said = self.exo("deployment", "reveal-api-key", name, "-O", "text").stdout
            self.key = said.strip()
        url = f"{self.address('exo-gateway')}/{name}/v1"
        http = httpx.Client(limits=httpx.Limits(max_keepalive_connections=num_kept), timeout=60)
        return OpenAI(base_url=url, api_key=self.key, max_retries=0, http_client=http)

    @contextmanager
    def counting(self) -> Iterator[list[int]]:
        """Count the engines that are ready, and not ending, until the block ends."""
        stop, counts = threading.Event(), list[int]()
        path = f"/api/v1/namespaces/{self.cluster.namespace}/pods"
        path += "?labelSelector=app.kubernetes.io/component%3Dengine"

        def count() -> None:
            while not stop.wait(0.2):
                found = self.cluster.request("GET", path)["items"]
                staying = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
                counts.append(sum(is_ready(pod) for pod in staying))

        thread = threading.Thread(target=count, daemon=True)
        thread.start()
        try:
            yield counts
        finally:
            stop.set()
            thread.join(60)

    @contextmanager
    def streaming(self) -> Iterator[Stream]:
        """Send requests until the block ends, on a connection that is kept and on new ones."""
        stop, stream = threading.Event(), Stream()

        def send(client: OpenAI) -> None:
            while not stop.is_set():
                began = time.monotonic()
                try:
                    text = _chat(client)
                    stream.outcomes["answered" if text.strip() else "empty"] += 1
                except Exception as exc:
                    stream.outcomes["failed"] += 1
                    stream.failures.append(f"{time.strftime('%H:%M:%S')} {exc!r}"[:300])
                    stream.failed.append((began, time.monotonic()))
                time.sleep(0.05)

        threads = [
            threading.Thread(target=send, args=(self.openai(num_kept=number),), daemon=True)
            for number in (1, 0)
        ]
        for thread in threads:
            thread.start()
        try:
            yield stream
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)


def _chat(client: OpenAI) -> str:
    answer = client.chat.completions.create(
        model="exo/tiny-chat",
        messages=[{"role": "user", "content": "Hello"}],
        max_tokens=8,
        stream=True,
    )
    return "".join(part.choices[0].delta.content or "" for part in answer if part.choices)


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def wait_for(what: Callable[[], Any], seconds: float = 120, pause: float = 0.2) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(pause)
    return found


@pytest.fixture
def plane(kubernetes_cluster: KubernetesCluster, tmp_path: Path) -> Iterator[Plane]:
    """The control plane, installed as the README says, on a volume that this machine lends."""
    plane = Plane(kubernetes_cluster, tmp_path)
    _make_volume(plane)
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(VALUES))
    files = [f"--values={EXAMPLES}/values/kind.yaml", f"--values={tmp_path}/values.yaml"]
    plane.helm("install", "exo", str(CHART), *files)
    # The Service's name is what deployments are shown with, and nobody can resolve it here.
    url = f"gateway.publicUrl={plane.address('exo-gateway')}"
    plane.helm("upgrade", "exo", str(CHART), "--reuse-values", f"--set={url}")
    plane.cluster.kubectl(
        "rollout", "status", "deployment/exo-controller", "--timeout=120s", timeout=130
    )
    wait_for(lambda: plane.ready("controller") == 2 and plane.ready("gateway") == 2)
    yield plane
    # The objects go first, by the controllers that hold their finalizers.
    for kind in ("inferencedeployments", "inferencemodels", "inferenceapikeys"):
        kubernetes_cluster.kubectl(
            "delete", kind, "--all", "--timeout=90s", check=False, timeout=100
        )
    plane.helm("uninstall", "exo")
    definitions = [name for name in _definitions(plane) if name.endswith(".inference.exo.dev")]
    assert len(definitions) == 4  # they stay, and with them what users made
    for name in definitions:
        kubernetes_cluster.kubectl("delete", "crd", name)


def _definitions(plane: Plane) -> list[str]:
    return [found["metadata"]["name"] for found in plane.get("customresourcedefinitions")]


def _make_volume(plane: Plane) -> None:
    """Make the claim `models`, which every pod may write."""
    directory = plane.directory / "models"
    directory.mkdir()
    directory.chmod(0o777)
    name = plane.cluster.namespace
    size = {"storage": "1Gi"}
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            **common,
            "capacity": size,
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(directory), "type": "Directory"},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "models"},
        "spec": {**common, "volumeName": name, "resources": {"requests": size}},
    }
    for body in (volume, claim):
        plane.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(body))


def create_chat(plane: Plane, replicas: int = 2) -> None:
    plane.exo("model", "create", "exo/tiny-chat", "--wait")
    deploy_chat(plane, replicas)


def deploy_chat(plane: Plane, replicas: int) -> None:
    words = ["deployment", "create", "chat", "--model-name", "exo/tiny-chat", "--gpu-type", "cpu"]
    plane.exo(*words, "--gpu-count", "1", "--replicas", str(replicas), "--wait")


def leader_of(plane: Plane) -> str:
    path = (
        f"/apis/coordination.k8s.io/v1/namespaces/{plane.cluster.namespace}/leases/exo-controller"
    )
    return str(plane.cluster.request("GET", path)["spec"]["holderIdentity"])


def kill(plane: Plane, pod: str, container: str) -> tuple[float, float]:
    """End the process of a pod's container as `kill -9` does; return when that began and was done."""
    found = json.loads(plane.cluster.kubectl("get", "pod", pod, "-ojson").stdout)
    statuses = {status["name"]: status for status in found["status"]["containerStatuses"]}
    container_id = statuses[container]["containerID"].rpartition("/")[2]
    (process,) = [path for path in Path("/proc").glob("[0-9]*") if _began(path, container_id)]
    began = time.monotonic()
    os.kill(int(process.name), 9)
    wait_for(lambda: not process.exists(), pause=0.001)  # then all that it held is closed
    return began, time.monotonic()


def _began(process: Path, container_id: str) -> bool:
    """Whether a process is the one that a container was started with; that may have started others."""
    try:
        cgroup, status = (process / "cgroup").read_text(), (process / "status").read_text()
    except OSError:
        return False
    pids = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()
    return container_id in cgroup and pids[-1] == "1"


def has_restarted(plane: Plane, pod: str, container: str) -> bool:
    """Whether a container that was killed once is there again, and the whole pod ready."""
    found = json.loads(plane.cluster.kubectl("get", "pod", pod, "-ojson").stdout)
    statuses = {status["name"]: status for status in found["status"]["containerStatuses"]}
    return bool(statuses[container]["restartCount"]) and is_ready(found)


def test_a_deployment_lives_from_creation_to_deletion_without_losing_a_request(
    plane: Plane,
) -> None:
    create_chat(plane)
    assert plane.ready("engine") == 2
    assert _chat(plane.openai()).strip()
    assert plane.exo("chat", "chat", "Hello", "--max-tokens", "8").stdout.strip()
    with plane.streaming() as stream:
        plane.exo("deployment", "scale", "chat", "3", "--wait")
        assert plane.ready("engine") == 3
        with plane.counting() as counts:
            update = ["deployment", "update", "chat", "--wait"]
            plane.exo(*update, "--inference-engine-params=--max-model-len=512")
            assert plane.show()["state"] == "ready"
            # Admission cannot know which files an image has.
            bad = f"--inference-engine-params={MISSING_TEMPLATE}"
            failed = plane.exo(*update, bad, check=False)
            assert failed.returncode != 0
            assert "cannot read the chat template" in failed.stdout + failed.stderr
            wait_for(lambda: len(plane.pods("engine")) == plane.ready("engine") == 3)
            shown = plane.show()
            assert shown["state"] == "error"
            assert "the update was rolled back" in shown["state_details"]
            assert "cannot read the chat template" in shown["state_details"]
            plane.exo(*update, "--inference-engine-params=--max-model-len=512")
            assert plane.show()["state"] == "ready"
        assert len(counts) > 20
        assert min(counts) >= 3
        plane.exo("deployment", "scale", "chat", "1", "--wait")
        wait_for(lambda: len(plane.pods("engine")) == 1)
    assert stream.failures == []
    assert stream.outcomes["answered"] > 20
    plane.exo("deployment", "scale", "chat", "0", "--wait")
    wait_for(lambda: not plane.pods("engine"))
    refused = httpx.get(
        f"{plane.address('exo-gateway')}/chat/v1/models",
        headers={"Authorization": f"Bearer {plane.key}"},
    )
    assert refused.status_code == 503
    assert "scaled to 0" in refused.text
    plane.exo("deployment", "scale", "chat", "1", "--wait")
    assert _chat(plane.openai()).strip()
    plane.exo("deployment", "delete", "chat", "--force", "--wait")
    wait_for(
        lambda: not plane.get("deployments.apps", "app.kubernetes.io/name=inference-deployment")
    )
    plane.exo("model", "delete", "exo/tiny-chat", "--force", "--wait")
    wait_for(lambda: not plane.get("jobs"))


def test_kubectl_does_the_same(plane: Plane) -> None:
    plane.cluster.kubectl("apply", "-f", str(EXAMPLES / "manifests"))
    wait = ["wait", "inferencedeployment/chat", "--for=condition=Ready", "--timeout=120s"]
    plane.cluster.kubectl(*wait, timeout=130)
    assert plane.ready("engine") == 2
    assert _chat(plane.openai()).strip()
    plane.cluster.kubectl("scale", "inferencedeployment/chat", "--replicas=1")
    wait_for(lambda: len(plane.pods("engine")) == 1)
    chat = yaml.safe_load((EXAMPLES / "manifests" / "chat.yaml").read_text())
    wrong = {**chat, "spec": {**chat["spec"], "engineParameters": ["--no-such-flag"]}}
    plane.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(wrong))
    plane.cluster.kubectl(
        "wait", "inferencedeployment/chat", "--for=condition=Admitted=False", "--timeout=30s"
    )
    assert _chat(plane.openai()).strip()
    plane.cluster.kubectl("delete", "inferencedeployment", "chat", "--timeout=90s", timeout=100)
    assert plane.pods("engine") == []
    plane.cluster.kubectl("delete", "inferencemodel", "tiny-chat", "--timeout=60s", timeout=70)


def test_requests_go_on_when_pods_are_deleted_and_processes_killed(plane: Plane) -> None:
    create_chat(plane)
    with plane.streaming() as stream:
        plane.cluster.kubectl("delete", "pod", plane.pods("engine")[0], "--wait=false")
        wait_for(lambda: plane.ready("engine") == 2 and len(plane.pods("engine")) == 2)
        leader = leader_of(plane)
        killed = time.monotonic()
        kill(plane, leader, "controller")
        wait_for(lambda: leader_of(plane) not in ("", leader), 40)
        assert time.monotonic() - killed < FAIL_OVER_SECONDS + 5
        plane.exo("deployment", "scale", "chat", "3", "--wait")
        plane.cluster.kubectl("delete", "pod", plane.pods("gateway")[0], "--wait=false")
        wait_for(lambda: plane.ready("gateway") == 2 and len(plane.pods("gateway")) == 2)
        plane.helm("upgrade", "exo", str(CHART), "--reuse-values", "--set=gateway.drainSeconds=25")
        rollout = ("rollout", "status", "deployment/exo-gateway", "--timeout=120s")
        plane.cluster.kubectl(*rollout, timeout=130)
    assert stream.failures == []
    first, second = plane.pods("gateway")
    kills = []
    with plane.streaming() as stream:
        for pod, container in ((first, "gateway"), (first, "gateway-1"), (second, "gateway")):
            answered = stream.outcomes["answered"]
            kills.append(kill(plane, pod, container))
            wait_for(lambda answered=answered: stream.outcomes["answered"] > answered + 5)
            wait_for(lambda pod=pod, container=container: has_restarted(plane, pod, container))
    # None but those in flight at the time, of which each client has at most one.
    for failed, said in zip(stream.failed, stream.failures, strict=True):
        assert any(failed[0] < gone and began < failed[1] for began, gone in kills), said
