"""A whole cluster: our images run on its node, simulated nodes take what needs many GPUs."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import exo_inference
from scripts.kubernetes.nodes import create_fake_node
from tests.kubernetes_api import KubernetesCluster

MODEL = Path(exo_inference.__file__).parent / "hub" / "builtin_models" / "tiny-chat"
CONTROL_PLANE_IMAGE = "localhost/exo-inference:0.1.0"
ENGINE_IMAGE = "localhost/exo-engine:0.1.0"

TOOLS = ["apt-get", "dpkg", "pip", "pip3", "gcc", "cc", "ld", "perl", "su", "mount", "curl"]

RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def wait_for(is_so: Callable[[], bool], what: str, seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.2)


def pod(name: str, container: dict[str, Any], **spec: Any) -> str:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "automountServiceAccountToken": False,
            # Of an image's USER only the user counts, and a group cannot be named alone.
            "securityContext": {"runAsUser": 65532, "runAsGroup": 65532},
            "containers": [
                {
                    "name": "main",
                    "securityContext": RESTRICTED,
                    "imagePullPolicy": "IfNotPresent",
                    **container,
                }
            ],
            **spec,
        },
    }
    return json.dumps(body)


def status_of(cluster: KubernetesCluster, name: str) -> dict[str, Any]:
    return json.loads(cluster.kubectl("get", "pod", name, "-o", "json").stdout)["status"]


def condition(status: dict[str, Any], kind: str) -> dict[str, str]:
    found = [item for item in status.get("conditions", []) if item["type"] == kind]
    return found[0] if found else {}


def run_pod(cluster: KubernetesCluster, container: dict[str, Any], **spec: Any) -> str:
    """Run a pod to its end, which must be a good one, and return what it printed."""
    manifest = pod("run", container, restartPolicy="Never", **spec)
    cluster.kubectl("apply", "-f", "-", stdin=manifest)
    wait_for(
        lambda: status_of(cluster, "run")["phase"] in ("Succeeded", "Failed"), "it has ended", 90
    )
    said = cluster.kubectl("logs", "run").stdout
    assert status_of(cluster, "run")["phase"] == "Succeeded", said
    return said


@pytest.fixture
def model_claim(kubernetes_cluster: KubernetesCluster) -> str:
    """A claim bound to a volume with the built-in model."""
    name = kubernetes_cluster.namespace
    size = {"storage": "1Gi"}
    common = {"accessModes": ["ReadOnlyMany"], "storageClassName": "", "volumeName": name}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": size,
            "accessModes": ["ReadOnlyMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(MODEL), "type": "Directory"},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "model"},
        "spec": {**common, "resources": {"requests": size}},
    }
    for body in (volume, claim):
        kubernetes_cluster.kubectl("apply", "-f", "-", stdin=json.dumps(body))
    return "model"


def test_the_real_node_is_ready_and_has_gpus(kubernetes_cluster: KubernetesCluster) -> None:
    node = kubernetes_cluster.request("GET", "/api/v1/nodes/real-0")
    assert condition(node["status"], "Ready")["status"] == "True"
    wait_for(
        lambda: (
            kubernetes_cluster.request("GET", "/api/v1/nodes/real-0")["status"]["allocatable"].get(
                "nvidia.com/gpu"
            )
            == "4"
        ),
        "the kubelet takes the GPUs over",
    )


def test_exo_engine_answers_from_a_restricted_pod(
    kubernetes_cluster: KubernetesCluster, model_claim: str
) -> None:
    container = {
        "image": ENGINE_IMAGE,
        "env": [
            {"name": "EXO_SERVED_MODEL_NAME", "value": "exo/tiny-chat"},
            {"name": "EXO_PARAMETERS_FILE", "value": "/tmp/none.json"},
        ],
        "ports": [
            {"name": "http", "containerPort": 8000},
            {"name": "probes", "containerPort": 8001},
        ],
        "startupProbe": {
            "httpGet": {"path": "/health", "port": "probes"},
            "periodSeconds": 1,
            "failureThreshold": 120,
        },
        "readinessProbe": {"httpGet": {"path": "/health", "port": "probes"}, "periodSeconds": 1},
        "livenessProbe": {"httpGet": {"path": "/live", "port": "probes"}},
        "resources": {"limits": {"memory": "2Gi", "nvidia.com/gpu": "1"}},
        "volumeMounts": [
            {"name": "model", "mountPath": "/model", "readOnly": True},
            {"name": "scratch", "mountPath": "/tmp"},
        ],
    }
    volumes = [
        {"name": "model", "persistentVolumeClaim": {"claimName": model_claim, "readOnly": True}},
        {"name": "scratch", "emptyDir": {}},
    ]
    manifest = pod("engine", container, volumes=volumes, terminationGracePeriodSeconds=300)
    kubernetes_cluster.kubectl("apply", "-f", "-", stdin=manifest)
    wait_for(
        lambda: condition(status_of(kubernetes_cluster, "engine"), "Ready").get("status") == "True",
        "the engine is ready",
    )
    question = {
        "model": "exo/tiny-chat",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 8,
    }
    request = urllib.request.Request(
        f"http://{status_of(kubernetes_cluster, 'engine')['podIP']}:8000/v1/chat/completions",
        data=json.dumps(question).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        body = json.loads(answer.read())
    assert body["model"] == "exo/tiny-chat"
    assert body["choices"][0]["message"]["content"].strip()
    assert "ready" in kubernetes_cluster.kubectl("logs", "engine").stdout
    # It drains: SIGKILL would come after 300 s.
    kubernetes_cluster.kubectl("delete", "pod", "engine", "--wait=true", timeout=200)


def test_an_engine_without_its_settings_says_why_it_ended(
    kubernetes_cluster: KubernetesCluster,
) -> None:
    manifest = pod("engine", {"image": ENGINE_IMAGE}, restartPolicy="Never")
    kubernetes_cluster.kubectl("apply", "-f", "-", stdin=manifest)
    wait_for(
        lambda: status_of(kubernetes_cluster, "engine")["phase"] == "Failed", "the pod has failed"
    )
    ended = status_of(kubernetes_cluster, "engine")["containerStatuses"][0]["state"]["terminated"]
    assert ended["exitCode"] == 78
    assert ended["message"].strip() == "exo-adapter: error: EXO_SERVED_MODEL_NAME is not set"


@pytest.mark.parametrize("program", ["exo_inference.controller", "exo_inference.gateway"])
def test_the_control_planes_programs_start_in_a_restricted_pod(
    kubernetes_cluster: KubernetesCluster, program: str
) -> None:
    container = {"image": CONTROL_PLANE_IMAGE, "args": [program, "--help"]}
    assert "usage:" in run_pod(kubernetes_cluster, container)


def test_the_control_planes_image_brings_helm(kubernetes_cluster: KubernetesCluster) -> None:
    container = {"image": CONTROL_PLANE_IMAGE, "command": ["helm", "version", "--short"]}
    assert run_pod(kubernetes_cluster, container).startswith("v3.")


def test_a_pod_reaches_the_api_with_the_token_of_its_service_account(
    kubernetes_cluster: KubernetesCluster,
) -> None:
    script = """
