"""What the signature of one write can do: that write, once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests
from exoscale_auth import ExoscaleV2Auth

from exo_inference.controller.http import replays
from exo_inference.controller.http.middleware import _has_no_effect
from tests.controller.conftest import Controller

NAMED = {"model": {"name": "org/m1"}, "gpu-type": "cpu", "gpu-count": 1, "replicas": 1}


def capture(
    controller: Controller, method: str, path: str, body: Any = None
) -> requests.PreparedRequest:
    """Return a signed request as it goes over the wire."""
    auth = ExoscaleV2Auth(controller.key, controller.secret)
    url = f"http://127.0.0.1:{controller.port}/v2{path}"
    return requests.Request(method, url, json=body, auth=auth).prepare()


def send(request: requests.PreparedRequest) -> requests.Response:
    with requests.Session() as session:
        return session.send(request, timeout=20)


def deployments(controller: Controller) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = controller.client().list_deployments()["deployments"]
    return found


def settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the first two seconds after a refusal were over."""
    monkeypatch.setattr(replays, "REFUSAL_SECONDS", 0.0)


# -- a dry run cannot be made a write of


@pytest.mark.parametrize(
    ("query", "listed"),
    [
        pytest.param("force=force", "force", id="another argument"),
        pytest.param("force=dry-run", "force", id="its value under another name"),
        pytest.param("x=dry-run", "x", id="its value under an unknown name"),
        pytest.param("tail=dry-run", "tail", id="its value under a name of the vendor's"),
        pytest.param("dry-run=dry-run&force=force", "dry-run", id="one more, unsigned"),
        pytest.param("dry-run=dry-run&force", "dry-run", id="one more, blank"),
        pytest.param("dry-run=dry-run&force=", "dry-run;force", id="one more, blank and listed"),
        pytest.param("dry-run=dry-run&dry-run=", "dry-run", id="blank twin"),
        pytest.param("", "dry-run", id="left out"),
        pytest.param("", "", id="left out, not listed"),
    ],
)
def test_a_signed_dry_run_stays_one(controller: Controller, query: str, listed: str) -> None:
    controller.create_model()
    body = {"name": "chat", **NAMED}
    dry = capture(controller, "POST", "/ai/deployment?dry-run=dry-run", body)
    assert send(dry).status_code == 200
    assert "signed-query-args=dry-run," in dry.headers["Authorization"]
    dry.url = f"{controller.endpoint}/ai/deployment" + (f"?{query}" if query else "")
    pragma = f"signed-query-args={listed}," if listed else ""
    signed = dry.headers["Authorization"].replace("signed-query-args=dry-run,", pragma)
    dry.headers["Authorization"] = signed
    assert send(dry).status_code in (400, 403)
    assert deployments(controller) == []


@pytest.mark.parametrize("query", ["dry-run=true", "dry-run=", "dry-run", "force=1", "x=1", "x"])
def test_writes_take_our_arguments_in_their_form_alone(
    idle_controller: Controller, query: str
) -> None:
    for method, path in (
        ("POST", "/v2/ai/deployment"),
        ("POST", "/v2/ai/model"),
        ("POST", "/v2/ai/api-key"),
        ("PATCH", "/v2/ai/deployment/x"),
        ("PUT", "/v2/ai/deployment/x"),
        ("DELETE", "/v2/ai/model/x"),
        ("POST", "/v2/ai/plan"),
    ):
        answer = idle_controller.call(method, f"{path}?{query}", json={})
        assert answer.status_code == 400, (method, path, answer.text)
        assert answer.json()["title"] == "Query not understood"


