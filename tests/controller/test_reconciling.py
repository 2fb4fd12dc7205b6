"""What the controller does over time, seen through its API, its platform and its routing table."""

from __future__ import annotations

import hashlib
import shutil
import threading
from typing import Any

import pytest
from exoscale.api.exceptions import ExoscaleAPIClientException

from exo_inference.wire import RouteTable
from tests.controller.conftest import Controller
from tests.controller.fakes import FakeReplica


def routes(controller: Controller) -> RouteTable:
    return RouteTable.model_validate_json(controller.state.routes_file.read_text())


def replica_names(controller: Controller) -> list[str]:
    return [replica.name for route in routes(controller).routes for replica in route.replicas]


def test_a_ready_deployment_is_routed_before_it_is_called_ready(controller: Controller) -> None:
    controller.create_model()
    uid = controller.create_deployment(replicas=2)
    (route,) = routes(controller).routes
    assert (route.deployment_id, route.model, len(route.replicas)) == (uid, "org/m1", 2)
    assert route.keys[0].id == uid


def test_an_update_replaces_replicas_and_stops_only_unrouted_ones(controller: Controller) -> None:
    controller.create_model()
    uid = controller.create_deployment(replicas=2)
    before = set(replica_names(controller))
    client = controller.client()
    client.update_deployment(id=uid, inference_engine_parameters=["--seed=7"])
    assert client.get_deployment(id=uid)["state"] == "updating"
    controller.wait_for(lambda: client.get_deployment(id=uid)["state"] == "ready")
    assert before.isdisjoint(replica_names(controller))
    assert set(controller.platform.stopped) == before
    events = controller.call("GET", f"/v2/ai/deployment/{uid}/events").json()["events"]
    assert {"Created", "Updated", "Updating", "Settled", "ReplicaReady"} <= {
        event["reason"] for event in events
    }


def test_scaling_says_so_and_down_to_zero_keeps_the_route(controller: Controller) -> None:
    controller.create_model()
    uid = controller.create_deployment()
    client = controller.client()
    controller.platform.looks_until_ready = 10**9
    client.scale_deployment(id=uid, replicas=3)
    shown = controller.wait_for(
        lambda: (
            (d := client.get_deployment(id=uid))["ready-replicas"] == 1
            and len(d["replica-status"]) == 3
            and d
        )
    )
    assert shown["state"] == "scaling"
    assert "loading weights 43 %" in shown["state-details"]
    client.scale_deployment(id=uid, replicas=0)
    controller.wait_for(lambda: client.get_deployment(id=uid)["state"] == "ready")
    assert "scaled to 0" in client.get_deployment(id=uid)["state-details"]
    (route,) = routes(controller).routes
    assert (route.replicas, route.draining) == ([], [])


def test_a_deployment_follows_its_autoscaler_and_keeps_its_specification(
    controller: Controller,
) -> None:
    controller.create_model()
    uid = controller.create_deployment()
    controller.platform.autoscaled = 3
    client = controller.client()
    shown = controller.wait_for(
        lambda: (d := client.get_deployment(id=uid))["ready-replicas"] == 3 and d
    )
    assert (shown["state"], shown["replicas"]) == ("ready", 3)
    controller.platform.autoscaled = None
    controller.wait_for(lambda: client.get_deployment(id=uid)["replicas"] == 1)


def test_a_failed_replica_is_an_error_until_the_spec_changes(controller: Controller) -> None:
    controller.create_model()
    controller.platform.fails = "exo-engine: unknown flag; remove it"
    uid = controller.create_deployment(wait=False)
    client = controller.client()
    shown = controller.wait_for(
        lambda: (d := client.get_deployment(id=uid))["state"] == "error" and d
    )
    assert "unknown flag; remove it" in shown["state-details"]
    controller.platform.fails = None
    client.update_deployment(id=uid, inference_engine_parameters=["--seed=1"])
    controller.wait_for(lambda: client.get_deployment(id=uid)["state"] == "ready")


def test_an_update_without_a_change_starts_a_failed_replica_again(controller: Controller) -> None:
    controller.create_model()
    controller.platform.fails = "exo-engine: there is no folder /models/m"
    uid = controller.create_deployment(wait=False)
    client = controller.client()
    controller.wait_for(lambda: client.get_deployment(id=uid)["state"] == "error")
    controller.platform.fails = None
    client.update_deployment(id=uid)
    # At no moment an error any more: whoever waits for the outcome would take that for it.
    states = []
    controller.wait_for(
        lambda: states.append(client.get_deployment(id=uid)["state"]) or states[-1] == "ready"
    )
    assert "error" not in states
    assert len(controller.platform.replicas[uid]) == 1


