"""Whatever comes as a body: a clear refusal with the field's location, never a 5xx."""

from __future__ import annotations

import contextlib
import json
import socket
from http.client import HTTPConnection
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.controller.conftest import Controller

WHOLE = {
    "name": "chat",
    "model": {"name": "org/m1"},
    "gpu-type": "cpu",
    "gpu-count": 1,
    "replicas": 1,
}


@pytest.fixture(scope="module", autouse=True)
def model(idle_controller: Controller) -> None:
    idle_controller.create_model()


def create(controller: Controller, **changes: Any) -> Any:
    body = {**WHOLE, **{key.replace("_", "-"): value for key, value in changes.items()}}
    body = {key: value for key, value in body.items() if value is not ...}
    return controller.call("POST", "/v2/ai/deployment?dry-run=dry-run", json=body)


@pytest.mark.parametrize(
    ("changes", "status", "location", "words"),
    [
        ({"name": ...}, 400, "$['name']", "is required"),
        ({"name": None}, 400, "$['name']", "is required, found null"),
        ({"name": 7}, 400, "$['name']", "must be text, found the number 7"),
        ({"name": ""}, 400, "$['name']", "not a deployment name"),
        ({"name": "My Chat!"}, 400, "$['name']", "try 'my-chat'"),
        ({"name": "../../etc"}, 400, "$['name']", "try 'etc'"),
        ({"name": "a/b"}, 400, "$['name']", "try 'a-b'"),
        ({"name": "a\"b'c"}, 400, "$['name']", "try 'a-b-c'"),
        ({"name": "чат"}, 400, "$['name']", "try 'my-deployment'"),
        ({"name": "a" * 64}, 400, "$['name']", "too long: found 64 characters, at most 63"),
        ({"name": "a\n"}, 400, "$['name']", "try 'a'"),
        ({"model": ...}, 400, "$['model']", "is required"),
        ({"model": "org/m1"}, 400, "$['model']", "must be an object, found a string"),
        ({"model": {}}, 400, "$['model']", "needs an id or a name"),
        ({"model": {"name": 5}}, 400, "$['model']['name']", "must be text"),
        ({"model": {"name": "no/model"}}, 400, "$['model']", "model create no/model"),
        ({"model": {"id": "x"}}, 400, "$['model']", "no model with the id"),
        ({"gpu_type": "h100"}, 400, "$['gpu-type']", 'enumeration ["cpu","gpua5000"]'),
        ({"gpu_type": []}, 400, "$['gpu-type']", "must be text, found a list"),
        ({"gpu_count": 0}, 400, "$['gpu-count']", "at least 1, found 0"),
        ({"gpu_count": "1"}, 400, "$['gpu-count']", "must be a whole number, found a string"),
        ({"gpu_count": 1.5}, 400, "$['gpu-count']", "must be a whole number, found the number 1.5"),
        ({"gpu_count": True}, 400, "$['gpu-count']", "must be a whole number, found true"),
        ({"gpu_count": 10**400}, 412, "$['gpu-count']", "far out of range"),
        ({"gpu_count": 3}, 412, "$['gpu-count']", "asks for 3 of cpu, found 2"),
        ({"replicas": -2}, 400, "$['replicas']", "from 1 to 100, found -2"),
        ({"replicas": 101}, 400, "$['replicas']", "from 1 to 100"),
        (
            {"inference_engine_version": "9.9"},
            400,
            "$['inference-engine-version']",
            "does not have a value in the enumeration",
        ),
        (
            {"inference_engine_parameters": "--seed=1"},
            400,
            "$['inference-engine-parameters']",
            "must be a list",
        ),
        (
            {"inference_engine_parameters": ["--seed=1", 5]},
            400,
            "$['inference-engine-parameters'][1]",
            "must be text, found the number 5",
        ),
        (
            {"inference_engine_parameters": ["--seed=1", "--max-model-length=5"]},
            400,
            "$['inference-engine-parameters'][1]",
            "did you mean --max-model-len?",
        ),
        (
            {"inference_engine_parameters": ["--port=80"]},
            400,
            "$['inference-engine-parameters'][0]",
            "set by the platform",
        ),
        ({"inference_engine": "vllm"}, 400, "$['inference-engine']", 'enumeration ["exo"]'),
    ],
)
def test_each_mistake_is_named_with_its_place(
    idle_controller: Controller, changes: Any, status: int, location: str, words: str
) -> None:
    answer = create(idle_controller, **changes)
    assert answer.status_code == status, answer.text
    (error,) = answer.json()["errors"]
    assert error["location"] == location
    assert words in error["detail"]


