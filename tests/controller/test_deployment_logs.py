"""Logs of a deployment: chosen, followed, and let go of."""

from __future__ import annotations

import json
import time

from exo_inference.controller.http.server import SHUTDOWN_SECONDS
from tests.controller.conftest import Controller
from tests.controller.fakes import log_line


def test_logs_can_be_chosen_and_followed(controller: Controller) -> None:
    controller.create_model()
    uid = controller.create_deployment()
    controller.platform.log_lines = [log_line(n) for n in range(20)]
    path = f"/v2/ai/deployment/{uid}/logs"
    assert len(controller.call("GET", path).json()["logs"]) == 10
    assert len(controller.call("GET", path + "?tail=0").json()["logs"]) == 0
    since = controller.call("GET", path + "?since=2026-11-20T20:00:05Z").json()["logs"]
    assert len(since) == 15
    assert controller.call("GET", path + "?replica=none").json()["logs"] == []
    controller.platform.is_log_endless = True
    with controller.call("GET", path + "?follow=true&tail=1", stream=True) as answer:
        assert answer.headers["content-type"] == "application/x-ndjson"
        lines = answer.iter_lines()
        entries = [json.loads(next(lines)) for _ in range(3)]
    assert [entry["message"] for entry in entries] == ["line 19", "line 99", "line 99"]


def test_following_ends_with_the_client_and_with_the_deployment(controller: Controller) -> None:
    platform = controller.platform
    platform.is_log_endless = platform.is_log_quiet = True
    platform.log_lines = [log_line(1)]
    controller.create_model()
    uid = controller.create_deployment()
    path = f"/v2/ai/deployment/{uid}/logs?follow=true"
    left = controller.call("GET", path, stream=True)
    followed = controller.call("GET", path, stream=True)
    others, entries = left.iter_lines(), followed.iter_lines()
    assert next(others) == next(entries)
    controller.wait_for(lambda: platform.open_logs == 2)
    left.close()
    controller.wait_for(lambda: platform.open_logs == 1)
    controller.client().delete_deployment(id=uid)
    assert list(entries) == []
    assert platform.open_logs == 0


def test_a_followed_log_does_not_hold_up_the_end(stopped_controller: Controller) -> None:
    controller = stopped_controller
    controller.platform.is_log_endless = True
    with controller.running():
        controller.create_model()
        uid = controller.create_deployment()
        path = f"/v2/ai/deployment/{uid}/logs?follow=true"
        answer = controller.call("GET", path, stream=True)
        lines = answer.iter_lines()
        assert json.loads(next(lines))["message"] == "line 99"
        stopped_at = time.monotonic()
    assert time.monotonic() - stopped_at < SHUTDOWN_SECONDS
    answer.close()