def test_an_update_without_a_change_tries_a_rolled_back_change_again(
    controller: Controller,
) -> None:
    controller.create_model()
    uid = controller.create_deployment()
    client = controller.client()
    client.update_deployment(id=uid, inference_engine_parameters=["--seed=1"])
    controller.platform.rolled_back = "the change was rolled back: the engine ended"
    controller.wait_for(
        lambda: "rolled back" in (client.get_deployment(id=uid).get("state-details") or "")
    )
    assert all(desired.restarted_at is None for desired in controller.platform.applied)
    client.update_deployment(id=uid)
    controller.wait_for(lambda: controller.platform.applied[-1].restarted_at is not None)


def test_an_update_without_a_change_leaves_a_healthy_deployment_alone(
    controller: Controller,
) -> None:
    controller.create_model()
    uid = controller.create_deployment()
    client = controller.client()
    client.update_deployment(id=uid)
    assert client.get_deployment(id=uid)["state"] == "ready"
    assert all(desired.restarted_at is None for desired in controller.platform.applied)


def test_a_platform_that_cannot_is_asked_again(controller: Controller) -> None:
    controller.create_model()
    controller.platform.refuses = "no GPU is free"
    uid = controller.create_deployment(wait=False)
    client = controller.client()
    shown = controller.wait_for(
        lambda: (
            (d := client.get_deployment(id=uid)).get("state-details", "").startswith("no GPU") and d
        )
    )
    assert shown["state"] == "deploying"
    assert routes(controller).routes[0].replicas == []
    controller.platform.refuses = None
    controller.wait_for(lambda: client.get_deployment(id=uid)["state"] == "ready")


def test_a_deployment_waits_for_its_model_and_shows_progress(controller: Controller) -> None:
    client = controller.client()
    controller.source.is_slow = True
    model_id = client.create_model(name="org/m1")["reference"]["id"]
    controller.wait_for(lambda: client.get_model(id=model_id)["state"] == "downloading")
    uid = controller.create_deployment(wait=False)
    shown = controller.wait_for(
        lambda: "50 %" in (d := client.get_deployment(id=uid)).get("state-details", "") and d
    )
    assert shown["state"] == "preparing"
    assert shown["state-details"] == "downloading 1.5 of 3.0 MiB (50 %)"
    assert client.get_model(id=model_id)["downloaded-bytes"] == 1.5 * 1024**2
    controller.source.is_slow = False
    controller.wait_for(lambda: client.get_deployment(id=uid)["state"] == "ready")


def test_an_unreachable_source_is_accepted_and_asked_again(controller: Controller) -> None:
    client = controller.client()
    controller.source.unreachable = True
    model_id = client.create_model(name="org/m1")["reference"]["id"]
    shown = controller.wait_for(
        lambda: "trying again" in (m := client.get_model(id=model_id))["state-details"] and m
    )
    assert shown["state"] == "creating"
    assert "cannot reach the Hub" in shown["state-details"]
    controller.source.unreachable = False
    controller.wait_for(lambda: client.get_model(id=model_id)["state"] == "ready")


def test_a_damaged_model_is_an_error_and_cannot_be_deployed(controller: Controller) -> None:
    client = controller.client()
    model_id = client.create_model(name="damaged/model")["reference"]["id"]
    controller.wait_for(lambda: client.get_model(id=model_id)["state"] == "error")
    assert "SHA-256 differs" in client.get_model(id=model_id)["state-details"]
    with pytest.raises(ExoscaleAPIClientException, match=r"412.*SHA-256 differs"):
        controller.create_deployment(model={"name": "damaged/model"})
    assert controller.source.fetches == 1


def test_a_full_disk_is_waited_for_and_heals(controller: Controller) -> None:
    client = controller.client()
    controller.source.disk_full = True
    controller.source.reports = False
    model_id = client.create_model(name="org/m1")["reference"]["id"]
    controller.wait_for(
        lambda: "trying again" in client.get_model(id=model_id).get("state-details", "")
    )
    # The next attempts show it, too, as long as they bring nothing.
    attempts = controller.source.fetches
    while controller.source.fetches < attempts + 3:
        shown = client.get_model(id=model_id)
        assert shown["state"] == "downloading"
        assert "disk is full; trying again in" in shown["state-details"]
    controller.source.disk_full = False
    controller.wait_for(lambda: client.get_model(id=model_id)["state"] == "ready")


