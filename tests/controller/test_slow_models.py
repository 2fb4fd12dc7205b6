"""A model that takes long to read is waited for by those who want it, and by nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from requests import Response

from exo_inference.controller import admission
from exo_inference.controller.admission import architectures
from exo_inference.controller.admission.world import World
from exo_inference.hub.base import ModelUnusable
from exo_inference.planner import Architecture
from exo_inference.resources import InferenceDeployment
from tests.controller.conftest import Controller


@dataclass
class HeldReader:
    """Reads a model for as long as it is told to."""

    asked: Event = field(default_factory=Event)
    released: Event = field(default_factory=Event)
    only: str | None = None

    async def read(self, directory: Path, name: str) -> Architecture:
        if self.only in (None, name):
            self.asked.set()
            await asyncio.to_thread(self.released.wait)
        raise ModelUnusable(f"{name} cannot be read")


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldReader]:
    made = HeldReader()
    monkeypatch.setattr(architectures, "read_directory_async", made.read)
    yield made
    made.released.set()


@pytest.fixture
def requests_at_once() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def start_create(
    controller: Controller, reader: HeldReader, pool: ThreadPoolExecutor
) -> Future[Response]:
    """Send the create of a deployment whose model is being read when this returns."""
    (weights,) = controller.state.root.rglob("model.safetensors")
    (weights.parent / "config.json").write_text("{}")
    body = {"name": "slow", "model": {"name": "org/m1"}, "gpu-type": "cpu", "gpu-count": 1}
    sent = pool.submit(controller.call, "POST", "/v2/ai/deployment", json={**body, "replicas": 1})
    assert reader.asked.wait(15)
    return sent


def test_a_replacement_whose_model_goes_while_it_is_read_is_refused(
    controller: Controller, requests_at_once: ThreadPoolExecutor, reader: HeldReader
) -> None:
    """What it is judged by is read when nobody else writes any more, and not before."""
    controller.create_model()
    path = f"/v2/ai/deployment/{controller.create_deployment()}"
    before = set(controller.state.root.rglob("model.safetensors"))
    model = controller.create_model("org/m2")
    (weights,) = set(controller.state.root.rglob("model.safetensors")) - before
    (weights.parent / "config.json").write_text("{}")
    body = {"model": {"name": "org/m2"}, "gpu-type": "cpu", "gpu-count": 1}
    sent = requests_at_once.submit(controller.call, "PUT", path, json=body)
    assert reader.asked.wait(15)
    try:
        assert controller.call("DELETE", f"/v2/ai/model/{model}").ok
    finally:
        reader.released.set()
    answer = sent.result()
    assert answer.status_code == 400, answer.text
    assert "there is no model 'org/m2'" in answer.text
    assert controller.call("GET", path).json()["model"]["name"] == "org/m1"


def test_an_update_is_judged_by_the_model_that_a_replacement_gave_meanwhile(
    controller: Controller,
    requests_at_once: ThreadPoolExecutor,
    reader: HeldReader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which model it has was read when others could still write."""
    controller.create_model()
    path = f"/v2/ai/deployment/{controller.create_deployment()}"
    controller.create_model("org/m2")
    for weights in controller.state.root.rglob("model.safetensors"):
        (weights.parent / "config.json").write_text("{}")
    judged: list[tuple[str, tuple[str, ...]]] = []

    def admit(
        wanted: Any, present: InferenceDeployment, world: World, *rest: Any, **how: Any
    ) -> Any:
        judged.append((present.spec.model, tuple(world.known)))
        return admit_update(wanted, present, world, *rest, **how)

    admit_update = admission.admit_update
    monkeypatch.setattr(admission, "admit_update", admit)
    reader.only = "org/m1"
    params = {"inference-engine-parameters": ["--max-num-seqs", "2"]}
    sent = requests_at_once.submit(controller.call, "PATCH", path, json=params)
    assert reader.asked.wait(15)
    try:
        body = {"model": {"name": "org/m2"}, "gpu-type": "cpu", "gpu-count": 1}
        assert controller.call("PUT", path, json=body).ok
    finally:
        reader.released.set()
    assert sent.result().ok, sent.result().text
    # A second time only if a status was written in between.
    assert set(judged) == {("org/m2", ("org/m2",))}


def test_others_write_while_the_model_of_a_create_is_read(
    controller: Controller, requests_at_once: ThreadPoolExecutor, reader: HeldReader
) -> None:
    controller.create_model()
    uid = controller.create_deployment()
    created = start_create(controller, reader, requests_at_once)
    try:
        path = f"/v2/ai/deployment/{uid}/scale"
        assert controller.call("POST", path, json={"replicas": 2}).ok
        assert not created.done()
    finally:
        reader.released.set()
    assert created.result().ok


def test_a_model_that_went_while_it_was_read_is_refused(
    controller: Controller, requests_at_once: ThreadPoolExecutor, reader: HeldReader
) -> None:
    uid = controller.create_model()
    created = start_create(controller, reader, requests_at_once)
    try:
        assert controller.call("DELETE", f"/v2/ai/model/{uid}").ok
    finally:
        reader.released.set()
    answer = created.result()
    assert answer.status_code == 400, answer.text
    assert "there is no model 'org/m1'" in answer.text
    assert controller.client().list_deployments()["deployments"] == []


def test_a_model_that_another_replaced_while_it_was_read_is_read_itself(
    controller: Controller,
    requests_at_once: ThreadPoolExecutor,
    reader: HeldReader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uid = controller.create_model()
    created = start_create(controller, reader, requests_at_once)
    again: list[str] = []

    async def read(directory: Path, name: str) -> Architecture:
        again.append(name)
        raise ModelUnusable(f"{name} cannot be read")

    try:
        client = controller.client()
        client.delete_model(id=uid)
        controller.wait_for(lambda: not client.list_models()["models"])
        controller.create_model()
        (weights,) = controller.state.root.rglob("model.safetensors")
        (weights.parent / "config.json").write_text('{"hidden_size": 1}')
        monkeypatch.setattr(architectures, "read_directory_async", read)
    finally:
        reader.released.set()
    assert created.result().ok
    assert again == ["org/m1"]