def test_all_mistakes_are_reported_at_once(idle_controller: Controller) -> None:
    answer = create(
        idle_controller,
        name="No!",
        model={"name": "no/model"},
        gpu_type="h100",
        gpu_count=0,
        replicas="two",
        inference_engine_version="x",
        inference_engine_parameters=["--nope", "--dtype=float7"],
    )
    assert answer.status_code == 400
    assert len(answer.json()["errors"]) == 8
    assert answer.json()["detail"] == "8 problems"
    assert answer.json()["message"].startswith("8 problems: replicas must be a whole number")
    assert answer.json()["title"] == "Deployment not created"


def test_zero_replicas_on_create_mean_the_default(controller: Controller) -> None:
    """The vendor's command line sends 0 when its user did not give a number."""
    controller.create_model()
    uid = controller.create_deployment(replicas=0)
    assert controller.client().get_deployment(id=uid)["replicas"] == 1


def test_an_update_refuses_what_it_cannot_change(controller: Controller) -> None:
    controller.create_model()
    uid = controller.create_deployment(wait=False)
    path = f"/v2/ai/deployment/{uid}"
    body = {"replicas": 2, "gpu-count": 2, "gpu-type": "gpua5000", "model": {"name": "org/m2"}}
    answer = controller.call("PATCH", path, json={**body, "name": "renamed"})
    assert answer.status_code == 400, answer.text
    problems = {entry["location"]: entry["detail"] for entry in answer.json()["errors"]}
    assert problems.keys() == {f"$['{key}']" for key in body}
    assert "deployment scale" in problems["$['replicas']"]
    assert "replace the deployment instead" in problems["$['model']"]
    assert controller.call("GET", path).json()["name"] == "chat"
    ignored = {"replicas": None, "nobody-knows": 7}
    assert controller.call("PATCH", path, json=ignored).status_code == 200


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "is required"),
        (b"   ", "is required"),
        (b"{", "not JSON"),
        (b'{"name": }', "line 1, column 10"),
        (b"[]", "must be a JSON object, found a list"),
        (b'"text"', "found a string"),
        (b"null", "found null"),
        (b'{"name": NaN}', "NaN is no JSON number"),
        (b'{"gpu-count": -Infinity}', "-Infinity is no JSON number"),
        (b'{"name": "\xff"}', "not UTF-8: byte 10"),
        (b'{"name": "\\ud800"}', "surrogate"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "nested too deeply"),
        (b'{"gpu-count": ' + b"9" * 5000 + b"}", "a number of too many digits"),
    ],
)
def test_unreadable_bodies_say_where(idle_controller: Controller, body: bytes, words: str) -> None:
    answer = idle_controller.call("POST", "/v2/ai/deployment", data=body)
    assert answer.status_code == 400
    assert words in answer.json()["message"]


def test_a_body_over_the_limit_is_refused_readably(idle_controller: Controller) -> None:
    body = json.dumps({"name": "x" * 2_000_000}).encode()
    answer = idle_controller.call("POST", "/v2/ai/model", data=body)
    assert answer.status_code == 413
    assert "1048576 bytes" in answer.json()["detail"]


