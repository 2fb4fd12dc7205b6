"""`PUT /ai/deployment/{id}`: another specification under the same id, URL and key, or no change at all."""

from __future__ import annotations

from typing import Any

import pytest

from exo_inference.controller.admission import admit_replace
from exo_inference.controller.admission.bodies import read_wanted
from exo_inference.controller.admission.problems import Refused
from exo_inference.controller.admission.world import World
from exo_inference.platforms.base import InstanceTypeInfo
from exo_inference.resources import DeploymentSpec, EngineRef, InferenceDeployment, ObjectMeta
from exo_inference.wire import CreateDeployment, Route, RouteTable
from tests.controller.builders import ready_model
from tests.controller.conftest import Controller
from tests.controller.fakes import FAMILIES

BODY: dict[str, Any] = {"model": {"name": "org/m1"}, "gpu-type": "cpu", "gpu-count": 1}


def view(controller: Controller, uid: str) -> dict[str, Any]:
    return controller.call("GET", f"/v2/ai/deployment/{uid}").json()


def route(controller: Controller) -> Route:
    table = RouteTable.model_validate_json(controller.state.routes_file.read_text())
    return table.routes[0]


def key_of(controller: Controller, uid: str) -> str:
    return controller.call("GET", f"/v2/ai/deployment/{uid}/api-key").json()["api-key"]


def test_a_replacement_keeps_id_url_key_and_name(controller: Controller) -> None:
    controller.create_model()
    controller.create_model("org/m2")
    uid = controller.create_deployment(replicas=2)
    before, key = view(controller, uid), key_of(controller, uid)
    body = {**BODY, "model": {"name": "org/m2"}, "gpu-type": "gpua5000", "gpu-count": 2}
    made = controller.call("PUT", f"/v2/ai/deployment/{uid}", json=body)
    assert made.ok, made.text
    assert made.json()["reference"]["id"] == uid
    after = controller.wait_for(
        lambda: (found := view(controller, uid))["state"] == "ready" and found
    )
    assert (after["model"]["name"], after["gpu-type"], after["gpu-count"]) == (
        "org/m2",
        "gpua5000",
        2,
    )
    for field in ("id", "name", "deployment-url", "replicas", "created-at"):
        assert after[field] == before[field]
    assert key_of(controller, uid) == key
    assert controller.platform.applied[-1].spec.model == "org/m2"
    events = controller.call("GET", f"/v2/ai/deployment/{uid}/events").json()["events"]
    assert "Replaced" in [event["reason"] for event in events]


def test_the_gateway_is_told_which_model_each_replica_has(controller: Controller) -> None:
    controller.create_model()
    controller.create_model("org/m2")
    uid = controller.create_deployment()
    controller.platform.looks_until_ready = 10**9
    body = {**BODY, "model": {"name": "org/m2"}}
    assert controller.call("PUT", f"/v2/ai/deployment/{uid}", json=body).ok
    controller.wait_for(lambda: route(controller).model == "org/m2")
    assert [each.models for each in route(controller).replicas] == [["org/m1"]]
    controller.platform.looks_until_ready = 1
    controller.wait_for(
        lambda: [each.models for each in route(controller).replicas] == [["org/m2"]]
    )


REFUSED = (
    ({"gpu-count": 9}, 412),
    ({"gpu-type": "gpua500"}, 400),
    ({"model": {"name": "org/nowhere"}}, 400),
    ({"inference-engine-parameters": ["--wings"]}, 400),
    ({"replicas": 101}, 400),
    ({"name": "Not A Name"}, 400),
    ({"name": "other"}, 409),
    ({"model": None}, 400),
)


def test_what_could_not_be_created_is_refused_and_changes_nothing(controller: Controller) -> None:
    controller.create_model()
    controller.create_deployment("other", wait=False)
    uid = controller.create_deployment()
    before, key = view(controller, uid), key_of(controller, uid)
    for change, status in REFUSED:
        for arguments in ("", "?dry-run=dry-run"):
            path = f"/v2/ai/deployment/{uid}{arguments}"
            answer = controller.call("PUT", path, json={**BODY, **change})
            assert answer.status_code == status, answer.text
            assert answer.json()["title"] == "Deployment not replaced"
    assert view(controller, uid) == before
    assert key_of(controller, uid) == key


def test_a_dry_run_that_is_admitted_records_nothing(controller: Controller) -> None:
    controller.create_model()
    uid = controller.create_deployment()
    before = view(controller, uid)
    body = {**BODY, "gpu-count": 2}
    answer = controller.call("PUT", f"/v2/ai/deployment/{uid}?dry-run=dry-run", json=body)
    assert answer.ok
    assert "plan" in answer.json()
    assert view(controller, uid) == before


def test_what_is_not_there_cannot_be_replaced(controller: Controller) -> None:
    nobody = "00000000-0000-4000-8000-000000000000"
    assert controller.call("PUT", f"/v2/ai/deployment/{nobody}", json=BODY).status_code == 404


def deployment(**spec: Any) -> InferenceDeployment:
    fields = {"model": "org/m1", "gpu_type": "cpu", "engine": EngineRef(name="exo"), **spec}
    return InferenceDeployment(
        metadata=ObjectMeta(name="chat", uid="u-1"), spec=DeploymentSpec(**fields)
    )


def admit(present: InferenceDeployment, *families: InstanceTypeInfo, **body: Any) -> DeploymentSpec:
    world = World((ready_model(),), (present,), families or FAMILIES)
    wanted, issues = read_wanted(CreateDeployment, {**BODY, **body}, may_lack=("name",))
    return admit_replace(wanted, present, world, issues).spec


def test_fields_that_are_not_sent_stay_but_for_the_flags() -> None:
    present = deployment(
        replicas=3,
        product_name="p",
        engine=EngineRef(name="exo", version="0.28.0"),
        engine_parameters=("--seed=1",),
    )
    after = admit(present, **{"gpu-count": 2})
    assert after == present.spec.model_copy(update={"gpu_count": 2, "engine_parameters": ()})


def test_on_other_gpus_the_engine_is_chosen_anew() -> None:
    vllm = InstanceTypeInfo("h100", 8, 8, engine="vllm", engines=("vllm", "exo"))
    present = deployment(engine=EngineRef(name="exo", version="0.28.0"))
    assert admit(present, vllm, *FAMILIES, **{"gpu-type": "h100"}).engine == EngineRef(name="vllm")


def test_replicas_of_zero_are_meant() -> None:
    assert admit(deployment(replicas=2), replicas=0).replicas == 0
    assert admit(deployment(replicas=0)).replicas == 0


def test_a_replica_does_not_come_to_span_nodes_in_place() -> None:
    family = InstanceTypeInfo(
        "h100", 16, 16, engine="vllm", engines=("vllm",), largest_node=8, spans_nodes=True
    )
    present = deployment(gpu_type="h100", gpu_count=8, engine=EngineRef(name="vllm"))
    with pytest.raises(Refused, match="2 nodes where it has 1 node now") as caught:
        admit(present, family, **{"gpu-type": "h100", "gpu-count": 16})
    assert caught.value.status_code == 412
