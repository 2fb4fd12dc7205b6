"""Two real controllers on a simulated cluster, and what can be done to them.

Every controller reaches the API through a proxy of its own, so that it alone can be cut off. Real are
the API server, the cluster's controllers, Helm and the charts; nodes and pods are played by KWOK. A
controller that ends is started again, as a kubelet does. Used by `test_chaos`.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exo_inference import Client
from exo_inference.platforms.kubernetes.records import PENDING
from scripts.free_ports import free_port
from scripts.kubernetes.client import ApiClient, ApiError
from scripts.kubernetes.nodes import FAKE_NODE_ANNOTATION, create_fake_node
from scripts.kubernetes.simulated import SimulatedCluster
from tests.controller.stores.conftest import install_crds
from tests.kubernetes.tcp_proxy import TcpProxy

NAMESPACE = "exo"
LEASE = "exo-controller"
CREDENTIALS = "exo-credentials"
PLATFORM = {
    "deploymentValues": {
        "tolerations": [{"key": FAKE_NODE_ANNOTATION, "operator": "Exists"}],
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}},
    },
    "modelValues": {
        "storage": {"existingClaim": "models"},
        "download": {"resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}},
        "tolerations": [{"key": FAKE_NODE_ANNOTATION, "operator": "Exists"}],
    },
}
_LOOK_SECONDS = 0.02


@dataclass
class HelmRun:
    """One Helm process, as it was seen."""

    controller: str
    pid: int
    verb: str
    release: str
    first: float
    last: float


@dataclass
class Controller:
    """One controller, which has the same name whenever it is started."""

    name: str
    directory: Path
    proxy: TcpProxy
    kubeconfig: Path
    port: int
    metrics_port: int
    process: subprocess.Popen[bytes] | None = None
    is_paused: bool = False

    def start(self) -> None:
        """Start the process."""
        told = {
            "EXO_POD_NAME": self.name,
            "EXO_POD_NAMESPACE": NAMESPACE,
            "EXO_LISTEN_PORT": str(self.port),
            "EXO_METRICS_PORT": str(self.metrics_port),
            "EXO_ZONE": "at-vie-2",
            "EXO_LEASE": LEASE,
            "EXO_CREDENTIALS_SECRET": CREDENTIALS,
            "EXO_GATEWAY_URL": "http://gateway.example",
            "EXO_PLATFORM_FILE": str(self.directory / "platform.json"),
            "TMPDIR": str(self.directory / self.name),
        }
        (self.directory / self.name).mkdir(exist_ok=True)
        command = [sys.executable, "-m", "exo_inference.controller", "--platform=kubernetes"]
        command += [f"--namespace={NAMESPACE}", f"--kubeconfig={self.kubeconfig}"]
        with (self.directory / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *command],
                env={**os.environ, **told},
                stderr=log,
                start_new_session=True,
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """End it and what it started, as the end of a container does."""
        assert self.process is not None, "it was started"
        children = list(self.children())
        self.process.kill()
        for pid, _ in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def children(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the Helm processes it has started: process id and words."""
        assert self.process is not None, "it was started"
        pid = self.process.pid
        try:
            found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return
        for child in found:
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
                if words[0].endswith("helm"):
                    yield int(child), words

    def is_ready(self) -> bool:
        """Whether it says that it answers."""
        try:
            url = f"http://127.0.0.1:{self.metrics_port}/readyz"
            with urllib.request.urlopen(url, timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@dataclass
class SimulatedPlane:
    """The control plane; `start` before anything else, `close` at the end.

    Attributes:
        helm_runs: every Helm that was seen.
        ended: names of controllers that ended without being killed by a test.
    """

    cluster: SimulatedCluster
    directory: Path
    controllers: list[Controller] = field(default_factory=list)
    helm_runs: list[HelmRun] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def api(self) -> ApiClient:
        """An administrator, who does not go through a proxy."""
        return self.cluster.server.client()

    # -- starting and stopping

    def start(self) -> None:
        """Start two controllers and wait until one leads."""
        self.api.create_namespace(NAMESPACE)
        install_crds(self.cluster.server)
        self.add_node()
        self._make_volume()
        (self.directory / "platform.json").write_text(json.dumps(PLATFORM))
        for name in ("controller-1", "controller-2"):
            controller = self._make_controller(name)
            self.controllers.append(controller)
            controller.start()
        self._thread = threading.Thread(target=self._watch, name="watch-controllers", daemon=True)
        self._thread.start()
        wait_for(lambda: all(c.is_ready() for c in self.controllers), "both answer", 60)
        wait_for(lambda: self.leader() is not None, "one leads")

    def close(self) -> None:
        """Stop the controllers."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(10)
        for controller in self.controllers:
            controller.signal(signal.SIGCONT)
            controller.kill()
            controller.proxy.close()

    def add_node(self) -> str:
        """Add a simulated node, and return its name."""
        name = f"node-{len(self.nodes)}"
        create_fake_node(self.api, name, num_gpus=0)
        self.nodes.append(name)
        return name

    def _make_controller(self, name: str) -> Controller:
        server = self.cluster.server
        proxy = TcpProxy(int(server.url.rpartition(":")[2])).start()
        kubeconfig = self.directory / f"kubeconfig.{name}"
        account = dataclasses.replace(server.client(), url=f"https://127.0.0.1:{proxy.port}")
        account.write_kubeconfig(kubeconfig, "admin", NAMESPACE)
        return Controller(name, self.directory, proxy, kubeconfig, free_port(), free_port())

    def _make_volume(self) -> None:
        """Make the claim `models`, and its volume."""
        common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        size = {"storage": "1Gi"}
        path = {"hostPath": {"path": "/nowhere"}}
        volume = {"metadata": {"name": "models"}, "spec": {**common, **path, "capacity": size}}
        self.api.request("POST", "/api/v1/persistentvolumes", volume)
        spec = {**common, "volumeName": "models", "resources": {"requests": size}}
        claim = {"metadata": {"name": "models"}, "spec": spec}
        self.api.request("POST", self.path("persistentvolumeclaims"), claim)

    # -- looking

    def path(self, plural: str, group: str = "v1", name: str = "") -> str:
        """Return the path of a collection or an object of the namespace."""
        root = f"/apis/{group}" if "/" in group else f"/api/{group}"
        return f"{root}/namespaces/{NAMESPACE}/{plural}/{name}".rstrip("/")

    def items(self, plural: str, group: str = "v1", selector: str = "") -> list[Any]:
        """List objects of the namespace."""
        query = f"?labelSelector={selector}" if selector else ""
        return list(self.api.request("GET", self.path(plural, group) + query)["items"])

    def holder(self) -> str:
        """Return which controller has the Lease; empty where none has."""
        try:
            path = self.path("leases", "coordination.k8s.io/v1", LEASE)
            holder = str(self.api.request("GET", path)["spec"].get("holderIdentity") or "")
            return holder.partition("_")[0]
        except ApiError as exc:
            if exc.status_code != 404:
                raise
            return ""

    def leader(self) -> Controller | None:
        """Return the controller that has the Lease."""
        holder = self.holder()
        return next((c for c in self.controllers if c.name == holder), None)

    def client(self, controller: Controller) -> Client:
        """Return a client of one controller."""
        found = self.api.request("GET", self.path("secrets", name=CREDENTIALS))["data"]
        return Client(
            base64.b64decode(found["api-key"]).decode(),
            base64.b64decode(found["api-secret"]).decode(),
            endpoint=f"http://127.0.0.1:{controller.port}/v2",
            timeout_seconds=5.0,
        )

    # -- breaking

    def kill(self, controller: Controller) -> None:
        """Kill a controller; it is started again at once."""
        with self._lock:
            controller.kill()
            controller.start()

    def pause(self, controller: Controller) -> None:
        """Let a controller hang. What it has started goes on."""
        controller.is_paused = True
        controller.signal(signal.SIGSTOP)

    def resume(self, controller: Controller) -> None:
        """Undo `pause`."""
        controller.signal(signal.SIGCONT)
        controller.is_paused = False

    def mend(self) -> None:
        """Undo whatever a test has left broken."""
        self.cluster.server.resume_etcd()
        self.cluster.server.start_api_server()
        for controller in self.controllers:
            controller.proxy.open()
            self.resume(controller)

    def kill_helm_half_way(self, pid: int, release: str) -> bool:
        """Kill a Helm if it is between its first record and its last, otherwise let it go on a little.

        It must be stopped, and is so again afterwards.
        """
        records = self.items("secrets", selector=f"owner=helm,name={release}")
        states = {record["metadata"]["labels"]["status"] for record in records}
        if states & {*PENDING, "uninstalling"}:
            send(pid, signal.SIGKILL)
            return True
        send(pid, signal.SIGCONT)
        time.sleep(0.004)
        send(pid, signal.SIGSTOP)
        return False

    # -- the background

    def _watch(self) -> None:
        running: dict[int, HelmRun] = {}
        while not self._stopping.wait(_LOOK_SECONDS):
            with self._lock:
                self._restart_ended()
                now = time.monotonic()
                for controller in self.controllers:
                    for pid, words in controller.children():
                        if pid not in running:
                            first = min(now, _started_before(pid))
                            run = HelmRun(controller.name, pid, words[1], words[2], first, now)
                            running[pid] = run
                            self.helm_runs.append(run)
                for pid in list(running):
                    if is_alive(pid):
                        running[pid].last = now
                    else:
                        del running[pid]

    def _restart_ended(self) -> None:
        for controller in self.controllers:
            if controller.process is not None and controller.process.poll() is not None:
                self.ended.append(f"{controller.name} ({controller.process.returncode})")
                controller.start()


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _started_before(pid: int) -> float:
    """Return the moment, of the monotonic clock and 10 ms late at most, before which a process has started.

    A look comes late on a busy machine: a Helm is older than the first look that meets it.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return time.monotonic()
    ticks = int(fields[19])  # field 22 of proc_pid_stat(5), in clock ticks since boot
    return (ticks + 1) / os.sysconf("SC_CLK_TCK")


def is_alive(pid: int) -> bool:
    """Whether a process has not ended; one that nobody has waited for yet has."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def wait_for(what: Callable[[], Any], name: str, seconds: float = 30, pause: float = 0.1) -> Any:
    """Wait until it is so, and return it; errors of the API mean not yet."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError, ApiError):
            if found := what():
                return found
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain: {name}"
        time.sleep(pause)
