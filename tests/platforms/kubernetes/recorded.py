"""Objects in the form in which the Kubernetes API (1.36) has them, with the words of its components.

Builders of fakes: no cluster made these. The messages are those of scheduler, kubelet, containerd and
admission.
"""

from __future__ import annotations

import copy
from typing import Any

Object = dict[str, Any]

IMAGE = "ghcr.io/exo-inference/exo-vllm:0.33.0"
STARTED = "2026-11-21T20:00:00Z"
CRASHED = "2026-11-21T20:05:00Z"


def pod(
    *,
    name: str = "exo-1-abc",
    node: str | None = "gpu-1",
    ready: bool = False,
    deleting: bool = False,
    phase: str = "Running",
    conditions: tuple[Object, ...] = (),
    pods_hash: str = "new",
    gpus: int = 1,
    created: str = STARTED,
    **container: Any,
) -> Object:
    """Return a pod; further arguments are fields of its engine's container status."""
    status = {
        "name": "engine",
        "image": IMAGE,
        "imageID": "",
        "ready": ready,
        "started": ready,
        "restartCount": 0,
        "state": {"running": {"startedAt": STARTED}},
        "lastState": {},
        **container,
    }
    found: Object = {
        "metadata": {
            "name": name,
            "uid": f"uid-of-{name}",
            "resourceVersion": "1",
            "creationTimestamp": created,
            "labels": {"inference.exo.dev/deployment-uid": "u1"},
            "annotations": {"inference.exo.dev/pods-hash": pods_hash},
        },
        "spec": {
            "containers": [
                {
                    "name": "engine",
                    "image": IMAGE,
                    "resources": {
                        "limits": {"memory": "16Gi", "nvidia.com/gpu": str(gpus)},
                        "requests": {"cpu": "1", "memory": "16Gi", "nvidia.com/gpu": str(gpus)},
                    },
                    "startupProbe": {"periodSeconds": 5, "failureThreshold": 62},
                }
            ]
        },
        "status": {
            "phase": phase,
            "podIP": "10.0.0.7",
            "conditions": [{"type": "Ready", "status": str(ready)}, *conditions],
            "containerStatuses": [status],
        },
    }
    if node is not None:
        found["spec"]["nodeName"] = node
    else:
        del found["status"]["containerStatuses"], found["status"]["podIP"]
        found["status"]["phase"] = "Pending"
    if deleting:
        found["metadata"]["deletionTimestamp"] = STARTED
    return found


def unscheduled(message: str, reason: str = "Unschedulable") -> Object:
    """Return a pod that the scheduler has no node for."""
    scheduled = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return pod(node=None, conditions=(scheduled,))


def waiting(reason: str, message: str = "") -> Object:
    """Return a pod whose container waits."""
    return pod(phase="Pending", state={"waiting": {"reason": reason, "message": message}})


def crashed(
    exit_code: int, message: str = "", *, reason: str = "Error", restarts: int = 3
) -> Object:
    """Return a pod whose container ended and waits to be started again."""
    ended = {
        "exitCode": exit_code,
        "reason": reason,
        "message": message,
        "startedAt": STARTED,
        "finishedAt": CRASHED,
    }
    text = "back-off 40s restarting failed container=engine pod=exo-1-abc_inference(0a1b)"
    return pod(
        restartCount=restarts,
        state={"waiting": {"reason": "CrashLoopBackOff", "message": text}},
        lastState={"terminated": ended},
    )


def restarted(exit_code: int) -> Object:
    """Return a pod whose container runs again after the kubelet killed it."""
    ended = {"exitCode": exit_code, "reason": "Error", "startedAt": STARTED, "finishedAt": CRASHED}
    return pod(restartCount=1, lastState={"terminated": ended})


def event(reason: str, message: str, *, type_: str = "Warning", at: str = CRASHED) -> Object:
    """Return an event about the pod."""
    return {
        "metadata": {
            "name": f"exo-1-abc.{reason}",
            "creationTimestamp": at,
            "resourceVersion": "2",
        },
        "involvedObject": {"kind": "Pod", "name": "exo-1-abc"},
        "type": type_,
        "reason": reason,
        "message": message,
        "lastTimestamp": at,
        "eventTime": None,
    }


def node(
    name: str = "gpu-1",
    *,
    gpus: int = 0,
    labels: Object | None = None,
    ready: str = "True",
    closed: bool = False,
    cpu: str = "16",
) -> Object:
    """Return a node."""
    allocatable = {"cpu": cpu, "memory": "64Gi", "pods": "110"}
    if gpus:
        allocatable["nvidia.com/gpu"] = str(gpus)
    found: Object = {
        "metadata": {"name": name, "resourceVersion": "1", "labels": dict(labels or {})},
        "spec": {"unschedulable": True} if closed else {},
        "status": {
            "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": ready, "message": "the kubelet said so"}],
        },
    }
    return found


def deployment(**changes: Any) -> Object:
    """Return a Deployment as the chart makes it; `labels`, `annotations`, `conditions`, `replicas`."""
    return {
        "metadata": {
            "name": "exo-u1",
            "resourceVersion": "1",
            "labels": {"inference.exo.dev/spec-hash": "s", **changes.get("labels", {})},
            "annotations": changes.get("annotations", {}),
        },
        "spec": {
            "replicas": changes.get("replicas", 1),
            "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {
                "metadata": {"annotations": {"inference.exo.dev/pods-hash": "new"}},
                "spec": {},
            },
        },
        "status": {"conditions": list(changes.get("conditions", ()))},
    }


def copy_of(item: Object) -> Object:
    return copy.deepcopy(item)
