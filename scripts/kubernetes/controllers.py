"""The cluster's own controllers beside an API server: controller-manager, scheduler, and KWOK.

KWOK plays the nodes that carry `nodes.FAKE_NODE_ANNOTATION`, and the pods on them. Used by `cluster`,
and by `simulated`, where there are no other nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.kubernetes import binaries
from scripts.kubernetes.api_server import ApiServer
from scripts.kubernetes.nodes import FAKE_NODE_ANNOTATION
from scripts.kubernetes.processes import Daemon

PROGRAMS = ("kube-controller-manager", "kube-scheduler", "kwok")


def controllers(
    server: ApiServer,
    programs: Mapping[str, Path],
    kubeconfig: Path,
    options: Mapping[str, Sequence[str]] | None = None,
) -> list[Daemon]:
    """Return the daemons, not started.

    Args:
        server: the API server.
        programs: where `PROGRAMS` are.
        kubeconfig: of an administrator.
        options: further options, by program.
    """
    config = f"--kubeconfig={kubeconfig}"
    commands = {
        "kube-controller-manager": [
            config,
            f"--service-account-private-key-file={server.service_account_key}",
            f"--root-ca-file={server.certificate}",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            # A node that is lost should be seen within a test's patience, not after 50 s. The
            # kubelet says every 4 s that it lives, KWOK every 10 s.
            "--node-monitor-period=2s",
            "--node-monitor-grace-period=20s",
        ],
        "kube-scheduler": [config, "--leader-elect=false"],
        "kwok": [
            config,
            "--manage-all-nodes=false",
            f"--manage-nodes-with-annotation-selector={FAKE_NODE_ANNOTATION}=fake",
            "--node-lease-duration-seconds=40",
            *(f"--config={path}" for path in _stages()),
        ],
    }
    more = options or {}
    return [
        Daemon(name, [programs[name], *words, *more.get(name, ())], server.logs)
        for name, words in commands.items()
    ]


def _stages() -> list[Path]:
    """Return the files that say how simulated nodes and their pods behave."""
    stages = binaries.data_of("kwok", "stages")
    return [
        stages / "node" / "fast" / "node-initialize.yaml",
        stages / "node" / "heartbeat-with-lease" / "node-heartbeat-with-lease.yaml",
        *sorted((stages / "pod" / "fast").glob("pod-*.yaml")),
    ]
