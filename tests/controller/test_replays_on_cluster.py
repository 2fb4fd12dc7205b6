"""The signature of one write can do that write once, whichever of two controllers it is sent to."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests
from exoscale_auth import ExoscaleV2Auth

from exo_inference.controller.http.replays import REFUSAL_SECONDS
from exo_inference.resources import ROLL_ANNOTATION
from tests.controller.conftest import DistinctAuth
from tests.controller.control_plane_processes import (
    CREDENTIALS,
    MERGE,
    ControlPlane,
    Process,
    alone,
    plane,
    wait_for,
)

__all__ = ["alone", "plane"]  # fixtures

NUM_REFUSALS = 300


class Captured:
    """A signed request, as somebody between the client and the controllers has it."""

    def __init__(self, plane: ControlPlane, method: str, path: str, body: Any = None) -> None:
        secret = plane.secret(CREDENTIALS)
        sign = DistinctAuth if method == "GET" else ExoscaleV2Auth
        auth = sign(secret["api-key"], secret["api-secret"])
        url = f"http://127.0.0.1:{plane.leader.port}/v2{path}"
        self._request = requests.Request(method, url, json=body, auth=auth).prepare()
        self._port = plane.leader.port

    def send(self, process: Process) -> requests.Response:
        copy = self._request.copy()
        copy.url = str(copy.url).replace(f":{self._port}/", f":{process.port}/")
        with requests.Session() as session:
            return session.send(copy, timeout=60)


@pytest.mark.parametrize("noun", ["deployment", "model", "api-key"])
def test_a_repeated_deletion_gets_the_first_answer_from_the_other_controller(
    plane: ControlPlane, noun: str
) -> None:
    leader, other = plane.leader, plane.other
    if noun == "api-key":
        body = {"name": "k", "scope": "public"}
        uid = plane.call(leader, "POST", "/ai/api-key", body)["id"]
    else:
        uid = plane.create_ready_model()
        if noun == "deployment":
            uid = plane.create_deployment(leader)
    path = f"/ai/{noun}/{uid}"
    deletion = Captured(plane, "DELETE", path)
    first = deletion.send(leader)
    assert first.status_code == 200, first.text
    wait_for(lambda: plane.send(other, "GET", path).status_code == 404)
    again = deletion.send(other)
    assert again.status_code == 200, again.text
    assert again.json()["id"] == first.json()["id"]
    assert (again.json()["state"], again.json()["reference"]["id"]) == ("success", uid)
    assert plane.send(other, "DELETE", path).status_code == 404


def test_a_repeated_rotation_tells_no_value_that_the_other_controller_rotated_away(
    plane: ControlPlane,
) -> None:
    """The other one rotates in the moment before: what this one has read of the key is older."""
    leader, other = plane.leader, plane.other
    uid = plane.call(leader, "POST", "/ai/api-key", {"name": "k", "scope": "public"})["id"]
    path = f"/ai/api-key/{uid}"
    value = ""
    for _ in range(10):
        rotation = Captured(plane, "POST", f"{path}/rotate")
        first = rotation.send(leader).json()["value"]
        assert rotation.send(other).json()["value"] == first != value
        value = plane.call(other, "POST", f"{path}/rotate")["value"]
        again = rotation.send(leader)
        assert again.status_code == 409, again.text
        assert first not in again.text
        assert plane.call(leader, "GET", f"{path}/reveal")["value"] == value


def test_a_key_that_both_controllers_change_at_once_gets_both_changes(plane: ControlPlane) -> None:
    """Each is tried again when the other one was quicker."""
    leader, other = plane.leader, plane.other
    uid = plane.call(leader, "POST", "/ai/api-key", {"name": "k", "scope": "public"})["id"]
    plane.create_ready_model()
    deployment = plane.create_deployment(leader)
    with ThreadPoolExecutor(2) as pool:
        for number in range(10):
            scope = deployment if number % 2 else "public"
            wanted = {"name": f"k{number}", "scope": scope}
            changes = [
                pool.submit(plane.send, process, "PATCH", f"/ai/api-key/{uid}", {name: value})
                for process, (name, value) in zip((leader, other), wanted.items(), strict=True)
            ]
            assert [each.result().status_code for each in changes] == [200, 200]
            found = plane.call(leader, "GET", f"/ai/api-key/{uid}")
            # What the other one made of it may be read a moment later.
            wait_for(
                lambda w=wanted: (
                    w.items() <= plane.call(leader, "GET", f"/ai/api-key/{uid}").items()
                )
            )
            assert found["id"] == uid


def test_what_one_controller_refused_the_other_does_not_do_later(plane: ControlPlane) -> None:
    leader, other = plane.leader, plane.other
    model = plane.create_ready_model()
    deployment = plane.create_deployment(leader)
    bodies = [{"name": f"k{number}", "scope": model} for number in range(NUM_REFUSALS)]
    captured = [Captured(plane, "POST", "/ai/api-key", body) for body in bodies]
    captured.append(Captured(plane, "DELETE", f"/ai/model/{model}"))
    with ThreadPoolExecutor(30) as pool:
        refused = list(pool.map(lambda each: each.send(leader).status_code, captured))
    assert refused == [404] * NUM_REFUSALS + [412]
    plane.call(leader, "DELETE", f"/ai/deployment/{deployment}")
    wait_for(lambda: plane.call(other, "GET", "/ai/deployment")["deployments"] == [])
    time.sleep(REFUSAL_SECONDS)
    with ThreadPoolExecutor(30) as pool:
        answers = list(pool.map(lambda each: each.send(other), captured))
    last = answers.pop()
    assert (last.status_code, last.json()["title"]) == (409, "Answered before")
    assert {each.status_code for each in answers} <= {404, 409}
    assert plane.call(other, "GET", f"/ai/model/{model}")["state"] == "ready"
    assert plane.call(other, "GET", "/ai/api-key") == {"ai-api-keys": []}
    plane.call(other, "DELETE", f"/ai/model/{model}")  # signed anew it is another one


def forget_what_was_done(plane: ControlPlane) -> None:
    """Leave changes as a controller does that is killed before it notes that they were made."""
    path = plane.path("inferenceoperations")
    for each in plane.api.request("GET", path)["items"]:
        if each["metadata"]["labels"]["inference.exo.dev/record"] == "request":
            status = {"status": {"recorded": False}}
            plane.api.client.request(
                "PATCH", f"{path}/{each['metadata']['name']}/status", status, MERGE
            )


def test_a_rotation_that_was_cut_off_is_finished_and_brings_no_old_value_back(
    plane: ControlPlane,
) -> None:
    leader, other = plane.leader, plane.other
    uid = plane.call(leader, "POST", "/ai/api-key", {"name": "k", "scope": "public"})["id"]
    path = f"/ai/api-key/{uid}"
    rotation = Captured(plane, "POST", f"{path}/rotate")
    first = rotation.send(leader).json()["value"]
    forget_what_was_done(plane)
    assert rotation.send(other).json()["value"] == first
    latest = plane.call(other, "POST", f"{path}/rotate")["value"]
    assert latest != first
    forget_what_was_done(plane)
    # The other one has done both, and knows without a look at the store.
    for process, title in ((leader, "Changed since"), (other, "Answered before")):
        again = rotation.send(process)
        assert (again.status_code, again.json().get("title")) == (409, title), again.text
        assert first not in again.text
        assert plane.call(process, "GET", f"{path}/reveal")["value"] == latest


def test_a_change_of_a_key_that_was_cut_off_is_not_made_again_after_another(
    plane: ControlPlane,
) -> None:
    """What was captured would else open all deployments again."""
    leader, other = plane.leader, plane.other
    plane.create_ready_model()
    deployment = plane.create_deployment(leader)
    body = {"name": "k", "scope": deployment}
    path = f"/ai/api-key/{plane.call(leader, 'POST', '/ai/api-key', body)['id']}"
    widening = Captured(plane, "PATCH", path, {"scope": "public"})
    assert widening.send(leader).json()["scope"] == "public"
    forget_what_was_done(plane)
    plane.call(leader, "PATCH", path, {"scope": deployment})
    wait_for(lambda: plane.call(other, "GET", path)["scope"] == deployment)
    again = widening.send(other)
    assert again.status_code == 409, again.text
    assert plane.call(leader, "GET", path)["scope"] == deployment


@pytest.mark.parametrize(
    ("is_written", "between", "status"),
    [
        pytest.param(True, None, 200, id="nothing"),
        pytest.param(True, ("restart", None), 409, id="another restart"),
        pytest.param(True, ("scale", {"replicas": 2}), 200, id="scaled, and restarted before"),
        pytest.param(False, ("scale", {"replicas": 2}), 409, id="scaled, and not restarted before"),
    ],
)
def test_a_restart_that_was_cut_off_is_made_once_and_not_after_another_change(
    plane: ControlPlane, is_written: bool, between: tuple[str, Any] | None, status: int
) -> None:
    leader, other = plane.leader, plane.other
    plane.create_ready_model()
    path = f"/ai/deployment/{plane.create_deployment(leader)}"

    def last_restart() -> str | None:
        (found,) = plane.api.request("GET", plane.path("inferencedeployments"))["items"]
        last: str | None = found["metadata"]["annotations"].get(ROLL_ANNOTATION)
        return last

    restart = Captured(plane, "POST", f"{path}/restart")
    assert restart.send(leader).status_code == 200
    if not is_written:
        unwritten = {"metadata": {"annotations": {ROLL_ANNOTATION: None}}}
        plane.api.client.request(
            "PATCH", plane.path("inferencedeployments", "chat"), unwritten, MERGE
        )
    forget_what_was_done(plane)
    if between is not None:
        verb, body = between
        plane.call(leader, "POST", f"{path}/{verb}", body)
    latest = last_restart()
    assert (latest is not None) == is_written
    again = restart.send(other)
    assert again.status_code == status, again.text
    assert status == 200 or again.json()["title"] == "Changed since"
    assert last_restart() == latest
