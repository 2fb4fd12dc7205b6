"""Models without weights are for simulated GPUs, and what runs there says so."""

from __future__ import annotations

import json

import pytest

from exo_inference.controller.admission import admit_create
from exo_inference.controller.admission.bodies import read_wanted
from exo_inference.controller.admission.problems import Refused
from exo_inference.controller.admission.world import World
from exo_inference.controller.http.body import parse_object
from exo_inference.controller.reconcile import decision
from exo_inference.planner import find_gpu
from exo_inference.platforms.base import (
    InstanceTypeInfo,
    ObservedDeployment,
    ObservedReplica,
    ReplicaPhase,
)
from exo_inference.resources import find_condition
from exo_inference.simulated_gpus import MODEL_REVISION
from exo_inference.wire import CreateDeployment
from tests.controller import builders

CPU = InstanceTypeInfo("cpu", 2, 2)
REAL = InstanceTypeInfo("gpu3", 2, 2, gpu=find_gpu("gpu3"))
SIMULATED = InstanceTypeInfo(
    "gpua5000", 4, 4, gpu=find_gpu("gpua5000"), engine="vllm", simulated=True
)


def admit(family: str, *families: InstanceTypeInfo) -> str:
    """Ask for a deployment of a simulated model; return the engine it gets."""
    model = builders.ready_model()
    status = model.status.model_copy(update={"revision": MODEL_REVISION})
    world = World((model.model_copy(update={"status": status}),), (), families)
    body = {"name": "chat", "model": {"name": "org/m1"}, "gpu-type": family, "gpu-count": 1}
    wanted, issues = read_wanted(CreateDeployment, parse_object(json.dumps(body).encode()))
    return admit_create(wanted, world, issues).spec.engine.name


def test_a_simulated_model_goes_to_simulated_gpus_with_vllm() -> None:
    assert admit("gpua5000", SIMULATED, CPU) == "vllm"


@pytest.mark.parametrize("family", ["cpu", "gpu3"])
def test_a_simulated_model_is_refused_on_what_is_real(family: str) -> None:
    with pytest.raises(Refused) as refused:
        admit(family, REAL, SIMULATED, CPU)
    assert refused.value.status_code == 412
    assert f"{family} is real; choose one of: gpua5000" in str(refused.value)


def test_a_simulated_model_without_simulated_gpus_is_to_be_created_again() -> None:
    with pytest.raises(Refused, match="create it again, which downloads it"):
        admit("cpu", CPU)


def test_a_ready_deployment_says_that_it_is_simulated() -> None:
    replica = ObservedReplica("r1", ReplicaPhase.READY, current=True, details="on simulated GPUs")
    found = decision.assess_deployment(builders.deployment(), ObservedDeployment((replica,)))
    available = find_condition(found.conditions, "Available")
    assert available is not None
    assert available.message == "on simulated GPUs"
