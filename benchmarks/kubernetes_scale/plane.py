"""The control plane on a simulated cluster: chart installed, controllers as processes of this machine.

The chart is installed by Helm as a user does it. Its Deployments are then scaled to 0, because nothing
here runs containers, and the controllers are started as processes with what their pods would be given:
environment, settings file, service account and its roles.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from exo_inference import Client
from exo_inference.platforms.kubernetes.helm import find_helm
from scripts.free_ports import free_ports
from scripts.kubernetes.client import ApiClient
from scripts.kubernetes.nodes import FAKE_NODE_ANNOTATION, create_fake_node, node_is_ready
from scripts.kubernetes.processes import Daemon
from scripts.kubernetes.simulated import SimulatedCluster

NAMESPACE = "exo"
MODEL = "exo/tiny-chat"
GPU_TYPE = "gpua5000"
GPUS_PER_NODE = 8

_CHART = Path(__file__).parents[2] / "charts" / "exo-inference"
_GPU_LABELS = {"nvidia.com/gpu.product": "NVIDIA-RTX-A5000", "nvidia.com/gpu.memory": "24564"}
_TOLERATIONS = [{"key": FAKE_NODE_ANNOTATION, "operator": "Exists"}]
_VALUES = {
    "zone": "at-vie-2",
    "platform": {
        "deploymentValues": {"tolerations": _TOLERATIONS},
        "modelValues": {"storage": {"existingClaim": "models"}, "tolerations": _TOLERATIONS},
    },
}
_OPTIONS = {
    # Nodes say every 75 s that they live, not every 10 s, and are never lost: 50 of these writes per
    # second would be a fifth of what this machine does, and a node that is late moves its pods.
    "kube-controller-manager": ["--node-monitor-grace-period=900s", "--node-monitor-period=10s"],
    # Addresses for measurements (RFC 2544), enough for all pods.
    "kwok": ["--node-lease-duration-seconds=300", "--cidr=198.18.0.1/15"],
}
_T = TypeVar("_T")
_MERGE = "application/merge-patch+json"


class Controller:
    """One controller process, started again under the same name with the same ports.

    Args:
        name: of its pod.
        environment: what the chart gives to a pod.
        kubeconfig: of the chart's service account.
        directory: for its log and scratch files.
    """

    def __init__(
        self, name: str, environment: dict[str, str], kubeconfig: Path, directory: Path
    ) -> None:
        self.name = name
        self.port, self._metrics_port = free_ports(2)
        scratch = directory.parent / f"tmp-{name}"
        scratch.mkdir()
        words = ["--platform=kubernetes", f"--namespace={NAMESPACE}", f"--kubeconfig={kubeconfig}"]
        told = {
            "EXO_POD_NAME": name,
            "EXO_LISTEN_PORT": str(self.port),
            "EXO_METRICS_PORT": str(self._metrics_port),
            "TMPDIR": str(scratch),
        }
        command = [sys.executable, "-m", "exo_inference.controller", *words]
        self.process = Daemon(name, command, directory, {**os.environ, **environment, **told})

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        url = f"http://127.0.0.1:{self._metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(
            float(line.split()[-1]) for line in lines if line.startswith((name + " ", name + "{"))
        )

    @property
    def is_leading(self) -> bool:
        """Whether it says that it reconciles."""
        try:
            return self.metric("exo_controller_leading") == 1.0
        except OSError:
            return False

    def listens(self) -> bool:
        """Whether it takes connections; the first request may still wait for its start to end."""
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True


class Plane:
    """Cluster, nodes, two controllers, and a model that is ready.

    Args:
        directory: for everything.
        num_nodes: simulated nodes.
        say: told of each step.
    """

    def __init__(self, directory: Path, num_nodes: int, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._num_nodes = num_nodes
        self._say = say
        self.cluster = SimulatedCluster(directory, options=_OPTIONS)
        self.controllers: list[Controller] = []
        self.clients: list[Client] = []
        self._running = ExitStack()

    def __enter__(self) -> Plane:
        with ExitStack() as running:
            self._start(running)
            self._running = running.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    @property
    def admin(self) -> ApiClient:
        """A client of the Kubernetes API that may do everything and is never slowed down."""
        return self.cluster.server.client()

    def wait_for_leader(self) -> Controller:
        """Return the controller that reconciles, once one does.

        Raises:
            TimeoutError
        """
        return wait_for(lambda: next((each for each in self.controllers if each.is_leading), None))

    def wait_for_roles(self) -> dict[str, Controller]:
        """Return both controllers as `leader` and `standby`, once one leads.

        Raises:
            TimeoutError
        """
        leader = self.wait_for_leader()
        standby = next(each for each in self.controllers if each is not leader)
        return {"leader": leader, "standby": standby}

    def client(self, controller: Controller) -> Client:
        """Return the client of one controller."""
        return self.clients[self.controllers.index(controller)]

    def new_client(self, controller: Controller) -> Client:
        """Return another client of one controller, with a connection of its own."""
        data = self.admin.request("GET", _path("secrets", "exo-credentials"))["data"]
        key, secret = (base64.b64decode(data[name]).decode() for name in ("api-key", "api-secret"))
        endpoint = f"http://127.0.0.1:{controller.port}/v2"
        return Client(key, secret, endpoint=endpoint, config_file=os.devnull)

    def wait_idle(self) -> None:
        """Wait until the leader has nothing to do."""
        leader = self.wait_for_leader()
        wait_for(lambda: leader.metric("exo_controller_waiting_objects") == 0)

    def keep_logs(self, directory: Path) -> None:
        """Copy the logs of all processes."""
        shutil.copytree(self.cluster.server.logs, directory, dirs_exist_ok=True)

    def _start(self, running: ExitStack) -> None:
        """Start everything; what `running` has is ended in the opposite order."""
        self._say("starting the cluster")
        running.enter_context(self.cluster)
        admin = self.admin
        admin.create_namespace(NAMESPACE)
        self._say(f"creating {self._num_nodes} nodes")
        names = [f"node-{number:03}" for number in range(self._num_nodes)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda n: create_fake_node(admin, n, GPUS_PER_NODE, _GPU_LABELS), names))
        wait_for(lambda: node_is_ready(admin, names[-1]))
        self._say("installing the chart, starting two controllers")
        self._make_volume()
        environment = self._install()
        kubeconfig = self.cluster.server.service_account_kubeconfig(NAMESPACE, "exo-controller")
        for number in (1, 2):
            controller = Controller(
                f"controller-{number}", environment, kubeconfig, self.cluster.server.logs
            )
            self.controllers.append(controller)
            running.callback(controller.process.kill)
            controller.process.start()
        self.wait_for_leader()
        wait_for(lambda: all(controller.listens() for controller in self.controllers))
        for controller in self.controllers:
            self.clients.append(running.enter_context(self.new_client(controller)))
        self._say(f"bringing the model {MODEL}")
        model = self.clients[0].models.create(MODEL).reference
        assert model is not None, "a create names what it made"
        self.clients[0].models.wait_until_ready(model.id, timeout=120)

    def _install(self) -> dict[str, str]:
        """Install the chart; return the environment of a controller's pod."""
        values = self._directory / "values.json"
        values.write_text(json.dumps(_VALUES))
        helm = [find_helm(os.environ), f"--kubeconfig={self.cluster.server.kubeconfig()}"]
        words = ["install", "exo", str(_CHART), f"--namespace={NAMESPACE}", f"--values={values}"]
        subprocess.run([*helm, *words], check=True, capture_output=True)
        admin = self.admin
        for component in ("controller", "gateway"):
            path = _path("deployments", f"exo-{component}", group="apps/v1")
            admin.request("PATCH", path, {"spec": {"replicas": 0}}, _MERGE)
        pod = admin.request("GET", _path("deployments", "exo-controller", group="apps/v1"))
        (container,) = pod["spec"]["template"]["spec"]["containers"]
        told = {item["name"]: item["value"] for item in container["env"] if "value" in item}
        settings = admin.request("GET", _path("configmaps", "exo-platform"))["data"]
        (self._directory / "platform.json").write_text(settings["platform.json"])
        file = str(self._directory / "platform.json")
        return {**told, "EXO_POD_NAMESPACE": NAMESPACE, "EXO_PLATFORM_FILE": file}

    def _make_volume(self) -> None:
        """Make the claim `models` that every model and every engine shares, and its volume."""
        common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        size = {"storage": "1Gi"}
        volume = {**common, "capacity": size, "hostPath": {"path": str(self._directory)}}
        claim = {**common, "volumeName": "models", "resources": {"requests": size}}
        self.admin.request("POST", "/api/v1/persistentvolumes", _object("models", volume))
        self.admin.request("POST", _path("persistentvolumeclaims"), _object("models", claim))


def wait_for(what: Callable[[], _T | None], seconds: float = 120) -> _T:
    """Return what is there once it is there, and not False.

    Raises:
        TimeoutError
    """
    deadline = time.monotonic() + seconds
    while not (found := what()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing came of it in {seconds:.0f} s")
        time.sleep(0.05)
    return found


def _path(plural: str, name: str = "", group: str = "") -> str:
    root = f"/apis/{group}" if group else "/api/v1"
    return f"{root}/namespaces/{NAMESPACE}/{plural}/{name}".rstrip("/")


def _object(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": spec}
