"""What one Helm costs: as it comes, and with each thing that the platform does about it.

In a namespace of its own, which no controller looks at, and with 0 replicas, so that nothing but Helm
and the API server has work to do.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import uuid
from pathlib import Path

from benchmarks.kubernetes_scale.plane import GPU_TYPE, MODEL, Plane
from benchmarks.kubernetes_scale.report import HelmCost
from exo_inference.platforms.base import DesiredDeployment
from exo_inference.platforms.kubernetes.helm import GO_ENVIRONMENT, find_helm
from exo_inference.platforms.kubernetes.names import DEPLOYMENT_CHART
from exo_inference.platforms.kubernetes.release_values import Release, build_release
from exo_inference.platforms.kubernetes.settings import PlatformValues
from exo_inference.resources import DeploymentSpec, EngineRef

NAMESPACE = "helm-costs"
_CHART = Path(__file__).parents[2] / "charts" / DEPLOYMENT_CHART
_TIMES = 5
_SKIP = ("--disable-openapi-validation",)
_VARIANTS: tuple[tuple[str, tuple[str, ...], dict[str, str]], ...] = (
    ("as it comes", (), {}),
    ("objects not compared with the cluster's schemas", _SKIP, {}),
    ("and no garbage collection below the limit", _SKIP, GO_ENVIRONMENT),
)


def measure(plane: Plane) -> tuple[HelmCost, ...]:
    """Install and upgrade a few releases in every way."""
    plane.admin.create_namespace(NAMESPACE)
    kubeconfig = plane.cluster.server.kubeconfig("admin", NAMESPACE)
    home = kubeconfig.parent / NAMESPACE
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "KUBECONFIG": str(kubeconfig)}
    _upgrade(_release(str(uuid.uuid4()), ""), (), environment)  # discovery is kept from here on
    found = []
    for name, words, more in _VARIANTS:
        uids = [str(uuid.uuid4()) for _ in range(_TIMES)]
        both = [
            [_upgrade(_release(uid, flag), words, {**environment, **more}) for uid in uids]
            for flag in ("--max-num-seqs=1", "--max-num-seqs=2")
        ]
        found.append(HelmCost(name, *(statistics.median(taken) for taken in both)))
    return tuple(found)


def _release(uid: str, flag: str) -> Release:
    spec = DeploymentSpec(
        model=MODEL,
        gpu_type=GPU_TYPE,
        replicas=0,
        engine=EngineRef(name="exo"),
        engine_parameters=(flag,) if flag else (),
    )
    desired = DesiredDeployment(uid, "costs", spec, "pvc:models", model_size_bytes=1)
    return build_release(desired, PlatformValues())


def _upgrade(release: Release, words: tuple[str, ...], environment: dict[str, str]) -> float:
    """Return the processor seconds of one Helm."""
    command = [find_helm(os.environ), "upgrade", release.name, str(_CHART), "--install"]
    process = subprocess.Popen(
        [*command, "--values=-", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=environment,
        text=True,
    )
    assert process.stdin is not None, "it is a pipe"
    with process.stdin as stdin:
        json.dump(release.values, stdin)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"Helm failed with status {process.returncode}")
    return usage.ru_utime + usage.ru_stime