def test_an_argument_that_does_nothing_here_is_refused(idle_controller: Controller) -> None:
    for path in ("model/x", "deployment/x", "api-key/x"):
        answer = idle_controller.call("DELETE", f"/v2/ai/{path}?force=force")
        assert (answer.status_code, "known: dry-run" in answer.text) == (400, True)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (b"dry-run=dry-run", True),
        (b"%64ry-run=dr%79-run", True),
        (b"dry-run=true", True),
        (b"", False),
        (b"force=dry-run", False),
        (b"x-dry-run=x", False),
    ],
)
def test_a_dry_run_is_known_by_the_name_of_its_argument(query: bytes, expected: bool) -> None:
    scope = {"method": "POST", "path": "/v2/ai/model", "query_string": query}
    assert _has_no_effect(scope) is expected


# -- the same signature again


def test_a_repeated_write_gets_the_first_answer_and_has_no_effect(controller: Controller) -> None:
    controller.create_model()
    uid = controller.create_deployment(replicas=2)
    scale = capture(controller, "POST", f"/ai/deployment/{uid}/scale", {"replicas": 1})
    first = send(scale)
    again = send(scale)
    assert (again.status_code, again.json()) == (200, first.json())
    controller.call("POST", f"/v2/ai/deployment/{uid}/scale", json={"replicas": 3})
    assert send(scale).status_code == 409
    assert again.headers["x-request-id"] != first.headers["x-request-id"]
    assert deployments(controller)[0]["replicas"] == 3


def test_a_captured_create_does_not_bring_back_what_was_deleted(controller: Controller) -> None:
    controller.create_model()
    create = capture(controller, "POST", "/ai/deployment", {"name": "chat", **NAMED})
    first = send(create)
    client = controller.client()
    client.delete_deployment(id=first.json()["reference"]["id"])
    controller.wait_for(lambda: deployments(controller) == [])
    assert send(create).json() == first.json()
    create.headers["Idempotency-Key"] = "another"  # a header is not signed
    assert send(create).json() == first.json()
    assert deployments(controller) == []


def test_creates_are_remembered_over_a_restart(stopped_controller: Controller) -> None:
    with stopped_controller.running() as controller:
        controller.create_model()
        port = controller.port
        create = capture(controller, "POST", "/ai/deployment", {"name": "chat", **NAMED})
        key = capture(controller, "POST", "/ai/api-key", {"name": "k", "scope": "public"})
        first, made = send(create), send(key)
        controller.client().delete_deployment(id=first.json()["reference"]["id"])
        controller.wait_for(lambda: deployments(controller) == [])
    with stopped_controller.running() as controller:
        for request in (create, key):
            request.url = str(request.url).replace(f":{port}/", f":{controller.port}/")
        assert send(create).json() == first.json()
        assert send(key).json() == made.json()
        assert deployments(controller) == []
        assert len(controller.client().list_ai_api_keys()["ai-api-keys"]) == 1


@pytest.mark.parametrize("first_key", [None, "mine"])
@pytest.mark.parametrize("other_key", [None, "another"])
def test_a_header_does_not_make_a_captured_create_another_one(
    stopped_controller: Controller, first_key: str | None, other_key: str | None
) -> None:
    """A header is not signed; a restart stands for another controller, as both forget answers."""
    body = {"name": "k", "scope": "public"}
    with stopped_controller.running() as controller:
        controller.create_model()
        port = controller.port
        create = capture(controller, "POST", "/ai/deployment", {"name": "chat", **NAMED})
        key = capture(controller, "POST", "/ai/api-key", body)
        set_key(create, first_key)
        set_key(key, first_key and f"{first_key}-too")
        first, made = send(create), send(key)
        controller.client().delete_deployment(id=first.json()["reference"]["id"])
        controller.wait_for(lambda: deployments(controller) == [])
    with stopped_controller.running() as controller:
        for request in (create, key):
            request.url = str(request.url).replace(f":{port}/", f":{controller.port}/")
            set_key(request, other_key and f"{other_key}-{request.path_url}")
        assert send(create).json() == first.json()
        assert send(key).json() == made.json()
        assert deployments(controller) == []
        assert len(controller.client().list_ai_api_keys()["ai-api-keys"]) == 1