def test_a_folder_is_said_to_be_checked_and_not_downloaded(controller: Controller) -> None:
    client = controller.client()
    controller.source.is_slow = True
    model_id = client.create_model(name="file:///srv/m")["reference"]["id"]
    controller.wait_for(lambda: controller.source.fetches)
    for _ in range(5):
        shown = client.get_model(id=model_id)
        assert shown["state"] == "creating"
        assert "checking its files" in shown["state-details"]
        assert "downloaded-bytes" not in shown
    controller.source.is_slow = False
    controller.wait_for(lambda: client.get_model(id=model_id)["state"] == "ready")


def test_a_model_being_fetched_can_be_deleted(controller: Controller) -> None:
    client = controller.client()
    controller.source.is_slow = True
    model_id = client.create_model(name="org/m1")["reference"]["id"]
    controller.wait_for(lambda: client.get_model(id=model_id)["state"] == "downloading")
    client.delete_model(id=model_id)
    controller.wait_for(lambda: client.list_models()["models"] == [])
    assert list(controller.state.models_dir.iterdir()) == []


def test_a_token_is_sealed_and_reaches_only_the_source(controller: Controller) -> None:
    client = controller.client()
    uid = client.create_model(name="org/m1", huggingface_token="hf_secret")["reference"]["id"]
    controller.wait_for(lambda: client.get_model(id=uid)["state"] == "ready")
    assert {token for _, _, token in controller.source.resolved} == {"hf_secret"}
    for file in controller.state.root.rglob("*"):
        assert not file.is_file() or b"hf_secret" not in file.read_bytes(), file


def test_orphans_on_the_platform_are_stopped(controller: Controller) -> None:
    controller.platform.replicas["ghost"] = [FakeReplica("ghost-1", ())]
    controller.wait_for(lambda: "ghost-1" in controller.platform.stopped)
    assert controller.platform.replicas == {}


def test_a_restart_finds_everything_and_disturbs_nothing(stopped_controller: Controller) -> None:
    controller = stopped_controller
    with controller.running():
        controller.create_model()
        uid = controller.create_deployment(replicas=2)
        key = controller.client().reveal_deployment_api_key(id=uid)["api-key"]
        before = controller.state.routes_file.read_text()
    applied = len(controller.platform.applied)
    with controller.running():
        client = controller.client()
        assert client.get_deployment(id=uid)["state"] == "ready"
        assert client.reveal_deployment_api_key(id=uid)["api-key"] == key
        controller.wait_for(lambda: len(controller.platform.applied) > applied + 2)
        assert controller.state.routes_file.read_text() == before
        assert controller.platform.stopped == []
        assert controller.source.fetches == 1


def test_model_files_that_vanished_are_fetched_again(stopped_controller: Controller) -> None:
    controller = stopped_controller
    with controller.running():
        model_id = controller.create_model()
        uid = controller.create_deployment()
        before = routes(controller)
    shutil.rmtree(controller.state.models_dir / model_id)
    with controller.running():
        client = controller.client()
        controller.wait_for(lambda: controller.source.fetches == 2)
        controller.wait_for(lambda: client.get_model(id=model_id)["state"] == "ready")
        controller.wait_for(lambda: client.get_deployment(id=uid)["state"] == "ready")
        assert routes(controller).routes[0].replicas == before.routes[0].replicas
        assert controller.platform.stopped == []


def test_what_was_deleted_while_the_controller_was_down_goes_from_the_table(
    stopped_controller: Controller,
) -> None:
    controller = stopped_controller
    with controller.running():
        controller.create_model()
        controller.create_deployment()
    controller.state.database_file.unlink()
    controller.state.secret_key_file.unlink()
    for leftover in controller.state.root.glob("controller.db-*"):
        leftover.unlink()
    with controller.running():
        controller.wait_for(lambda: routes(controller).routes == [])
        controller.wait_for(lambda: controller.platform.replicas == {})
        controller.wait_for(lambda: list(controller.state.models_dir.iterdir()) == [])


def test_names_are_unique_and_free_again_after_deletion(controller: Controller) -> None:
    client = controller.client()
    controller.create_model()
    uid = controller.create_deployment()
    other = controller.create_deployment("other")
    with pytest.raises(ExoscaleAPIClientException, match=r"409.*taken"):
        controller.create_deployment(replicas=2)
    with pytest.raises(ExoscaleAPIClientException, match=r"409.*taken"):
        client.update_deployment(id=other, name="chat")
    taken = controller.call("POST", "/v2/ai/model", json={"name": "org/m1"})
    assert (taken.status_code, "already" in taken.text) == (409, True)
    client.create_ai_api_key(name="k", scope="public")
    with pytest.raises(ExoscaleAPIClientException, match="409"):
        client.create_ai_api_key(name="k", scope=uid)
    client.delete_deployment(id=uid)
    controller.wait_for(lambda: len(client.list_deployments()["deployments"]) == 1)
    assert controller.create_deployment(replicas=2) != uid


