"""A replacement that does not work, where there was no room for both: what served before comes back."""

from __future__ import annotations

from typing import Any

import pytest

from exo_inference.controller.local.routing_table import RoutingTable
from exo_inference.controller.reconcile import rollback
from exo_inference.platforms.base import ObservedDeployment
from exo_inference.resources import DeploymentSpec, InferenceDeployment
from exo_inference.resources.settled_spec import spec_before
from exo_inference.wire import Route
from tests.controller import builders
from tests.controller.conftest import Controller
from tests.controller.test_host_room import MODEL, machine
from tests.controller.test_reconciling import replica_names

M2: dict[str, Any] = {"model": {"name": "org/m2"}, "gpu-type": "cpu", "gpu-count": 1}


def view(controller: Controller, uid: str) -> dict[str, Any]:
    return controller.call("GET", f"/v2/ai/deployment/{uid}").json()


def key_of(controller: Controller, uid: str) -> str:
    return controller.call("GET", f"/v2/ai/deployment/{uid}/api-key").json()["api-key"]


def serving(controller: Controller) -> str:
    return controller.platform.applied[-1].spec.model


def wait_for_roll_back(controller: Controller, uid: str) -> dict[str, Any]:
    def is_back() -> dict[str, Any] | None:
        found = view(controller, uid)
        is_told = found.get("state-details", "").startswith("the update was rolled back")
        return found if is_told and found["ready-replicas"] == 1 else None

    return controller.wait_for(is_back)


def test_what_served_before_comes_back_and_stays_through_a_restart(
    stopped_controller: Controller,
) -> None:
    controller = stopped_controller
    with controller.running():
        for name in ("org/m1", "org/m2"):
            controller.create_model(name)
        uid = controller.create_deployment()
        key = key_of(controller, uid)
        controller.platform.slots, controller.platform.fails_model = 1, "org/m2"
        assert controller.call("PUT", f"/v2/ai/deployment/{uid}", json=M2).ok
        told = wait_for_roll_back(controller, uid)
        assert "wings are missing. The version before it serves on" in told["state-details"]
        assert (told["state"], told["model"]["name"]) == ("error", "org/m2")
        assert serving(controller) == "org/m1"
        assert key_of(controller, uid) == key
        tries = sum(each.spec.model == "org/m2" for each in controller.platform.applied)
    with controller.running():
        wait_for_roll_back(controller, uid)
        assert serving(controller) == "org/m1"
        assert sum(e.spec.model == "org/m2" for e in controller.platform.applied) == tries
        controller.call("POST", f"/v2/ai/deployment/{uid}/scale", json={"replicas": 0})
        controller.wait_for(lambda: view(controller, uid)["ready-replicas"] == 0)
        controller.call("POST", f"/v2/ai/deployment/{uid}/scale", json={"replicas": 1})
        wait_for_roll_back(controller, uid)
        old = set(replica_names(controller))
        assert controller.call("POST", f"/v2/ai/deployment/{uid}/restart").ok
        controller.wait_for(lambda: old.isdisjoint(replica_names(controller)))
        wait_for_roll_back(controller, uid)
        assert serving(controller) == "org/m1"  # it is what was restarted
        assert sum(e.spec.model == "org/m2" for e in controller.platform.applied) == tries
        controller.platform.fails_model = None
        assert controller.call("PATCH", f"/v2/ai/deployment/{uid}", json={}).ok
        controller.wait_for(lambda: view(controller, uid)["state"] == "ready")
        assert serving(controller) == "org/m2"
        assert key_of(controller, uid) == key