def test_a_captured_rotation_makes_no_other_value(stopped_controller: Controller) -> None:
    with stopped_controller.running() as controller:
        port = controller.port
        made = controller.client().create_ai_api_key(name="k", scope="public")
        path = f"/ai/api-key/{made['id']}"
        rotate = capture(controller, "POST", f"{path}/rotate")
        first = send(rotate).json()
        assert first["value"] != made["value"]
    with stopped_controller.running() as controller:
        rotate.url = str(rotate.url).replace(f":{port}/", f":{controller.port}/")
        set_key(rotate, "another")
        assert send(rotate).json() == first
        second = controller.call("POST", f"/v2{path}/rotate").json()
        assert second != first
        port = controller.port
    with stopped_controller.running() as controller:
        rotate.url = str(rotate.url).replace(f":{port}/", f":{controller.port}/")
        for key in (None, "another"):  # what opens nothing any more is told to nobody
            set_key(rotate, key)
            again = send(rotate)
            assert (again.status_code, again.json()["title"]) == (409, "Answered before")
            assert first["value"] not in again.text
        assert controller.call("GET", f"/v2{path}/reveal").json() == second


def test_a_repeated_creation_of_a_key_tells_no_value_that_was_rotated_away(
    stopped_controller: Controller,
) -> None:
    with stopped_controller.running() as controller:
        port = controller.port
        create = capture(controller, "POST", "/ai/api-key", {"name": "k", "scope": "public"})
        made = send(create).json()
        path = f"/v2/ai/api-key/{made['id']}"
        second = controller.call("POST", f"{path}/rotate").json()
    with stopped_controller.running() as controller:
        create.url = str(create.url).replace(f":{port}/", f":{controller.port}/")
        again = send(create)
        assert (again.status_code, again.json()["title"]) == (409, "Answered before")
        assert made["value"] not in again.text
        assert "rotated" in again.json()["detail"]
        assert controller.call("GET", f"{path}/reveal").json() == second


@pytest.mark.parametrize("header", ["not usable", "of-another"], ids=["unusable", "used before"])
def test_a_header_that_nobody_signs_spoils_no_repeat(
    stopped_controller: Controller, monkeypatch: pytest.MonkeyPatch, header: str
) -> None:
    """Not before a restart and not after it, which stands for another controller: both forget answers."""
    settle(monkeypatch)
    with stopped_controller.running() as controller:
        controller.create_model()
        other = capture(controller, "POST", "/ai/api-key", {"name": "o", "scope": "public"})
        made = send(set_key(other, "of-another")).json()
        writes = [
            capture(controller, "POST", "/ai/model", {"name": "org/m2"}),
            capture(controller, "POST", "/ai/deployment", {"name": "chat", **NAMED}),
            capture(controller, "POST", "/ai/api-key", {"name": "k", "scope": "public"}),
            capture(controller, "POST", f"/ai/api-key/{made['id']}/rotate"),
        ]
        first = [send(each).json() for each in writes]
        port = controller.port
        for _ in range(2):
            assert [send(set_key(each, header)).json() for each in writes] == first
    with stopped_controller.running() as controller:
        for each in writes:
            each.url = str(each.url).replace(f":{port}/", f":{controller.port}/")
        for _ in range(2):
            assert [send(set_key(each, header)).json() for each in writes] == first
        assert [send(set_key(each, None)).json() for each in writes] == first
        new = capture(controller, "POST", "/ai/api-key", {"name": "n", "scope": "public"})
        assert send(set_key(new, header)).status_code in (400, 409)


def test_a_repeat_of_a_rotation_leaves_it_the_latest_change(controller: Controller) -> None:
    made = controller.client().create_ai_api_key(name="k", scope="public")
    path = f"/ai/api-key/{made['id']}"
    first = capture(controller, "PATCH", path, {"name": "a"})
    other = capture(controller, "PATCH", path, {"name": "b"})
    rotate = capture(controller, "POST", f"{path}/rotate")
    assert [send(each).status_code for each in (first, other, rotate)] == [200] * 3
    assert send(set_key(rotate, "not usable")).status_code == 200
    again = send(first)
    assert (again.status_code, again.json()["title"]) == (409, "Answered before")


