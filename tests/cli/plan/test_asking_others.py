"""Models that only the control plane or the Hub knows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from exo_inference.cli.plan import planners
from exo_inference.errors import HubError
from exo_inference.planner import Architecture, find_gpu, find_model
from exo_inference.preflight import Subject, judge, to_wire
from tests.cli.conftest import Exo
from tests.cli.fake_api import FakeApi

PLAN = ("ai", "deployment", "plan", "--gpu-type", "l40s")
ID = "39791b86-f80d-41ed-9cab-854099d4ed37"
NOT_FOUND = (404, {"title": "Not here", "detail": "there is no /ai/plan", "message": "x"})


@pytest.fixture
def planning_api(api: FakeApi) -> FakeApi:
    """A control plane that knows one more model."""
    model = replace(find_model("Qwen/Qwen3-8B"), name="acme/own-8b")
    answer = to_wire(judge(Subject(model, find_gpu("l40s"), 1))).to_wire()
    api.answers["POST /v2/ai/plan"] = (200, answer)
    return api


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Callable[[Architecture | None], None]:
    """Say what the Hub has; without being told, asking it fails the test."""
    found: list[Architecture | None] = []

    def from_hub(name: str, *, quiet: bool) -> Architecture:
        assert found, "the Hub was asked"
        if found[0] is None:
            raise HubError(f"the Hub has no {name}")
        return replace(found[0], name=name)

    monkeypatch.setattr(planners, "_from_hub", from_hub)
    return found.append


def test_bundled_model_asks_nobody(exo: Exo, planning_api: FakeApi) -> None:
    assert exo(*PLAN, "--model-name", "Qwen/Qwen3-8B").code == 0
    assert planning_api.requests == []


def test_unknown_name_is_planned_by_the_control_plane(
    exo: Exo, planning_api: FakeApi, hub: object
) -> None:
    flags = ("--inference-engine-params", "--max-model-len=8192 --enforce-eager")
    result = exo(*PLAN, "--model-name", "acme/own-8b", "--inference-engine", "exo", *flags)
    assert (result.code, result.out.splitlines()[0]) == (
        0,
        "Fits: acme/own-8b on 1 × NVIDIA L40S, vLLM 0.28.0",
    )
    assert planning_api.requests[-1].body == {
        "model": {"name": "acme/own-8b"},
        "gpu-type": "l40s",
        "gpu-count": 1,
        "inference-engine-parameters": ["--max-model-len=8192", "--enforce-eager"],
        "inference-engine": "exo",
    }


def test_id_is_planned_by_the_control_plane(exo: Exo, planning_api: FakeApi) -> None:
    assert exo(*PLAN, "--model-id", ID).code == 0
    assert planning_api.requests[-1].body["model"] == {"id": ID}


def test_comparison_asks_the_control_plane_for_every_gpu(
    exo: Exo, planning_api: FakeApi, hub: object
) -> None:
    argv = ("ai", "deployment", "plan", "--compare=l4,h100", "--gpu-count=2")
    assert exo(*argv, "--model-name", "acme/own-8b").code == 0
    bodies = [request.body for request in planning_api.requests if request.body]
    assert [(body["gpu-type"], body["gpu-count"]) for body in bodies[-2:]] == [
        ("l4", 2),
        ("h100", 2),
    ]
    assert bodies[-1]["without-advice"] is True


def test_arithmetic_is_only_shown_of_what_is_known_here(
    exo: Exo, planning_api: FakeApi, hub: object
) -> None:
    result = exo(*PLAN, "--model-name", "acme/own-8b", "--explain")
    assert result.code == 2
    assert "Give its directory or config.json with --model." in result.err


def test_offline_asks_nobody(exo: Exo, planning_api: FakeApi, hub: object) -> None:
    result = exo(*PLAN, "--model-name", "acme/own-8b", "--offline")
    assert result.code == 2
    assert "'acme/own-8b' is not in the bundled catalogue" in result.err
    assert planning_api.requests == []


def test_hub_is_asked_where_the_control_plane_does_not_know(
    exo: Exo, api: FakeApi, hub: Callable[[Architecture | None], None]
) -> None:
    api.answers["POST /v2/ai/plan"] = NOT_FOUND
    hub(find_model("Qwen/Qwen3-8B"))
    result = exo(*PLAN, "--model-name", "acme/public-8b", "-O", "json")
    assert result.code == 0
    assert json.loads(result.out)["model"] == "acme/public-8b"


def test_name_that_nobody_knows_says_who_was_asked(
    exo: Exo, api: FakeApi, hub: Callable[[Architecture | None], None]
) -> None:
    api.answers["POST /v2/ai/plan"] = NOT_FOUND
    hub(None)
    result = exo(*PLAN, "--model-name", "Qwen/Qwen3-9B")
    assert (result.code, result.out) == (2, "")
    assert "'Qwen/Qwen3-9B' is not in the bundled catalogue" in result.err
    assert "  - control plane: " in result.err
    assert "  - Hub: the Hub has no Qwen/Qwen3-9B" in result.err
    assert "Did you mean Qwen/Qwen3.5-9B" in result.err


def test_without_any_configuration_the_hub_is_asked(
    exo: Exo, hub: Callable[[Architecture | None], None]
) -> None:
    hub(find_model("Qwen/Qwen3-8B"))
    assert exo(*PLAN, "--model-name", "acme/public-8b").code == 0


def test_refused_credentials_are_told(exo: Exo, api: FakeApi, hub: object) -> None:
    api.answers["POST /v2/ai/plan"] = (403, {"title": "Forbidden", "message": "no such key"})
    assert exo(*PLAN, "--model-name", "acme/own-8b").code == 4