from kubernetes import client, config
config.load_incluster_config()
try:
    client.CoreV1Api().list_namespace()
except client.ApiException as exc:
    print(exc.status, client.AuthenticationV1Api().create_self_subject_review({}).status.user_info.username)
"""
    container = {"image": CONTROL_PLANE_IMAGE, "command": ["python", "-c", script]}
    said = run_pod(kubernetes_cluster, container, automountServiceAccountToken=True)
    namespace = kubernetes_cluster.namespace
    assert said.strip() == f"403 system:serviceaccount:{namespace}:default"


@pytest.mark.parametrize("image", [CONTROL_PLANE_IMAGE, ENGINE_IMAGE])
def test_an_image_holds_only_what_runs(kubernetes_cluster: KubernetesCluster, image: str) -> None:
    script = f"""
import json, os, shutil
tools = {TOOLS}
found = [tool for tool in tools if shutil.which(tool, path='/usr/sbin:/sbin:' + os.environ['PATH'])]
modes = [(path, os.stat(path).st_mode) for base, _, names in os.walk('/usr')
         for path in (os.path.join(base, name) for name in names) if os.path.isfile(path)]
print(json.dumps({{
    'tools': found,
    'set-user-id': [path for path, mode in modes if mode & 0o6000],
    'writable': os.access('/opt/exo', os.W_OK) or os.access('/etc', os.W_OK),
    'ids': [os.getuid(), os.getgid()],
}}))
"""
    container = {"image": image, "command": ["python3", "-c", script]}
    said = json.loads(run_pod(kubernetes_cluster, container))
    assert said == {"tools": [], "set-user-id": [], "writable": False, "ids": [65532, 65532]}


def test_a_pod_that_may_become_root_is_refused(kubernetes_cluster: KubernetesCluster) -> None:
    container = {"image": ENGINE_IMAGE, "securityContext": {"runAsUser": 0}}
    refused = kubernetes_cluster.kubectl(
        "apply", "-f", "-", stdin=pod("root", container), check=False
    )
    assert 'violates PodSecurity "restricted:latest"' in refused.stderr


def test_simulated_nodes_take_pods_until_their_gpus_are_gone(
    kubernetes_cluster: KubernetesCluster,
) -> None:
    name = f"gpu-{kubernetes_cluster.namespace}"
    create_fake_node(kubernetes_cluster.client, name, num_gpus=2, labels={"gpu": name})
    try:
        for index in range(3):
            manifest = pod(
                f"replica-{index}",
                {"image": ENGINE_IMAGE, "resources": {"limits": {"nvidia.com/gpu": "1"}}},
                nodeSelector={"gpu": name},
                tolerations=[{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
            )
            kubernetes_cluster.kubectl("apply", "-f", "-", stdin=manifest)

        def statuses() -> list[dict[str, Any]]:
            return [status_of(kubernetes_cluster, f"replica-{index}") for index in range(3)]

        wait_for(
            lambda: [status["phase"] for status in statuses()].count("Running") == 2,
            "two of them run",
        )
        wait_for(
            lambda: any(
                "Insufficient nvidia.com/gpu"
                in condition(status, "PodScheduled").get("message", "")
                for status in statuses()
            ),
            "the third says what it lacks",
        )
    finally:
        kubernetes_cluster.kubectl("delete", "node", name)


def test_a_daemon_that_dies_is_started_again(kubernetes_cluster: KubernetesCluster) -> None:
    control = kubernetes_cluster.control
    before = control.pid("kube-apiserver")
    control.kill("kube-apiserver")
    control.wait_ready(kubernetes_cluster.client)
    assert control.pid("kube-apiserver") not in (None, before)


def test_an_outage_lasts_until_it_is_ended(kubernetes_cluster: KubernetesCluster) -> None:
    kubernetes_cluster.control.stop("kube-apiserver")
    time.sleep(1)  # several looks of the supervisor
    with pytest.raises(OSError, match="refused"):
        kubernetes_cluster.request("GET", "/readyz")
    kubernetes_cluster.control.start("kube-apiserver")
    kubernetes_cluster.control.wait_ready(kubernetes_cluster.client)
