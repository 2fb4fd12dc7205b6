"""`update --inference-engine-version`: what the other release means for the present flags."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Exo
from .fake_api import FakeApi

UPDATE = ("ai", "deployment", "update", "chat", "--inference-engine-version")
OLD_FLAGS = ["--swap-space=4", "--chat-template", "a b", "--enforce-eager"]


def deploy(api: FakeApi, **more: Any) -> str:
    fields = {"inference-engine-parameters": OLD_FLAGS, "inference-engine-version": "0.12.0"}
    deployment_id: str = api.add_deployment("chat", **fields | more)["id"]
    return deployment_id


def patches(api: FakeApi) -> list[Any]:
    return [request.body for request in api.requests if request.method == "PATCH"]


def test_flags_that_do_not_exist_there_stop_the_update(exo: Exo, api: FakeApi) -> None:
    deploy(api)
    result = exo(*UPDATE, "0.28.0")
    assert (result.code, result.out) == (1, "")
    lines = result.err.splitlines()
    assert lines[0].startswith("removed  --swap-space is not in vLLM 0.28.0 and is left out")
    assert any(line.startswith("default  --gpu-memory-utilization is not set") for line in lines)
    assert lines[-1] == (
        "  exo ai deployment update chat --inference-engine-version 0.28.0 "
        """--inference-engine-params '--chat-template '"'"'a b'"'"' --enforce-eager'"""
    )
    assert patches(api) == []


def test_migrate_updates_version_and_flags_at_once(exo: Exo, api: FakeApi) -> None:
    deploy(api)
    result = exo(*UPDATE, "0.28.0", "--migrate")
    assert (result.code, result.out) == (0, "Deployment updated.\n")
    assert patches(api) == [
        {
            "inference-engine-parameters": ["--chat-template", "a b", "--enforce-eager"],
            "inference-engine-version": "0.28.0",
        }
    ]


def test_flags_that_exist_there_stay_as_they_are(exo: Exo, api: FakeApi) -> None:
    deploy(api, **{"inference-engine-parameters": ["--max-model-len=4096"]})
    result = exo(*UPDATE, "0.28.0")
    assert result.code == 0
    assert "default  --gpu-memory-utilization" in result.err
    assert patches(api) == [{"inference-engine-version": "0.28.0"}]
    assert exo(*UPDATE, "0.28.0", "-Q").err == ""


def test_what_nothing_replaces_is_refused_also_with_migrate(exo: Exo, api: FakeApi) -> None:
    flags = ["--kv-cache-dtype=nvfp4"]
    deploy(api, **{"inference-engine-parameters": flags, "inference-engine-version": "0.20.0"})
    result = exo(*UPDATE, "0.19.0", "--migrate")
    assert result.code == 1
    assert "can be taken to vLLM 0.19.0; nothing was changed" in result.err
    assert patches(api) == []


def test_flags_that_are_given_need_no_migration(exo: Exo, api: FakeApi) -> None:
    deploy(api)
    assert exo(*UPDATE, "0.28.0", "--inference-engine-params", "--enforce-eager").code == 0
    assert patches(api)[0]["inference-engine-parameters"] == ["--enforce-eager"]


@pytest.mark.parametrize(
    ("version", "engine"),
    [("0.28.0", "exo 0.1.0"), ("0.12.0", None), ("7.0.0", None)],
    ids=["exo-engine", "same release", "release that is not known"],
)
def test_the_control_plane_judges_what_is_not_known_here(
    exo: Exo, api: FakeApi, version: str, engine: str | None
) -> None:
    deploy(api, **({"inference-engine": engine} if engine else {}))
    result = exo(*UPDATE, version)
    assert (result.code, result.err) == (0, 'Updating deployment "chat"...\n')
    assert patches(api) == [{"inference-engine-version": version}]


def test_unknown_release_cannot_be_migrated_to(exo: Exo, api: FakeApi) -> None:
    deploy(api)
    result = exo(*UPDATE, "7.0.0", "--migrate")
    assert result.code == 2
    assert "7.0.0" in result.err


@pytest.mark.parametrize(
    "argv",
    [
        ("--migrate",),
        ("--migrate", "--inference-engine-version", "0.28.0", "--inference-engine-params=--x"),
        ("--migrate", "--inference-engine-version", "0.28.0", "--clear-inference-engine-params"),
    ],
    ids=["no version", "flags", "clear"],
)
def test_migrate_needs_a_version_and_no_flags(
    exo: Exo, api: FakeApi, argv: tuple[str, ...]
) -> None:
    result = exo("ai", "deployment", "update", "chat", *argv)
    assert result.code == 2
    assert "--migrate takes the present flags" in result.err


def test_a_refused_version_tells_no_migration(exo: Exo, api: FakeApi) -> None:
    uid = deploy(api, **{"inference-engine-parameters": []})
    api.answers[f"PATCH /v2/ai/deployment/{uid}"] = (400, {"message": "no such version"})
    for version in ("0.28.0", "0.29.0"):
        result = exo(*UPDATE, version)
        assert result.code == 1
        assert "no such version" in result.err
        assert "default  " not in result.err
