"""Two who change one deployment: the slower one is refused and told whose change it met."""

from __future__ import annotations

from typing import Any

import pytest
import requests

from exo_inference.controller.http import versions
from exo_inference.resources import CHANGED_ANNOTATION
from tests.controller import builders
from tests.controller.conftest import Controller


def path_of(uid: str, more: str = "") -> str:
    return f"/v2/ai/deployment/{uid}{more}"


def view(controller: Controller, uid: str) -> dict[str, Any]:
    return controller.call("GET", path_of(uid)).json()


WRITES: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    "update": ("PATCH", "", {"inference-engine-parameters": ["--max-model-len=700"]}),
    "scale": ("POST", "/scale", {"replicas": 3}),
    "replace": ("PUT", "", {"model": {"name": "org/m1"}, "gpu-type": "cpu", "gpu-count": 2}),
    "delete": ("DELETE", "", None),
}


def write(controller: Controller, uid: str, which: str, **headers: str) -> requests.Response:
    method, more, body = WRITES[which]
    return controller.call(method, path_of(uid, more), json=body, headers=headers)


def test_a_write_that_is_based_on_an_older_version_is_refused(controller: Controller) -> None:
    controller.create_model()
    uid = controller.create_deployment()
    read = controller.call("GET", path_of(uid))
    tag = read.headers["etag"]
    assert tag == f'"{read.json()["version"]}"'
    body = {"inference-engine-parameters": ["--max-model-len=600"]}
    first = controller.call("PATCH", path_of(uid), json=body, headers={"If-Match": tag})
    assert first.ok, first.text
    before = view(controller, uid)
    assert first.json()["version"] == before["version"] != read.json()["version"]
    assert first.json()["generation"] == before["generation"]
    for which in WRITES:
        answer = write(controller, uid, which, **{"If-Match": tag})
        assert answer.status_code == 412, answer.text
        told = answer.json()["message"]
        assert (
            f"the last change, of inference-engine-parameters, was made with the key {controller.key}"
            in told
        )
        assert "deployment show chat" in told
    after = view(controller, uid)
    assert after["inference-engine-parameters"] == ["--max-model-len=600"]
    assert (after["replicas"], after["version"]) == (1, before["version"])


def test_observed_status_is_no_other_version_and_a_new_name_is(controller: Controller) -> None:
    controller.create_model()
    uid = controller.create_deployment(wait=False)
    tag = controller.call("GET", path_of(uid)).headers["etag"]
    controller.wait_for(lambda: view(controller, uid)["state"] == "ready")
    assert controller.call("GET", path_of(uid)).headers["etag"] == tag
    headers = {"If-Match": tag}
    assert controller.call("PATCH", path_of(uid), json={"name": "other"}, headers=headers).ok
    answer = controller.call("PATCH", path_of(uid), json={"name": "third"}, headers=headers)
    assert answer.status_code == 412
    assert view(controller, uid)["name"] == "other"
    listed = controller.call("GET", "/v2/ai/deployment").json()["deployments"]
    assert listed[0]["version"] == view(controller, uid)["version"]


def test_writes_without_a_version_are_made_on_what_is_there(controller: Controller) -> None:
    controller.create_model()
    uid = controller.create_deployment()
    for which in ("update", "scale", "replace"):
        assert write(controller, uid, which).ok
        assert write(controller, uid, which, **{"If-Match": "*"}).ok
    assert view(controller, uid)["replicas"] == 3


@pytest.mark.parametrize(
    "header", ["12", 'W/"1-00000000"', '"', '"a" "b"', '""', '"' + "a" * 65 + '"']
)
def test_a_header_that_is_no_version_is_refused(idle_controller: Controller, header: str) -> None:
    request = versions.Request(
        {"type": "http", "headers": [(b"if-match", header.encode())], "path_params": {"id": "x"}}
    )
    with pytest.raises(versions.Refused) as caught:
        versions.check_unchanged(request, builders.deployment())
    assert caught.value.status_code == 400


def test_where_there_are_no_versions_the_header_is_not_ignored(controller: Controller) -> None:
    model = controller.create_model()
    headers = {"If-Match": '"1-00000000"'}
    answer = controller.call("DELETE", f"/v2/ai/model/{model}", headers=headers)
    assert (answer.status_code, answer.json()["title"]) == (400, "No versions here")
    assert controller.call("GET", f"/v2/ai/model/{model}").ok


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"at": 1}',
        '{"at":"2026-11-20T20:00:00Z","by":"EXO","fields":[],"generation":9}',
        '{"at":"2026-11-20T20:00:00Z","by":"' + "x" * 5000 + '","fields":[],"generation":1}',
    ],
    ids=["none", "not JSON", "another form", "of another generation", "huge"],
)
def test_a_change_past_the_api_is_told_as_such(text: str) -> None:
    obj = builders.deployment()
    metadata = obj.metadata.model_copy(update={"annotations": {CHANGED_ANNOTATION: text}})
    obj = obj.model_copy(update={"metadata": metadata})
    assert versions.last_change(obj) is None
