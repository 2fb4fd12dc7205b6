"""A deletion ends when its object is gone, and says where it stands until then."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from exoscale.api.exceptions import ExoscaleAPIClientException

from exo_inference.controller.http import operations
from exo_inference.controller.stores.sqlite import SqliteStore
from exo_inference.resources import InferenceDeployment
from tests.controller.conftest import Controller


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer a deletion that goes on almost at once."""
    monkeypatch.setattr(operations, "ANSWER_WITHIN_SECONDS", 0.1)


def status_of(controller: Controller, path: str, method: str = "GET") -> int:
    return controller.call(method, f"/v2/ai/{path}").status_code


def wait_for_end(controller: Controller, operation: dict[str, Any]) -> None:
    """Wait as clients do, but look more often."""
    path = f"/v2/operation/{operation['id']}"
    controller.wait_for(lambda: controller.call("GET", path).json()["state"] == "success")


def events_of(controller: Controller, uid: str) -> list[dict[str, Any]]:
    return controller.call("GET", f"/v2/ai/deployment/{uid}/events").json()["events"]


def test_what_the_answer_calls_deleted_is_gone_and_its_name_is_free(controller: Controller) -> None:
    client = controller.client()
    for _ in range(3):
        model = controller.create_model()
        uid = controller.create_deployment()
        for delete, path in (
            (lambda uid=uid: client.delete_deployment(id=uid), f"deployment/{uid}"),
            (lambda model=model: client.delete_model(id=model), f"model/{model}"),
        ):
            operation = delete()
            assert (operation["state"], operation["message"]) == ("success", "deleted")
            assert status_of(controller, path) == 404
            assert status_of(controller, path, "DELETE") == 404
        assert client.list_deployments()["deployments"] == []
        assert client.list_models()["models"] == []


def test_a_deletion_that_takes_long_is_pending_until_the_object_is_gone(
    controller: Controller, impatient: None
) -> None:
    controller.create_model()
    uid = controller.create_deployment()
    client = controller.client()
    controller.platform.has_endless_requests = True
    begun = client.delete_deployment(id=uid)
    assert begun["state"] == "pending"
    assert begun["reference"]["id"] == uid
    said = "deleting: 1 replica finishes its requests, for at most 60 s"
    controller.wait_for(lambda: client.get_operation(id=begun["id"]).get("message") == said)
    assert client.get_operation(id=begun["id"])["state"] == "pending"

    shown, (listed,) = client.get_deployment(id=uid), client.list_deployments()["deployments"]
    assert (shown["state"], shown["state-details"]) == ("updating", said)
    assert (listed["state"], listed["state-details"]) == ("updating", said)

    before = events_of(controller, uid)
    again = client.delete_deployment(id=uid)
    assert (again["id"], again["state"]) == (begun["id"], "pending")
    assert events_of(controller, uid) == before
    with pytest.raises(ExoscaleAPIClientException, match=r"409.*being deleted"):
        controller.create_deployment(wait=False)

    controller.platform.has_endless_requests = False
    client.wait(begun["id"], max_wait_time=20)
    assert status_of(controller, f"deployment/{uid}") == 404
    controller.create_deployment(wait=False)


def test_a_model_goes_after_the_deployment_that_is_being_deleted(
    controller: Controller, impatient: None
) -> None:
    model = controller.create_model()
    uid = controller.create_deployment()
    client = controller.client()
    controller.platform.has_endless_requests = True
    client.delete_deployment(id=uid)
    operation = client.delete_model(id=model)
    assert operation["state"] == "pending"
    shown = controller.wait_for(
        lambda: "chat" in (found := client.get_model(id=model))["state-details"] and found
    )
    assert (shown["state"], shown["state-details"]) == (
        "created",
        "deleting: waiting for the end of chat",
    )
    assert client.get_operation(id=operation["id"])["message"] == shown["state-details"]
    controller.platform.has_endless_requests = False
    wait_for_end(controller, operation)
    assert (status_of(controller, f"model/{model}"), client.list_models()["models"]) == (404, [])
    controller.create_model()


def test_a_deletion_outlives_the_controller(
    stopped_controller: Controller, impatient: None
) -> None:
    with stopped_controller.running() as controller:
        controller.create_model()
        uid = controller.create_deployment()
        controller.platform.has_endless_requests = True
        operation = controller.client().delete_deployment(id=uid)
    with stopped_controller.running() as controller:
        assert controller.client().get_operation(id=operation["id"])["state"] == "pending"
        controller.platform.has_endless_requests = False
        wait_for_end(controller, operation)
        assert status_of(controller, f"deployment/{uid}") == 404


def test_a_deletion_that_was_begun_past_the_api_can_be_joined(
    stopped_controller: Controller, impatient: None
) -> None:
    with stopped_controller.running() as controller:
        controller.create_model()
        uid = controller.create_deployment()

    async def delete() -> None:
        store = await SqliteStore.open(controller.state.database_file)
        await store.delete(InferenceDeployment, uid)
        await store.close()

    asyncio.run(delete())
    controller.platform.has_endless_requests = True
    with stopped_controller.running() as controller:
        client = controller.client()
        operation = client.delete_deployment(id=uid)
        assert operation["state"] == "pending"
        assert client.delete_deployment(id=uid)["id"] == operation["id"]
        controller.platform.has_endless_requests = False
        wait_for_end(controller, operation)


def test_a_failing_removal_says_why(controller: Controller, impatient: None) -> None:
    controller.create_model()
    uid = controller.create_deployment()
    controller.platform.cannot_delete = "the release cannot be removed: no permission"
    client = controller.client()
    operation = client.delete_deployment(id=uid)
    controller.wait_for(
        lambda: "no permission" in (client.get_operation(id=operation["id"])["message"])
    )
    controller.platform.cannot_delete = None
    wait_for_end(controller, operation)


def test_other_requests_are_answered_while_a_deletion_waits(controller: Controller) -> None:
    """The two seconds are nobody else's: the lock of the writes is free meanwhile."""
    controller.create_model()
    uids = [controller.create_deployment(f"d{n}") for n in range(3)]
    controller.platform.has_endless_requests = True
    with ThreadPoolExecutor() as pool:
        going = [pool.submit(status_of, controller, f"deployment/{u}", "DELETE") for u in uids[:2]]
        path = f"/v2/ai/deployment/{uids[2]}/scale"
        controller.wait_for(lambda: _num_going(controller) == 2)
        assert controller.call("POST", path, json={"replicas": 2}).status_code == 200
        assert not all(each.done() for each in going)
        controller.platform.has_endless_requests = False
        assert [each.result(20) for each in going] == [200, 200]


def _num_going(controller: Controller) -> int:
    listed = controller.call("GET", "/v2/ai/deployment").json()["deployments"]
    return sum("deleting" in each.get("state-details", "") for each in listed)
