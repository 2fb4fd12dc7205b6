"""What was refused for want of a node is looked at again at once when one comes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from exo_inference.engines import engines_on
from tests.controller.control_plane_processes import MERGE, ControlPlane, alone, wait_for

__all__ = ["alone"]

pytestmark = pytest.mark.kubernetes

LABELS = {"nvidia.com/gpu.product": "NVIDIA-RTX-A5000", "nvidia.com/gpu.memory": "24564"}
SECONDS = 30.0
"""Below the 60 s after which everything is looked at again; the work itself takes a moment."""


@pytest.fixture
def plane(alone: ControlPlane) -> ControlPlane:
    alone.start("controller-1")
    wait_for(lambda: alone.processes[0].is_leading, seconds=40)
    return alone


def make_gpu_node(plane: ControlPlane, name: str, *, gpus: int) -> None:
    client = plane.api.client
    client.request("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": LABELS}})
    offered = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": str(gpus)}
    status = {
        "allocatable": offered,
        "capacity": offered,
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    client.request("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, MERGE)


def in_time(what: Callable[[], Any]) -> None:
    began = time.monotonic()
    wait_for(what, seconds=60)
    assert time.monotonic() - began < SECONDS


def test_an_object_without_a_node_is_admitted_when_one_comes(plane: ControlPlane) -> None:
    plane.create_ready_model(plane.processes[0])
    plane.apply("chat", gpuType="gpua5000", gpuCount=2, engine={"name": "vllm"})
    refused = wait_for(lambda: plane.conditions("chat").get("Admitted"))
    assert (refused["status"], refused["message"]) == (
        "False",
        "gpu-type is 'gpua5000', expected one of: cpu",
    )
    make_gpu_node(plane, "small", gpus=1)
    in_time(lambda: "the largest has 1" in plane.conditions("chat")["Admitted"]["message"])
    make_gpu_node(plane, "large", gpus=2)
    in_time(lambda: plane.conditions("chat")["Admitted"]["message"] == "")
    assert plane.conditions("chat")["Admitted"]["status"] == "True"
    assert plane.call(plane.processes[0], "GET", "/ai/instance-type")["instance-types"][0] == {
        "family": "gpua5000",
        "authorized": True,
        "total-gpus": 3,
        "free-gpus": 3,
        "description": "NVIDIA RTX A5000, 24564 MiB, on 2 nodes, at most 2 on one",
        "max-gpu-count": 2,
        "engines": list(engines_on("gpu")),
    }
