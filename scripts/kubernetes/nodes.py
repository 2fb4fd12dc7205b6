"""Nodes of a test cluster as the API has them: readiness, and simulated ones with GPUs.

Simulated nodes are played by KWOK: pods on them become ready without a process. They carry a taint,
so only pods that tolerate it go there. Used by `cluster`, tests and benchmarks.
"""

from __future__ import annotations

from collections.abc import Mapping

from scripts.kubernetes.client import ApiClient, ApiError

FAKE_NODE_ANNOTATION = "kwok.x-k8s.io/node"
"""On a node, with the value `fake`: KWOK plays it. Also the key of its taint."""


def node_is_ready(api: ApiClient, name: str) -> bool:
    """Say whether a node exists and is ready."""
    try:
        conditions = api.request("GET", f"/api/v1/nodes/{name}")["status"].get("conditions", [])
    except ApiError:
        return False
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def create_fake_node(
    api: ApiClient, name: str, num_gpus: int = 8, labels: Mapping[str, str] | None = None
) -> None:
    """Create one simulated node.

    Args:
        api: an administrator.
        name: of the node.
        num_gpus: how many `nvidia.com/gpu` it says it has.
        labels: further labels, such as the GPU's type.
    """
    capacity = {"cpu": "64", "memory": "512Gi", "pods": "200", "nvidia.com/gpu": str(num_gpus)}
    body = {
        "metadata": {
            "name": name,
            "annotations": {FAKE_NODE_ANNOTATION: "fake"},
            "labels": {"kubernetes.io/hostname": name, "type": "kwok", **(labels or {})},
        },
        "spec": {
            "taints": [{"key": FAKE_NODE_ANNOTATION, "value": "fake", "effect": "NoSchedule"}]
        },
        "status": {"capacity": capacity, "allocatable": capacity},
    }
    api.request("POST", "/api/v1/nodes", body)