def test_concurrent_creates_of_one_name_make_one(controller: Controller) -> None:
    controller.create_model()
    body = {"name": "chat", "model": {"name": "org/m1"}, "gpu-type": "cpu", "gpu-count": 1}
    statuses: list[int] = []

    def create() -> None:
        statuses.append(controller.call("POST", "/v2/ai/deployment", json=body).status_code)

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [200] + [409] * 7


def test_a_key_opens_nothing_else_once_its_new_scope_is_answered(controller: Controller) -> None:
    controller.create_model()
    a, b = (controller.create_deployment(name) for name in ("a", "b"))
    key = controller.call("POST", "/v2/ai/api-key", json={"name": "k", "scope": a}).json()
    sha256 = hashlib.sha256(key["value"].encode()).hexdigest()
    for scope in (b, "public", a, b, a, "public", b, a):
        answer = controller.call("PATCH", f"/v2/ai/api-key/{key['id']}", json={"scope": scope})
        assert answer.status_code == 200
        table = routes(controller)
        opened = {"public": table.public_keys} | {r.deployment_id: r.keys for r in table.routes}
        assert [s for s, keys in opened.items() if sha256 in {k.sha256 for k in keys}] == [scope]


def test_a_repeated_create_with_its_key_is_done_once(controller: Controller) -> None:
    controller.create_model()
    headers = {"Idempotency-Key": "one"}

    def send(path: str, body: dict[str, Any]) -> Any:
        return controller.call("POST", path, json=body, headers=headers)

    body = {"name": "chat", "model": {"name": "org/m1"}, "gpu-type": "cpu", "gpu-count": 1}
    first, second = send("/v2/ai/deployment", body), send("/v2/ai/deployment", body)
    assert first.json() == second.json()
    assert first.status_code == 200
    changed = send("/v2/ai/deployment", {**body, "name": "other"})
    assert changed.status_code == 409
    assert send("/v2/ai/model", {"name": "org/m2"}).status_code == 409
    assert len(controller.client().list_deployments()["deployments"]) == 1
    headers["Idempotency-Key"] = "two"
    key = {"name": "k", "scope": "public"}
    made, again = send("/v2/ai/api-key", key).json(), send("/v2/ai/api-key", key).json()
    assert made == again
    controller.client().delete_ai_api_key(id=made["id"])
    assert send("/v2/ai/api-key", key).status_code == 409
    headers["Idempotency-Key"] = "three"
    one, two = (send("/v2/ai/model", {"name": "org/m3"}).json() for _ in range(2))
    assert one == two
    headers["Idempotency-Key"] = "not a key"
    assert send("/v2/ai/model", {"name": "org/m4"}).status_code == 400


def test_a_dry_run_admits_and_records_nothing(controller: Controller) -> None:
    model_id = controller.create_model()
    uid = controller.create_deployment()
    stored = controller.client().get_deployment(id=uid)
    body = {"name": "new", "model": {"name": "org/m1"}, "gpu-type": "cpu", "gpu-count": 1}
    for method, path, data in (
        ("POST", "/v2/ai/deployment", body),
        ("POST", "/v2/ai/model", {"name": "org/m9"}),
        ("PATCH", f"/v2/ai/deployment/{uid}", {"name": "renamed"}),
        ("POST", f"/v2/ai/deployment/{uid}/scale", {"replicas": 5}),
        ("DELETE", f"/v2/ai/deployment/{uid}", None),
    ):
        answer = controller.call(method, path + "?dry-run=dry-run", json=data)
        assert (answer.status_code, answer.json()["state"]) == (200, "success"), path
        assert "dry run" in answer.json()["message"]
        operation = controller.call("GET", f"/v2/operation/{answer.json()['id']}")
        assert operation.status_code == 404
    refused = controller.call("DELETE", f"/v2/ai/model/{model_id}?dry-run=dry-run")
    assert refused.status_code == 412
    assert controller.client().get_deployment(id=uid) == stored
    assert len(controller.client().list_models()["models"]) == 1


def test_an_update_without_fields_changes_nothing(controller: Controller) -> None:
    controller.create_model()
    uid = controller.create_deployment()
    client = controller.client()
    before = client.get_deployment(id=uid)
    assert client.update_deployment(id=uid)["state"] == "success"
    assert client.get_deployment(id=uid) == before
    with pytest.raises(ExoscaleAPIClientException, match="replicas is required"):
        client.scale_deployment(id=uid)


def test_status_names_versions_and_processes(idle_controller: Controller) -> None:
    body = idle_controller.call("GET", "/v2/ai/status").json()
    assert body["zone"] == "ch-dk-2"
    assert body["version"]
    assert body["controller-pid"] > 0