def test_a_client_that_sends_all_of_a_huge_body_first_sees_the_answer(
    idle_controller: Controller,
) -> None:
    connection = HTTPConnection("127.0.0.1", idle_controller.port, timeout=20)
    with contextlib.closing(connection):
        connection.request("POST", "/v2/ai/model", body=b"x" * 60_000_000)
        assert connection.getresponse().status == 413


def test_a_body_that_never_ends_does_not_stop_the_server(idle_controller: Controller) -> None:
    with socket.create_connection(("127.0.0.1", idle_controller.port), timeout=5) as connection:
        head = "POST /v2/ai/model HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf"
        connection.sendall(head.encode())
    assert idle_controller.call("GET", "/v2/ai/model").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/nothing", 404),
        ("GET", "/v2/ai/model/", 404),
        ("GET", "/v2/ai/deployment/x/y/z", 404),
        ("PUT", "/v2/ai/model", 405),
        ("DELETE", "/v2/ai/model", 405),
        ("PATCH", "/v2/ai/deployment", 405),
        ("GET", "/v2/ai/deployment/x/scale", 405),
        ("OPTIONS", "/v2/ai/model", 405),
        ("GET", "/zone", 404),
        ("GET", "/", 404),
    ],
)
def test_unknown_paths_and_methods_are_json_too(
    idle_controller: Controller, method: str, path: str, status: int
) -> None:
    answer = idle_controller.call(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    if status == 405:
        assert answer.headers["allow"]


@pytest.mark.parametrize(
    "query",
    [
        "tail=-1",
        "tail=x",
        "tail=1e3",
        "tail=1&tail=2",
        "tail=999999999",
        "since=yesterday",
        "since=2026-01-01",
        "follow=maybe",
        "previous=2",
    ],
)
def test_wrong_queries_are_refused(idle_controller: Controller, query: str) -> None:
    answer = idle_controller.call("GET", f"/v2/ai/deployment/x/logs?{query}")
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["location"] == f"$['{query.partition('=')[0]}']"


json_leaves = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
)
json_values: st.SearchStrategy[object] = st.deferred(
    lambda: (
        json_leaves
        | st.lists(json_values, max_size=3)
        | st.dictionaries(st.text(max_size=10), json_values, max_size=3)
    )
)
fields = st.sampled_from(
    [
        *WHOLE,
        "huggingface-token",
        "inference-engine",
        "inference-engine-parameters",
        "inference-engine-version",
        "product-name",
        "revision",
        "scope",
    ]
)
ROUTES = [
    ("POST", "/v2/ai/deployment?dry-run=dry-run"),
    ("POST", "/v2/ai/model?dry-run=dry-run"),
    ("POST", "/v2/ai/api-key"),
    ("POST", "/v2/ai/deployment/x/scale"),
    ("PATCH", "/v2/ai/deployment/x"),
]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    route=st.sampled_from(ROUTES),
    body=st.dictionaries(fields, json_values, max_size=8) | json_values,
    whole=st.booleans(),
)
def test_no_json_makes_the_server_fail(
    idle_controller: Controller, route: tuple[str, str], body: Any, whole: bool
) -> None:
    if whole and isinstance(body, dict):
        body = {**WHOLE, **body}
    try:
        data = json.dumps(body).encode()
    except ValueError:
        return
    answer = idle_controller.call(*route, data=data)
    assert answer.status_code < 500, (route, body, answer.text)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(route=st.sampled_from(ROUTES), data=st.binary(max_size=200))
def test_no_bytes_make_the_server_fail(
    idle_controller: Controller, route: tuple[str, str], data: bytes
) -> None:
    answer = idle_controller.call(*route, data=data)
    assert 400 <= answer.status_code < 500


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(parameters=st.lists(st.text(max_size=12) | st.sampled_from(["--seed", "1", "=", "--"])))
def test_no_parameters_make_the_server_fail(
    idle_controller: Controller, parameters: list[str]
) -> None:
    answer = create(idle_controller, inference_engine_parameters=parameters)
    assert answer.status_code in (200, 400)