CHANGES: dict[str, tuple[str, str, Any, Any]] = {
    "update": ("PATCH", "", {"name": "first"}, {"name": "second"}),
    "replacement": ("PUT", "", {**NAMED, "replicas": 2}, {**NAMED, "replicas": 3}),
    "scale": ("POST", "/scale", {"replicas": 2}, {"replicas": 3}),
    "restart": ("POST", "/restart", None, None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_captured_change_is_made_once_over_a_restart(
    stopped_controller: Controller, change: str
) -> None:
    """A restart stands for another controller: both forget the answers."""
    method, path, body, later = CHANGES[change]
    with stopped_controller.running() as controller:
        controller.create_model()
        uid = controller.create_deployment()
        port = controller.port
        captured = capture(controller, method, f"/ai/deployment/{uid}{path}", body)
        first = send(captured)
        assert first.status_code == 200, first.text
        call = controller.call(method, f"/v2/ai/deployment/{uid}{path}", json=later)
        assert call.status_code == 200, call.text
    with stopped_controller.running() as controller:
        captured.url = str(captured.url).replace(f":{port}/", f":{controller.port}/")
        before = wanted(controller, uid)
        for key in (None, "another"):
            set_key(captured, key)
            assert send(captured).json() == first.json()
        assert wanted(controller, uid) == before


@pytest.mark.parametrize("noun", ["deployment", "model", "api-key"])
def test_a_repeated_deletion_gets_the_first_answer_over_a_restart(
    stopped_controller: Controller, noun: str
) -> None:
    """A restart stands for another controller; another deletion of what is gone is refused."""
    with stopped_controller.running() as controller:
        uid, port = controller.create_model(), controller.port
        if noun == "deployment":
            uid = controller.create_deployment()
        if noun == "api-key":
            uid = controller.client().create_ai_api_key(name="k", scope="public")["id"]
        path = f"/ai/{noun}/{uid}"
        first = capture(controller, "DELETE", path)
        assert send(first).status_code == 200
        controller.wait_for(lambda: controller.call("GET", f"/v2{path}").status_code == 404)
    with stopped_controller.running() as controller:
        first.url = str(first.url).replace(f":{port}/", f":{controller.port}/")
        again = send(first)
        assert again.status_code == 200, again.text
        assert (again.json()["state"], again.json()["reference"]["id"]) == ("success", uid)
        assert controller.call("DELETE", f"/v2{path}").status_code == 404


def test_a_captured_change_of_a_key_is_made_once_over_a_restart(
    stopped_controller: Controller,
) -> None:
    with stopped_controller.running() as controller:
        controller.create_model()
        uid = controller.create_deployment(wait=False)
        key = controller.client().create_ai_api_key(name="k", scope="public")
        path, port = f"/ai/api-key/{key['id']}", controller.port
        widen = capture(controller, "PATCH", path, {"scope": "public", "name": "wide"})
        assert send(widen).status_code == 200
        assert controller.call("PATCH", f"/v2{path}", json={"scope": uid}).status_code == 200
    with stopped_controller.running() as controller:
        widen.url = str(widen.url).replace(f":{port}/", f":{controller.port}/")
        assert send(widen).json()["scope"] == uid
        assert controller.call("GET", f"/v2{path}").json()["scope"] == uid


def wanted(controller: Controller, uid: str) -> Any:
    """Return what a deployment shall be, and when it was restarted."""
    found = controller.call("GET", f"/v2/ai/deployment/{uid}").json()
    restarts = [
        each
        for each in controller.call("GET", f"/v2/ai/deployment/{uid}/events").json()["events"]
        if each["reason"] == "Restarted"
    ]
    return found["version"], found["name"], found["replicas"], restarts


def set_key(request: requests.PreparedRequest, key: str | None) -> requests.PreparedRequest:
    """Give a request this `Idempotency-Key`, or none."""
    request.headers.pop("Idempotency-Key", None)
    if key is not None:
        request.headers["Idempotency-Key"] = key
    return request


def test_two_equal_requests_at_once_have_one_effect(controller: Controller) -> None:
    controller.create_model()
    create = capture(controller, "POST", "/ai/deployment", {"name": "chat", **NAMED})
    with ThreadPoolExecutor(8) as pool:
        answers = [each.json() for each in pool.map(lambda _: send(create), range(8))]
    assert answers == [answers[0]] * 8
    (uid,) = [each["id"] for each in deployments(controller)]
    assert answers[0]["reference"]["id"] == uid


def test_a_captured_refusal_is_refused_for_ever(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(monkeypatch)
    model = controller.create_model()
    uid = controller.create_deployment()
    delete = capture(controller, "DELETE", f"/ai/model/{model}")
    assert send(delete).status_code == 412
    controller.client().delete_deployment(id=uid)
    controller.wait_for(lambda: deployments(controller) == [])
    assert send(delete).status_code == 412
    assert controller.client().get_model(id=model)["state"] == "ready"


def test_a_captured_refusal_is_refused_after_a_restart_too(
    stopped_controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(monkeypatch)
    with stopped_controller.running() as controller:
        model = controller.create_model()
        uid = controller.create_deployment()
        port = controller.port
        delete = capture(controller, "DELETE", f"/ai/model/{model}")
        assert send(delete).status_code == 412
        controller.client().delete_deployment(id=uid)
        controller.wait_for(lambda: deployments(controller) == [])
    with stopped_controller.running() as controller:
        delete.url = str(delete.url).replace(f":{port}/", f":{controller.port}/")
        answer = send(delete)
        assert (answer.status_code, answer.json()["title"]) == (409, "Answered before")
        assert controller.client().get_model(id=model)["state"] == "ready"
        assert controller.call("DELETE", f"/v2/ai/model/{model}").ok


def test_an_equal_change_within_a_second_is_not_said_to_be_in_effect(
    controller: Controller,
) -> None:
    """PATCH a, b, a: the vendor's clients sign the third as the first."""
    controller.create_model()
    uid = controller.create_deployment(wait=False)
    first = capture(controller, "PATCH", f"/ai/deployment/{uid}", {"name": "a"})
    assert send(first).status_code == 200
    assert send(first).status_code == 200, "a retry"
    other = capture(controller, "PATCH", f"/ai/deployment/{uid}", {"name": "b"})
    assert send(other).status_code == 200
    again = send(first)
    assert (again.status_code, again.json()["title"]) == (409, "Answered before")
    assert "sign it again" in again.json()["message"]
    assert [each["name"] for each in deployments(controller)] == ["b"]
    assert send(other).status_code == 200, "a retry of the latest"


def test_creates_do_not_supersede_each_other(controller: Controller) -> None:
    controller.create_model()
    made = [capture(controller, "POST", "/ai/deployment", {"name": name, **NAMED}) for name in "ab"]
    assert [send(each).status_code for each in (*made, *made)] == [200] * 4
    assert len(deployments(controller)) == 2


def test_reads_are_answered_anew(controller: Controller) -> None:
    listing = capture(controller, "GET", "/ai/model")
    assert send(listing).json() == {"models": []}
    controller.create_model()
    assert len(send(listing).json()["models"]) == 1


def test_the_access_log_names_the_key(
    controller: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "exo_inference.controller.access")
    controller.call("GET", "/v2/ai/model")
    requests.get(controller.endpoint + "/ai/model", timeout=5)
    controller.wait_for(lambda: len(caplog.records) >= 2)
    lines = [r for r in caplog.records if r.name == "exo_inference.controller.access"]
    assert [line.key_id for line in lines] == [controller.key, None]  # type: ignore[attr-defined]
    assert controller.key in lines[0].getMessage()
