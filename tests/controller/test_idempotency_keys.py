"""What the header Idempotency-Key does, and what it does no more once its day is over."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import requests

from exo_inference.controller.http import operations
from tests.controller.conftest import Controller

PUBLIC = {"name": "k", "scope": "public"}


def post(controller: Controller, path: str, key: str, body: Any = None) -> requests.Response:
    """Send a create or a rotation with an idempotency key; its signature is another one each time."""
    headers = {"Idempotency-Key": key}
    return controller.call("POST", f"/v2/ai/{path}", json=body, headers=headers)


def is_gone(controller: Controller, path: str) -> bool:
    return controller.call("GET", path).status_code == 404


def let_a_day_pass(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the requests, as the reconciler does after 24 hours; operations stay for 30 days."""
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    monkeypatch.setattr(operations, "today", lambda: tomorrow)
    database = sqlite3.connect(controller.state.database_file, timeout=20)
    with database:
        database.execute("DELETE FROM requests")
    database.close()


def test_a_deleted_key_never_gets_its_value_back(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = post(controller, "api-key", "nightly", PUBLIC).json()
    assert controller.call("DELETE", f"/v2/ai/api-key/{made['id']}").ok
    let_a_day_pass(controller, monkeypatch)
    again = post(controller, "api-key", "nightly", PUBLIC).json()
    assert again["value"] != made["value"]
    assert again["id"] != made["id"]
    assert controller.call("DELETE", f"/v2/ai/api-key/{again['id']}").status_code == 200


def test_a_rotation_never_gives_a_value_again(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"api-key/{post(controller, 'api-key', 'first', PUBLIC).json()['id']}/rotate"
    leaked = post(controller, path, "nightly").json()["value"]
    assert post(controller, path, "nightly").json()["value"] == leaked
    let_a_day_pass(controller, monkeypatch)
    assert post(controller, path, "nightly").json()["value"] != leaked


@pytest.mark.parametrize("noun", ["model", "deployment"])
def test_what_was_created_a_second_time_can_be_deleted(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, noun: str
) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "model": {"name": "org/m2"},
        "deployment": {"name": "chat", "model": {"name": "org/m1"}, "gpu-type": "cpu"},
    }
    controller.create_model()
    body = {"gpu-count": 1, "replicas": 1, **bodies[noun]} if noun == "deployment" else bodies[noun]
    for _ in range(2):
        made = post(controller, noun, "nightly", body).json()
        path = f"/v2/ai/{noun}/{made['reference']['id']}"
        assert controller.call("DELETE", path).status_code == 200
        controller.wait_for(partial(is_gone, controller, path))
        let_a_day_pass(controller, monkeypatch)
