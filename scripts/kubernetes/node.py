"""The one real node of a test cluster: containerd, the network of its pods, and the kubelet.

Made for a machine that is itself a sandbox: cgroups of either version, no CAP_SYS_RESOURCE, no route to
anywhere. Images are imported from archives, never pulled. Used by `cluster`, within its namespaces.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from scripts.kubernetes.processes import Daemon

NODE_NAME = "real-0"
NODE_ADDRESS = "10.99.0.1"
PAUSE_IMAGE = "localhost/pause:1"
POD_NETWORK = "10.244.0.0/24"
_CGROUPS = Path("/sys/fs/cgroup")
_GONE_SECONDS = 10


class Node:
    """containerd and kubelet.

    Args:
        directory: for everything they keep.
        programs: where `containerd`, `ctr` and `kubelet` are.
        kubeconfig: that the kubelet registers with.
        cgroup: cgroup of all pods, as in `/exo-test-1234`.
        logs: directory of logs.
    """

    def __init__(
        self,
        directory: Path,
        programs: Mapping[str, Path],
        kubeconfig: Path,
        cgroup: str,
        logs: Path,
    ) -> None:
        self._directory = directory
        self._programs = programs
        self._cgroup = cgroup
        self._socket = directory / "containerd.sock"
        config = directory / "containerd.toml"
        self.containerd = Daemon("containerd", [programs["containerd"], "--config", config], logs)
        self.kubelet = Daemon("kubelet", self._kubelet_command(kubeconfig), logs)

    def start_containerd(self) -> None:
        """Start containerd and wait until it answers."""
        (self._directory / "cni").mkdir(parents=True, exist_ok=True)
        (self._directory / "containerd.toml").write_text(self._containerd_config())
        (self._directory / "cni" / "10-pods.conflist").write_text(json.dumps(_pod_network()))
        self.containerd.start()
        self.containerd.wait_until(lambda: self._ctr("version").returncode == 0)

    def import_images(self, archives: Iterable[Path]) -> None:
        """Make OCI archives available under the names they carry."""
        for archive in archives:
            result = self._ctr("--namespace=k8s.io", "image", "import", "--local", str(archive))
            if result.returncode:
                raise RuntimeError(f"cannot import {archive}: {result.stderr.strip()[-500:]}")

    def start_kubelet(self) -> None:
        """Start the kubelet; the node is ready some seconds later."""
        (self._directory / "kubelet.json").write_text(json.dumps(self._kubelet_config()))
        self.kubelet.start()

    def _ctr(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [str(self._programs["ctr"]), f"--address={self._socket}", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def _containerd_config(self) -> str:
        return f"""version = 3
root = "{self._directory}/containerd"
state = "{self._directory}/containerd-state"
[grpc]
  address = "{self._socket}"
[ttrpc]
  address = "{self._socket}.ttrpc"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{PAUSE_IMAGE}"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "{self._directory}/cni"
"""

    def _kubelet_command(self, kubeconfig: Path) -> list[str | Path]:
        return [
            self._programs["kubelet"],
            f"--config={self._directory}/kubelet.json",
            f"--kubeconfig={kubeconfig}",
            f"--root-dir={self._directory}/kubelet",
            f"--cert-dir={self._directory}/kubelet/pki",
            f"--hostname-override={NODE_NAME}",
            f"--node-ip={NODE_ADDRESS}",
        ]

    def _kubelet_config(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "podLogsDir": f"{self._directory}/pod-logs",
            "nodeLeaseDurationSeconds": 16,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self._cgroup,
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "evictionHard": {},
            "localStorageCapacityIsolation": False,
            # The machine does not let the kubelet raise limits or lower OOM scores.
            "featureGates": {"KubeletInUserNamespace": True},
            # Only the API server can reach it: all is in one network namespace.
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "clusterDNS": ["10.96.0.10"],  # pods want one, though nobody answers there
            "clusterDomain": "cluster.local",
            "shutdownGracePeriod": "0s",
        }


def create_cgroup(name: str) -> None:
    """Create the cgroup that holds all pods, in every hierarchy there is."""
    for hierarchy in _hierarchies():
        (hierarchy / name.lstrip("/")).mkdir(exist_ok=True)
        _fill_cpuset(hierarchy / name.lstrip("/"))


def remove_cgroup(name: str) -> None:
    """Remove it again; processes in it that were just killed may take a moment to go."""
    deadline = time.monotonic() + _GONE_SECONDS
    while True:
        try:
            _remove_directories(name)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def _remove_directories(name: str) -> None:
    for hierarchy in _hierarchies():
        top = hierarchy / name.lstrip("/")
        directories = [path for path in top.rglob("*") if path.is_dir()] if top.is_dir() else []
        for path in sorted([top, *directories], key=lambda path: -len(path.parts)):
            if path.is_dir():
                path.rmdir()


def _hierarchies() -> list[Path]:
    if (_CGROUPS / "cgroup.controllers").is_file():
        return [_CGROUPS]
    return [path for path in _CGROUPS.iterdir() if path.is_dir() and not path.is_symlink()]


def _fill_cpuset(path: Path) -> None:
    """Version 1 only: a new cpuset is empty, and nothing may run in it until it has its parent's."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        parent = path.parent / name
        if parent.is_file() and not (path / name).read_text().strip():
            (path / name).write_text(parent.read_text())


def _pod_network() -> dict[str, object]:
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": POD_NETWORK}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [{**bridge, "ipam": addresses}]}
