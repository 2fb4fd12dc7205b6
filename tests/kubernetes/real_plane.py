"""The control plane as its chart installs it on a whole cluster, and a stream of users' requests, for tests."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from openai import NotFoundError, OpenAI

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
KINDS = ("inferencedeployments", "inferencemodels", "inferenceapikeys")


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

    def openai(self, name: str = "chat", *, num_kept: int = 20, gateway: str = "") -> OpenAI:
        """Return a client that tries nothing twice and keeps at most so many idle connections.

        Args:
            name: of the deployment.
            num_kept: connections.
            gateway: where to ask instead of the gateways' Service.
        """
        if not self.key:
            said = self.exo("deployment", "reveal-api-key", name, "-O", "text").stdout
            self.key = said.strip()
        url = f"{gateway or self.address('exo-gateway')}/{name}/v1"
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
    def asking(self, model: str) -> Iterator[list[str]]:
        """Ask for a model on one connection until the block ends; the list has what each request got."""
        stop, outcomes, client = threading.Event(), list[str](), self.openai(num_kept=1)

        def send() -> None:
            while not stop.wait(0.02):
                try:
                    outcomes.append("answered" if ask(client, model).strip() else "empty")
                except Exception as exc:
                    outcomes.append(getattr(exc, "code", None) or repr(exc)[:300])

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        try:
            yield outcomes
        finally:
            stop.set()
            thread.join(60)
            client.close()

    @contextmanager
    def streaming(self, gateways: Sequence[str] = ("",)) -> Iterator[Stream]:
        """Send requests until the block ends, on a connection that is kept and on new ones.

        Args:
            gateways: where to; empty is the gateways' Service.
        """
        stop, stream = threading.Event(), Stream()

        def send(client: OpenAI) -> None:
            while not stop.is_set():
                began = time.monotonic()
                try:
                    text = chat(client)
                    stream.outcomes["answered" if text.strip() else "empty"] += 1
                except Exception as exc:
                    stream.outcomes["failed"] += 1
                    stream.failures.append(f"{time.strftime('%H:%M:%S')} {exc!r}"[:300])
                    stream.failed.append((began, time.monotonic()))
                time.sleep(0.05)

        clients = [
            self.openai(num_kept=number, gateway=gateway)
            for number in (1, 0)
            for gateway in gateways
        ]
        threads = [threading.Thread(target=send, args=(client,), daemon=True) for client in clients]
        for thread in threads:
            thread.start()
        try:
            yield stream
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)
            for client in clients:
                client.close()


def chat(client: OpenAI) -> str:
    """Ask for an answer of the model that there is: one may have been replaced by the other."""
    try:
        return ask(client, "exo/tiny-chat")
    except NotFoundError as exc:
        if exc.code != "model_not_found":
            raise
    return ask(client, "exo/tiny-draft")


def ask(client: OpenAI, model: str) -> str:
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Hello"}],
        max_tokens=8,
        stream=True,
    )
    return "".join(part.choices[0].delta.content or "" for part in answer if part.choices)


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def pod_of(leader: str) -> str:
    """Return the pod of what `leader_of` returns."""
    return leader.partition("_")[0]


def wait_for(what: Callable[[], Any], seconds: float = 120, pause: float = 0.2) -> Any:
    """Wait until it is so, and return it; a failure names the line that says what was waited for."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        line = getattr(what, "__code__", None) and what.__code__.co_firstlineno
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain for line {line}"
        time.sleep(pause)
    return found


@contextmanager
def installed(plane: Plane, chart: Path, files: Sequence[Path], *words: str) -> Iterator[None]:
    """Install the control plane with a chart and files of values, and remove all in the end."""
    _make_volume(plane)
    told = [*(f"--values={file}" for file in files), *words]
    plane.helm("install", "exo", str(chart), *told)
    # The Service's name is what deployments are shown with, and nobody can resolve it here.
    url = f"gateway.publicUrl={plane.address('exo-gateway')}"
    plane.helm("upgrade", "exo", str(chart), "--reuse-values", f"--set={url}")
    plane.cluster.kubectl(
        "rollout", "status", "deployment/exo-controller", "--timeout=120s", timeout=130
    )
    wait_for(lambda: plane.ready("controller") == 2 and plane.ready("gateway") == 2)
    yield
    _delete_objects(plane)
    plane.helm("uninstall", "exo")
    definitions = [name for name in _definitions(plane) if name.endswith(".inference.exo.dev")]
    assert len(definitions) == 4  # they stay, and with them what users made
    for name in definitions:
        plane.cluster.kubectl("delete", "crd", name)


def clear(plane: Plane) -> None:
    """Make a plane as it was when it had been installed: without users' objects and with all its pods."""
    _delete_objects(plane)
    for kind in KINDS:
        assert plane.get(kind) == [], f"{kind} are left"
    # Nothing is served any more, so that none of their engines has to drain.
    words = ("--selector=app.kubernetes.io/component=engine", "--grace-period=1", "--timeout=60s")
    plane.cluster.kubectl("delete", "pods", *words, timeout=70)
    for component in ("controller", "gateway"):  # one that drains is ready, too
        selector = f"app.kubernetes.io/component={component}"
        wait_for(
            lambda what=component, selector=selector: (
                len(plane.get("pods", selector)) == plane.ready(what) == 2
            )
        )
    plane.key = ""


def _delete_objects(plane: Plane) -> None:
    """Have the controllers that hold the finalizers of users' objects remove them."""
    for kind in KINDS:
        plane.cluster.kubectl("delete", kind, "--all", "--timeout=90s", check=False, timeout=100)


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
    """Return who leads, as `<pod>_<process>`: a pod whose container has started again is another."""
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


def restart(plane: Plane, component: str) -> None:
    """Let a component's pods be replaced one after the other, as its user does it."""
    plane.cluster.kubectl("rollout", "restart", f"deployment/exo-{component}")
    words = ("rollout", "status", f"deployment/exo-{component}", "--timeout=180s")
    plane.cluster.kubectl(*words, timeout=190)
