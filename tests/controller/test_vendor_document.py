"""Every path under `/ai` of the vendor's openapi document is served, with every argument it has.

The document is that of the installed `exoscale` package: a newer one with a new operation fails here.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from exo_inference.controller.stores.sqlite import SqliteStore
from exo_inference.resources import ApiKeySpec, InferenceApiKey, ObjectMeta
from exo_inference.state_dir import StateDir
from tests.controller.conftest import Controller
from tests.controller.fakes import log_line
from tests.controller.openapi import NEWER, operations

AI = {each: found for each, found in operations().items() if each[1].startswith("/ai")}
EVERY = sorted([*AI, *NEWER])

DEPLOYMENT = {
    "name": "other",
    "model": {"name": "org/m1"},
    "gpu-type": "cpu",
    "gpu-count": 1,
    "replicas": 1,
}

BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/ai/model"): {"name": "org/m2"},
    ("POST", "/ai/deployment"): DEPLOYMENT,
    ("PATCH", "/ai/deployment/{id}"): {"inference-engine-parameters": ["--max-model-len=1024"]},
    ("POST", "/ai/deployment/{id}/scale"): {"replicas": 2},
    ("POST", "/ai/api-key"): {"name": "new", "scope": "public"},
    ("PATCH", "/ai/api-key/{id}"): {"name": "renamed"},
}

ARGUMENTS = {"visibility": "private", "version": "0.25.0", "stream": "true", "tail": "2"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    controller = Controller(StateDir(tmp_path_factory.mktemp("document") / "state"))
    with controller.running():
        controller.platform.log_lines = [log_line(number) for number in range(5)]
        controller.create_model()
        controller.create_deployment()
        yield controller


@pytest.fixture
def ids(served: Controller) -> dict[str, str]:
    """One object of each kind that an operation may change or delete."""
    model = served.call("GET", "/v2/ai/model").json()["models"][0]["id"]
    name = f"d-{uuid.uuid4()}"[:20]
    made = served.call("POST", "/v2/ai/deployment", json={**DEPLOYMENT, "name": name})
    key = served.call("POST", "/v2/ai/api-key", json={"name": name, "scope": "public"})
    return {
        "model": model,
        "deployment": made.json()["reference"]["id"],
        "api-key": key.json()["id"],
    }


@pytest.mark.parametrize(("method", "path"), EVERY, ids=[" ".join(each) for each in EVERY])
def test_every_operation_of_the_document_works(
    served: Controller, ids: dict[str, str], method: str, path: str
) -> None:
    if (method, path) == ("DELETE", "/ai/model/{id}"):
        ids["model"] = served.create_model("org/unused")
    given = [each["name"] for each in AI.get((method, path), {}).get("parameters", [])]
    arguments = [name for name in given if name != "id"]
    queries = ["", *(f"?{name}={ARGUMENTS[name]}" for name in arguments)]
    for query in queries:
        target = path.replace("{id}", ids.get(path.split("/")[2], ""))
        answer = served.call(method, f"/v2{target}{query}", json=BODIES.get((method, path)))
        assert answer.status_code == 200, (query, answer.text)  # its form is checked by the hook


@pytest.mark.parametrize(("method", "path"), [each for each in EVERY if "{id}" in each[1]])
def test_an_unknown_id_is_told_by_every_operation(
    served: Controller, method: str, path: str
) -> None:
    target = path.replace("{id}", str(uuid.uuid4()))
    answer = served.call(method, f"/v2{target}", json=BODIES.get((method, path)))
    assert answer.status_code == 404, answer.text
    assert answer.json()["title"].startswith("No such"), answer.text
    assert answer.json()["title"] != "No such path"


def test_a_key_can_be_renamed_rescoped_revealed_and_rotated(controller: Controller) -> None:
    controller.create_model()
    uid = controller.create_deployment()
    made = controller.call("POST", "/v2/ai/api-key", json={"name": "k", "scope": "public"}).json()
    path = f"/v2/ai/api-key/{made['id']}"
    routes = controller.state.routes_file
    assert controller.call("GET", f"{path}/reveal").json() == {"value": made["value"]}

    changed = controller.call("PATCH", path, json={"name": "k2", "scope": uid}).json()
    assert (changed["name"], changed["scope"], changed["id"]) == ("k2", uid, made["id"])
    controller.wait_for(lambda: '"public-keys": []' in routes.read_text())
    controller.wait_for(lambda: made["id"] in routes.read_text())
    assert controller.call("GET", f"{path}/reveal").json() == {"value": made["value"]}

    rotated = controller.call("POST", f"{path}/rotate").json()["value"]
    assert rotated.startswith("exo-")
    assert rotated != made["value"]
    assert controller.call("GET", f"{path}/reveal").json() == {"value": rotated}
    assert rotated not in routes.read_text()

    # The old name is free again, also where it still names the object.
    again = controller.call("POST", "/v2/ai/api-key", json={"name": "k", "scope": "public"})
    assert again.status_code == 200
    for wrong, status in (
        ({"name": "k"}, 409),
        ({"name": "-"}, 400),
        ({"scope": "x"}, 400),
        ({"scope": str(uuid.uuid4())}, 404),
        ({"value": "mine"}, 400),
        ({}, 400),
    ):
        assert controller.call("PATCH", path, json=wrong).status_code == status, wrong
    assert controller.call("PATCH", path, json={"name": "k2"}).status_code == 200


def test_a_key_that_was_made_elsewhere_cannot_be_revealed_until_it_is_rotated(
    stopped_controller: Controller,
) -> None:
    """By kubectl, or by a version that kept hashes alone."""

    async def make() -> str:
        store = await SqliteStore.open(stopped_controller.state.database_file)
        spec = ApiKeySpec(display_name="old", scope="public", sha256="0" * 64)
        made = await store.create(InferenceApiKey(metadata=ObjectMeta(name="old"), spec=spec))
        await store.close()
        return made.metadata.uid

    with stopped_controller.running():
        pass
    path = f"/v2/ai/api-key/{asyncio.run(make())}"
    with stopped_controller.running() as controller:
        unknown = controller.call("GET", f"{path}/reveal")
        assert (unknown.status_code, "Rotate" in unknown.text) == (404, True)
        value = controller.call("POST", f"{path}/rotate").json()["value"]
        assert controller.call("GET", f"{path}/reveal").json() == {"value": value}