def test_the_gateway_is_told_to_hold_requests_until_the_version_before_serves_again(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes: list[Route] = []
    write = RoutingTable.set_route

    async def note(table: RoutingTable, route: Route) -> None:
        routes.append(route)
        await write(table, route)

    for name in ("org/m1", "org/m2"):
        controller.create_model(name)
    uid = controller.create_deployment()
    controller.platform.slots, controller.platform.fails_model = 1, "org/m2"
    monkeypatch.setattr(RoutingTable, "set_route", note)
    assert controller.call("PUT", f"/v2/ai/deployment/{uid}", json=M2).ok
    wait_for_roll_back(controller, uid)
    away = [route for route in routes if not route.replicas]
    assert "the version before it is being started" in away[-1].state_details.lower()
    assert [route.state_details for route in away if not route.coming] == []


def test_a_change_of_what_is_scaled_to_0_is_in_effect_only_once_it_has_served(
    controller: Controller,
) -> None:
    for name in ("org/m1", "org/m2"):
        controller.create_model(name)
    uid = controller.create_deployment()
    path = f"/v2/ai/deployment/{uid}"
    controller.call("POST", f"{path}/scale", json={"replicas": 0})
    controller.wait_for(lambda: "scaled to 0" in view(controller, uid)["state-details"])
    assert "not served yet" not in view(controller, uid)["state-details"]
    controller.platform.fails_model = "org/m2"
    assert controller.call("PUT", path, json={**M2, "replicas": 0}).ok
    controller.wait_for(
        lambda: "changed last has not served yet" in view(controller, uid)["state-details"]
    )
    assert view(controller, uid)["last-in-effect"]["model"] == "org/m1"
    controller.call("POST", f"{path}/scale", json={"replicas": 1})
    told = wait_for_roll_back(controller, uid)  # it does not start, and what served before does
    assert serving(controller) == "org/m1"
    assert (told["model"]["name"], told["last-in-effect"]["model"]) == ("org/m2", "org/m1")
    controller.platform.fails_model = None
    assert controller.call("PATCH", path, json={}).ok
    ready = controller.wait_for(lambda: (d := view(controller, uid))["state"] == "ready" and d)
    assert "last-in-effect" not in ready


def test_a_model_that_served_before_can_go_while_the_deployment_is_scaled_to_0(
    controller: Controller,
) -> None:
    old_model = controller.create_model()
    controller.create_model("org/m2")
    uid = controller.create_deployment()
    controller.call("POST", f"/v2/ai/deployment/{uid}/scale", json={"replicas": 0})
    controller.wait_for(lambda: view(controller, uid)["ready-replicas"] == 0)
    assert controller.call("PUT", f"/v2/ai/deployment/{uid}", json={**M2, "replicas": 0}).ok
    assert controller.call("DELETE", f"/v2/ai/model/{old_model}").ok
    path = f"/v2/ai/model/{old_model}"
    controller.wait_for(lambda: controller.call("GET", path).status_code == 404)
    controller.call("POST", f"/v2/ai/deployment/{uid}/scale", json={"replicas": 1})
    controller.wait_for(lambda: view(controller, uid)["state"] == "ready")
    assert serving(controller) == "org/m2"


def test_the_old_one_is_looked_after_until_the_new_model_is_there(controller: Controller) -> None:
    old_model = controller.create_model()
    uid = controller.create_deployment()
    controller.source.is_slow = True
    controller.client().create_model(name="org/m2")
    assert controller.call("PUT", f"/v2/ai/deployment/{uid}", json=M2).ok
    controller.wait_for(lambda: view(controller, uid)["state"] == "preparing")
    controller.platform.replicas[uid].clear()  # it crashed for good
    controller.wait_for(lambda: view(controller, uid)["ready-replicas"] == 1)
    assert serving(controller) == "org/m1"
    assert controller.call("DELETE", f"/v2/ai/model/{old_model}").ok
    kept = controller.wait_for(
        lambda: "chat" in (m := controller.client().get_model(id=old_model))["state-details"] and m
    )
    assert "deleting" in kept["state-details"]
    controller.source.is_slow = False
    controller.wait_for(lambda: view(controller, uid)["state"] == "ready")
    assert serving(controller) == "org/m2"
    path = f"/v2/ai/model/{old_model}"
    controller.wait_for(lambda: controller.call("GET", path).status_code == 404)


def test_a_platform_that_rolls_back_is_given_what_was_in_effect_and_why_it_went_back(
    controller: Controller,
) -> None:
    platform = controller.platform
    platform.rolls_back = True
    controller.create_model()
    uid = controller.create_deployment()
    platform.refusal, platform.rolled_back = "wings are missing", "the update was rolled back"
    body = {"inference-engine-parameters": ["--seed=1"]}
    assert controller.call("PATCH", f"/v2/ai/deployment/{uid}", json=body).ok
    controller.wait_for(lambda: platform.applied[-1].refusal == "wings are missing")
    given = platform.applied[-1]
    assert given.spec.engine_parameters == ("--seed=1",)
    assert given.before is not None
    assert (given.before.uid, given.before.spec.engine_parameters) == (uid, ())
    # Asked again, it is no longer refused.
    platform.refusal, platform.rolled_back = "", None
    assert controller.call("PATCH", f"/v2/ai/deployment/{uid}", json={}).ok
    controller.wait_for(lambda: view(controller, uid)["state"] == "ready")
    controller.wait_for(lambda: platform.applied[-1].before is None)
    assert platform.applied[-1].refusal == ""


def changed(replicas: int = 1, before: int = 1) -> InferenceDeployment:
    obj = builders.deployment(replicas=replicas)
    settled = DeploymentSpec(model="org/m0", gpu_type="cpu", replicas=before)
    status = obj.status.model_copy(update={"settled_spec": settled.model_dump_json(by_alias=True)})
    return obj.model_copy(update={"status": status})


R = builders.replica


@pytest.mark.parametrize(
    ("obj", "replicas", "reason"),
    [
        pytest.param(changed(), [R("n", "failed", details="no wings")], "no wings", id="failed"),
        pytest.param(changed(), [R("n", "backoff", restarts=3, details="boom")], "boom", id="loop"),
        pytest.param(changed(), [R("n", "backoff", restarts=2)], "", id="may come yet"),
        pytest.param(changed(), [R("n", "starting")], "", id="starts"),
        pytest.param(
            changed(),
            [R("n", "failed", details="x"), R("o", "ready", current=False)],
            "",
            id="the old one serves on",
        ),
        pytest.param(
            changed(2, 2),
            [R("n", "failed", details="x"), R("o", "ready", current=False)],
            "x",
            id="one old one of two had to go",
        ),
        pytest.param(
            changed(2, 2),
            [R("n", "ready"), R("m", "failed", details="x")],
            "",
            id="the new one works",
        ),
        pytest.param(changed(0), [R("n", "failed", details="x")], "", id="nothing is wanted"),
        pytest.param(builders.deployment(), [R("n", "failed", details="x")], "", id="the first"),
    ],
)
def test_a_change_is_taken_back_only_where_something_is_missing(
    obj: InferenceDeployment, replicas: list[Any], reason: str
) -> None:
    observed = ObservedDeployment(tuple(replicas))
    assert rollback.find_failed_change(obj, observed) == reason


def test_what_cannot_be_read_is_no_version_before() -> None:
    obj = changed()
    for text in ("", "{", "{}", '{"model": 3}'):
        status = obj.status.model_copy(update={"settled_spec": text})
        assert spec_before(obj.model_copy(update={"status": status})) is None


@pytest.mark.parametrize("is_forced", [False, True])
def test_what_comes_back_asks_for_the_memory_that_it_was_admitted_with(
    stopped_controller: Controller, is_forced: bool
) -> None:
    """Not for that of the change: with more it would wait for ever, with less it would take what others have."""
    controller = stopped_controller
    controller.platform.families = machine(16 * 2**30)
    query = "?force=force" if is_forced else ""
    with controller.running():
        for name in ("org/m2", MODEL):
            controller.create_model(name)
        uid = controller.create_deployment(model={"name": MODEL})
        need = controller.platform.applied[-1].need
        controller.platform.slots, controller.platform.fails = 1, "wings are missing"
        path, cache = f"/v2/ai/deployment/{uid}", "64G" if is_forced else "1G"
        flags = {"inference-engine-parameters": [f"--kv-cache-memory-bytes={cache}"]}
        for body in (flags, {**flags, "inference-engine-parameters": ["--max-model-len=1024"]}):
            assert controller.call("PATCH", f"{path}{query}", json=body).ok
        controller.wait_for(lambda: controller.platform.applied[-1].spec.engine_parameters == ())
    found = controller.platform.applied
    assert {each.need for each in found if each.spec.engine_parameters == ()} == {need}
    assert any(each.need != need for each in found)
