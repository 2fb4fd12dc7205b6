"""`--wait`: what is shown meanwhile, and how it ends."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Exo
from .fake_api import FakeApi

CREATE = ("ai", "deployment", "create", "d1", "--gpu-type", "cpu", "--gpu-count", "1")
STARTING = "deploying (0/1 replicas ready): loading weights 43 %"


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exo_inference.sdk._waiting.ready_interval", lambda elapsed: 0.0)


def stages(api: FakeApi, *changes: dict[str, Any]) -> None:
    """Let the deployment look different each time it is asked for."""
    base = api.add_deployment("d1", ready_replicas=0)
    looks = [(200, base | change) for change in changes]
    api.answers[f"GET /v2/ai/deployment/{base['id']}"] = looks


def test_wait_prints_each_change_once_and_succeeds(exo: Exo, api: FakeApi) -> None:
    loading = {"state": "deploying", "state-details": "loading weights 43 %"}
    stages(api, {"state": "creating"}, loading, loading, {"state": "ready", "ready-replicas": 1})
    result = exo("ai", "deployment", "scale", "d1", "1", "--wait")
    assert result.code == 0
    assert result.err.splitlines() == [
        "Scaling deployment d1 to 1...",
        'Waiting for deployment "d1"...',
        "  0s: creating (0/1 replicas ready)",
        f"  0s: {STARTING}",
        "  0s: ready (1/1 replicas ready)",
    ]


def test_wait_ends_with_8_and_the_reason_when_it_cannot_become_ready(
    exo: Exo, api: FakeApi
) -> None:
    stages(api, {"state": "error", "state-details": "config.json: unknown architecture Foo"})
    result = exo("ai", "deployment", "update", "d1", "--wait")
    assert (result.code, result.out) == (8, "Deployment updated.\n")
    assert 'error: deployment "d1" cannot become ready: config.json: unknown' in result.err
    assert "Run `exo dedicated-inference deployment logs d1`." in result.err


def test_scale_waits_for_what_serves_after_an_update_was_rolled_back(
    exo: Exo, api: FakeApi
) -> None:
    said = {"state": "error", "state-details": "the update was rolled back: unknown flag --x"}
    stages(api, said, said | {"ready-replicas": 1})
    result = exo("ai", "deployment", "scale", "d1", "1", "--wait")
    assert result.code == 0
    assert "error (1/1 replicas ready): the update was rolled back" in result.err


SERVED = {
    "model": "org/m0",
    "gpu-type": "gpua5000",
    "gpu-count": 2,
    "inference-engine": "vllm 0.25.0",
    "inference-engine-parameters": [],
}


def test_restart_waits_until_new_replicas_serve_after_an_update_was_rolled_back(
    exo: Exo, api: FakeApi
) -> None:
    def look(*replicas: tuple[str, str]) -> dict[str, Any]:
        shown = [{"name": name, "state": state} for name, state in replicas]
        ready = sum(state == "ready" for _, state in replicas)
        return {"replica-status": shown, "ready-replicas": ready}

    said = {"state": "error", "state-details": "the update was rolled back: unknown flag --x"}
    said["last-in-effect"] = SERVED
    old, new = look(("d1-a", "ready")), look(("d1-b", "ready"))
    stages(
        api,
        said | old,  # before the restart
        said | old,
        said | look(("d1-a", "ready"), ("d1-b", "starting")),
        said | look(("d1-a", "draining"), ("d1-b", "ready")),
        said | new,
    )
    base = api.deployments["/v2"][0]
    api.answers[f"POST /v2/ai/deployment/{base['id']}/restart"] = (
        200,
        {"id": "o", "state": "success"},
    )
    result = exo("ai", "deployment", "restart", "d1", "--wait")
    assert result.code == 0, result.err
    gets = [line for line in api.lines if line == f"GET /v2/ai/deployment/{base['id']}"]
    assert len(gets) == 5
    assert result.err.endswith(
        '"d1" serves org/m0 as before the change that failed, see `deployment show`.\n'
    )


def test_an_update_of_what_is_scaled_to_0_says_that_it_was_not_tried(
    exo: Exo, api: FakeApi
) -> None:
    stages(api, {"replicas": 0, "last-in-effect": SERVED})
    base = api.deployments["/v2"][0]
    base["replicas"] = 0
    result = exo("ai", "deployment", "update", "d1", "--inference-engine-params=--a", "--wait")
    assert (result.code, result.out) == (0, "Deployment updated.\n")
    assert result.err.endswith('"d1" is scaled to 0: the change is tried when it is scaled up.\n')


def test_wait_ends_with_8_when_the_time_is_up(exo: Exo, api: FakeApi) -> None:
    stages(api, {"state": "deploying", "state-details": "loading weights 43 %"})
    result = exo("ai", "deployment", "scale", "d1", "1", "--wait", "--timeout", "50ms")
    assert result.code == 8
    assert "is not ready after 0.05 s: deploying (loading weights 43 %)" in result.err


def test_create_waits_for_what_it_created(exo: Exo, api: FakeApi) -> None:
    result = exo(*CREATE, "--model-name", "exo/tiny-chat", "--wait", "--timeout", "60")
    assert (result.code, result.out) == (0, "Deployment created.\n")
    assert api.lines[-1] == f"GET /v2/ai/deployment/{api.deployments['/v2'][0]['id']}"


def test_quiet_waits_in_silence(exo: Exo, api: FakeApi) -> None:
    result = exo(*CREATE, "--model-name", "exo/tiny-chat", "--wait", "-Q")
    assert (result.code, result.out, result.err) == (0, "", "")


def test_model_wait_shows_the_progress_of_the_download(exo: Exo, api: FakeApi) -> None:
    def created(body: dict[str, Any]) -> tuple[int, Any]:
        model = api.add_model(body["name"])
        half = model | {"state": "downloading", "downloaded-bytes": 8034856960}
        api.answers[f"GET /v2/ai/model/{model['id']}"] = [(200, half), (200, model)]
        return api._operation(model["id"])

    api.answers["POST /v2/ai/model"] = created
    result = exo("ai", "model", "create", "org/m1", "--wait")
    assert result.code == 0
    assert "  0s: downloading: 7.5 GiB of 15 GiB (50 %)\n  0s: ready\n" in result.err


def test_model_wait_says_why_a_download_stands_still(exo: Exo, api: FakeApi) -> None:
    def created(body: dict[str, Any]) -> tuple[int, Any]:
        model = api.add_model(body["name"])
        full = {"state": "downloading", "downloaded-bytes": 5, "state-details": "disk full"}
        api.answers[f"GET /v2/ai/model/{model['id']}"] = [(200, model | full), (200, model)]
        return api._operation(model["id"])

    api.answers["POST /v2/ai/model"] = created
    result = exo("ai", "model", "create", "org/m1", "--wait")
    assert "  0s: downloading: disk full\n  0s: ready\n" in result.err


def test_delete_waits_until_it_is_gone(exo: Exo, api: FakeApi) -> None:
    deployment = api.add_deployment("d1")
    result = exo("ai", "deployment", "delete", "d1", "-f", "--wait")
    assert result.code == 0
    assert api.lines[-1] == f"GET /v2/ai/deployment/{deployment['id']}"
    assert 'Waiting until deployment "d1" is gone...\n' in result.err


def test_on_a_terminal_there_is_one_live_line_that_ends_in_a_mark(exo: Exo, api: FakeApi) -> None:
    stages(api, {"state": "ready", "ready-replicas": 1})
    result = exo("ai", "deployment", "scale", "d1", "1", "--wait", tty=True)
    assert result.code == 0
    assert 'Waiting for deployment "d1"... 0s' in result.err
    assert result.err.count("✔") == 2
    assert "✘" not in result.err


def test_the_mark_of_a_failure_is_another(exo: Exo, api: FakeApi) -> None:
    stages(api, {"state": "error", "state-details": "broken"})
    result = exo("ai", "deployment", "scale", "d1", "1", "--wait", tty=True)
    assert result.code == 8
    assert "✘" in result.err
