"""A real Kubernetes in namespaces of its own: control plane, one real node, simulated GPU nodes.

    python -m scripts.kubernetes.cluster [--image NAME]... [--former COMMIT] -- COMMAND...

builds what is missing, imports those of the project's images, and runs COMMAND beside the cluster, in its
network, with KUBECONFIG and EXO_TEST_CLUSTER (the directory that `control` works on), and ends with its
status. With --former the images of that commit are there too, tagged with it, and EXO_TEST_FORMER names
the directory of its files, which is named as the commit. Everything is in one network, mount and process
namespace and in one directory, so nothing outlives the command, however it ends. Daemons that die are
started again after a moment, as an init system would, unless `control` has stopped them.

Not there: names (DNS), a way out of the namespace, enforcement of NetworkPolicy.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from scripts.kubernetes import binaries, images, node, prerequisites
from scripts.kubernetes.api_server import ApiServer, Network
from scripts.kubernetes.control import CLUSTER_VARIABLE, FORMER_VARIABLE, Control
from scripts.kubernetes.controllers import controllers
from scripts.kubernetes.nodes import node_is_ready
from scripts.kubernetes.processes import Daemon, DaemonFailed

_INSIDE = "EXO_TEST_CLUSTER_INSIDE"
_PREFIX = "exo-cluster-"
_POD_NETWORKS = "10.244.0.0/16"
_NUM_REAL_GPUS = 4
_ERRORS = (
    prerequisites.PrerequisiteMissing,
    binaries.ProgramsMissing,
    binaries.BuildFailed,
    images.BuildFailed,
    DaemonFailed,
)


class Cluster:
    """All daemons of one cluster; to be used within its namespaces.

    Args:
        directory: for everything it keeps.
        programs: where the programs are.
        cgroup: cgroup of all pods.
    """

    def __init__(self, directory: Path, programs: dict[str, Path], cgroup: str) -> None:
        self.directory = directory
        self._programs = programs
        self._network = Network(node.NODE_ADDRESS, 6443)
        self.server = ApiServer(directory, programs, self._network)
        self._cgroup = cgroup
        self.control = Control(directory)

    def start(self, archives: Sequence[Path]) -> Path:
        """Start everything and wait until the real node is ready; return the kubeconfig.

        Raises:
            DaemonFailed
        """
        _set_up_network()
        self.server.start()
        kubeconfig = self.server.kubeconfig()
        real = node.Node(
            self.directory / "node", self._programs, kubeconfig, self._cgroup, self.server.logs
        )
        others = [
            *controllers(self.server, self._programs, kubeconfig),
            self._proxy(kubeconfig),
        ]
        for daemon in others:
            daemon.start()
        real.start_containerd()
        real.import_images(archives)
        real.start_kubelet()
        real.kubelet.wait_until(lambda: node_is_ready(self.server.client(), node.NODE_NAME))
        self._give_gpus()
        self.control.supervise(
            [self.server.etcd, self.server.api_server, real.containerd, real.kubelet, *others]
        )
        return kubeconfig

    def _proxy(self, kubeconfig: Path) -> Daemon:
        options = [
            f"--kubeconfig={kubeconfig}",
            "--proxy-mode=iptables",
            f"--cluster-cidr={_POD_NETWORKS}",
            f"--hostname-override={node.NODE_NAME}",
            "--conntrack-max-per-core=0",
            "--conntrack-min=0",
            "--iptables-min-sync-period=100ms",
        ]
        return Daemon("kube-proxy", [self._programs["kube-proxy"], *options], self.server.logs)

    def _give_gpus(self) -> None:
        """Let the real node say that it has GPUs; pods that ask for them really run.

        An extended resource needs no device plugin.
        """
        body = [
            {"op": "add", "path": f"/status/{kind}/nvidia.com~1gpu", "value": str(_NUM_REAL_GPUS)}
            for kind in ("capacity", "allocatable")
        ]
        path = f"/api/v1/nodes/{node.NODE_NAME}/status"
        self.server.client().request("PATCH", path, body, "application/json-patch+json")


def _set_up_network() -> None:
    """Give the namespace an address that is not loopback; a bridge without members will do."""
    for words in (
        "link set lo up",
        "link add node0 type bridge",
        f"addr add {node.NODE_ADDRESS}/32 dev node0",
        "link set node0 up",
        "route add default dev node0",
    ):
        subprocess.run(["ip", *words.split()], check=True)


def run_inside(archives: Sequence[Path], command: Sequence[str], directory: Path) -> int:
    """Start the cluster in the namespaces that this process is in, and run the command."""
    programs = binaries.require(binaries.all_programs())
    # containerd looks for its shim and for runc on the PATH.
    shims = str(programs["containerd-shim-runc-v2"].parent)
    os.environ["PATH"] = f"{shims}:{os.environ['PATH']}:/usr/sbin:/sbin"
    cluster = Cluster(directory, programs, _cgroup_of(directory))
    kubeconfig = cluster.start(archives)
    environment = {
        **os.environ,
        "KUBECONFIG": str(kubeconfig),
        CLUSTER_VARIABLE: str(directory),
        "PATH": f"{programs['kubectl'].parent}:{os.environ['PATH']}",
    }
    status = subprocess.run(command, env=environment, check=False).returncode
    if status and (kept := os.environ.get("EXO_TEST_CLUSTER_LOGS")):
        shutil.copytree(cluster.server.logs, kept, dirs_exist_ok=True)
    return status


def run(image_names: Sequence[str], command: Sequence[str], former: str = "") -> int:
    """Make namespaces, run everything in them, and remove what processes cannot take along.

    Args:
        image_names: of images that the node shall have.
        command: to run beside the cluster.
        former: a commit whose images it shall have besides; empty is none.

    Raises:
        PrerequisiteMissing, BuildFailed
    """
    prerequisites.ensure(prerequisites.CLUSTER, "run a cluster")
    prerequisites.fetch_unpacked(binaries.cache_dir())  # inside nothing can be fetched
    binaries.build(binaries.all_programs())
    archives = [images.build_pause()]
    if image_names:
        archives += images.build(image_names, offline=True)
    _remove_stale()
    directory, lock = _make_directory()
    environment = {**os.environ, _INSIDE: str(directory)}
    if former:
        tree = former_tree(former, directory)
        archives += images.build_former(tree.name, tree)
        environment[FORMER_VARIABLE] = str(tree)
    node.create_cgroup(_cgroup_of(directory))
    words = [f"--archive={archive}" for archive in archives]
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        return subprocess.run(
            [
                *("setpriv", "--pdeathsig", "KILL", "--"),
                *("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
                *("--", sys.executable, "-m", "scripts.kubernetes.cluster", *words, "--", *command),
            ],
            env=environment,
            check=False,
        ).returncode
    finally:
        _remove(directory)
        lock.close()


def former_tree(revision: str, directory: Path) -> Path:
    """Write the files of a commit into a directory named as the commit.

    Raises:
        BuildFailed: git does not have it.
    """
    git = ["git", "-C", str(images.ROOT)]
    try:
        found = subprocess.run(
            [*git, "rev-parse", "--short=7", f"{revision}^{{commit}}"],
            capture_output=True,
            text=True,
            check=True,
        )
        tree = directory / "former" / found.stdout.strip()
        tree.mkdir(parents=True)
        files = subprocess.run(
            [*git, "archive", "--format=tar", tree.name], capture_output=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as exc:
        raise images.BuildFailed(f"cannot read the commit {revision}: {exc}") from exc
    subprocess.run(["tar", "--extract", f"--directory={tree}"], input=files.stdout, check=True)
    return tree


def _make_directory() -> tuple[Path, IO[str]]:
    """Return a new directory and its lock, which is held before anybody can find the directory."""
    new = Path(tempfile.mkdtemp(prefix="exo-new-"))
    lock = (new / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return new.rename(new.with_name(_PREFIX + new.name.removeprefix("exo-new-"))), lock


def _remove_stale() -> None:
    """Remove what runs left that were killed themselves; their processes ended with them."""
    for directory in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), (directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails where a run still holds it
            _remove(directory)


def _remove(directory: Path) -> None:
    node.remove_cgroup(_cgroup_of(directory))
    shutil.rmtree(directory, ignore_errors=True)


def _cgroup_of(directory: Path) -> str:
    return f"/{directory.name}"


def main(arguments: list[str]) -> int:
    """Run a command beside a cluster."""
    parser = argparse.ArgumentParser(prog="cluster", description=__doc__)
    parser.add_argument("--image", action="append", default=[], help="name of a project's image")
    parser.add_argument("--former", default="", help="commit whose images are wanted besides")
    parser.add_argument("--archive", type=Path, action="append", default=[], help="(internal)")
    parser.add_argument("command", nargs="+", help="what to run; put -- before it")
    options = parser.parse_args(arguments)
    try:
        if directory := os.environ.pop(_INSIDE, None):
            return run_inside(options.archive, options.command, Path(directory))
        return run(options.image, options.command, options.former)
    except _ERRORS as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
