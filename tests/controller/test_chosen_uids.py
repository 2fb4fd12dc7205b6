"""Uids that somebody chose, tried against a whole controller with real Helm on a real API server.

A tenant may create InferenceDeployments and nothing else. Nothing that he writes there touches the control
plane's release, a model's volume, or a deployment that runs.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.controller.control_plane_processes import MERGE, ControlPlane, alone, wait_for
from tests.platforms.kubernetes.test_whose_release import record, write_record

__all__ = ["alone"]

CHOSEN = "7d3b9f0e-5a55-4b8b-9a5e-0d1f6c1d2a11"
OTHER = "0f1e2d3c-4b5a-4678-9abc-def012345678"
ANNOTATION = "inference.exo.dev/uid"


@pytest.fixture
def plane(alone: ControlPlane) -> ControlPlane:
    process = alone.start("controller-1")
    wait_for(lambda: process.probe("/readyz")[0] == 200 and process.is_leading)
    return alone


def create(plane: ControlPlane, name: str, asks: str | None) -> None:
    annotations = {} if asks is None else {ANNOTATION: asks}
    body = {
        "apiVersion": "inference.exo.dev/v1alpha1",
        "kind": "InferenceDeployment",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"model": "exo/tiny-chat", "gpuType": "cpu"},
    }
    plane.api.request("POST", plane.path("inferencedeployments"), body)


def annotate(plane: ControlPlane, plural: str, name: str, asks: str | None) -> None:
    body = {"metadata": {"annotations": {ANNOTATION: asks}}}
    plane.api.client.request("PATCH", plane.path(plural, name), body, MERGE)


def ready(plane: ControlPlane, name: str, plural: str = "inferencedeployments") -> dict[str, Any]:
    found = plane.api.request("GET", plane.path(plural, name)).get("status", {})
    conditions = {item["type"]: item for item in found.get("conditions", ())}
    condition: dict[str, Any] = conditions.get("Ready", {})
    return condition


def has_reason(plane: ControlPlane, name: str, reason: str) -> None:
    wait_for(lambda: ready(plane, name).get("reason") == reason)
    assert ready(plane, name)["status"] == "False"


def state(plane: ControlPlane, kinds: str) -> list[tuple[str, str, bool]]:
    """Return what there is: kind and name, uid, and whether it is going."""
    found = json.loads(plane.api.kubectl("get", kinds, "--output=json").stdout)["items"]
    return sorted(
        (
            f"{item['kind']}/{item['metadata']['name']}",
            item["metadata"]["uid"],
            "deletionTimestamp" in item["metadata"],
        )
        for item in found
    )


RELEASES = "secrets,deployments,jobs,services,persistentvolumeclaims,networkpolicies"


def test_no_uid_that_is_asked_for_touches_what_is_not_the_objects(plane: ControlPlane) -> None:
    model = plane.create_ready_model(plane.leader)
    packed = record("exo-inference", {"replicas": 2}, "exo-inference")
    write_record(plane.api, "exo-inference", packed, "deployed")
    plane.api.kubectl("create", "service", "clusterip", "exo-inference", "--tcp=80:80")
    create(plane, "chat", f"chat/{CHOSEN}")
    wait_for(lambda: len(plane.deployments()) == 1)
    wait_for(lambda: not _unfinished(plane))
    before = state(plane, RELEASES)

    attacks = {
        "a": ("a/inference", "InvalidUid"),
        "b": (f"b/model-{model}", "InvalidUid"),
        "c": (f"c/{model}", "DuplicateUid"),
        "d": (f"d/{CHOSEN}", "DuplicateUid"),
        "e": (f"e/m-{model}", "InvalidUid"),
    }
    for name, (asks, _) in attacks.items():
        create(plane, name, asks)
    for name, (_, reason) in attacks.items():
        has_reason(plane, name, reason)
    for name in attacks:
        plane.api.kubectl("delete", "inferencedeployment", name, "--timeout=30s")

    # A key's scope is looked for as a deployment's uid; of one that is nobody's all is removed.
    for scope in ("inference", f"model-{model}", model):
        spec = {"displayName": f"k {scope}", "scope": scope, "sha256": "0" * 64}
        kind = {"apiVersion": "inference.exo.dev/v1alpha1", "kind": "InferenceApiKey"}
        body = {**kind, "metadata": {"name": f"k-{scope}"}, "spec": spec}
        plane.api.request("POST", plane.path("inferenceapikeys"), body)
        wait_for(
            lambda name=f"k-{scope}": (
                ready(plane, name, "inferenceapikeys").get("reason") == "UnknownScope"
            )
        )
    assert state(plane, RELEASES) == before

    # Later, on one that runs: what the version before took for another deployment.
    status = plane.api.request("GET", plane.path("inferencedeployments", "chat"))["status"]
    assert (status["uid"], status["release"]) == (CHOSEN, f"exo-d-{CHOSEN}")
    for asks in (f"chat/{OTHER}", "chat/inference", OTHER):
        annotate(plane, "inferencedeployments", "chat", asks)
        has_reason(plane, "chat", "UidChanged")
    shown = plane.call(plane.leader, "GET", f"/ai/deployment/{CHOSEN}")
    assert (shown["name"], shown["state"]) == ("chat", "error")
    assert f"the id has been {CHOSEN}" in shown["state-details"]
    annotate(plane, "inferencedeployments", "chat", None)
    wait_for(lambda: ready(plane, "chat").get("reason") != "UidChanged")
    after = plane.api.request("GET", plane.path("inferencedeployments", "chat"))["status"]
    assert [after[key] for key in ("uid", "url", "keySha256")] == [
        status[key] for key in ("uid", "url", "keySha256")
    ]

    # By hand, past the schema of who writes what: it is put right, and nothing follows from it.
    wrong = {
        "readyReplicas": 99,
        "uid": OTHER,
        "url": "https://elsewhere.example/v1",
        "keySha256": "0" * 64,
    }
    path = plane.path("inferencedeployments", "chat")
    plane.api.client.request("PATCH", f"{path}/status", {"status": wrong}, MERGE)
    kept = ("uid", "url", "keySha256", "readyReplicas")

    def is_put_right() -> bool:
        found = plane.api.request("GET", path)["status"]
        return [found[key] for key in kept] == [after[key] for key in kept]

    wait_for(is_put_right, seconds=30)  # a sweep comes every minute

    (name,) = [m["metadata"]["name"] for m in _models(plane)]
    annotate(plane, "inferencemodels", name, f"{name}/{OTHER}")
    wait_for(lambda: ready(plane, name, "inferencemodels").get("reason") == "UidChanged")
    annotate(plane, "inferencemodels", name, f"{name}/{model}")
    wait_for(lambda: ready(plane, name, "inferencemodels").get("status") == "True")
    assert state(plane, RELEASES) == before
    assert plane.call(plane.leader, "GET", f"/ai/model/{model}")["state"] == "ready"


def _models(plane: ControlPlane) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = plane.api.request("GET", plane.path("inferencemodels"))["items"]
    return found


def _unfinished(plane: ControlPlane) -> str:
    states = "owner=helm,status in (pending-install,pending-upgrade)"
    return plane.api.kubectl("get", "secrets", f"--selector={states}", "--output=name").stdout


def test_who_was_refused_an_id_does_not_inherit_it_and_what_is_made_anew_has_it(
    plane: ControlPlane,
) -> None:
    """As with GitOps: the one of Git is deleted and made anew, while another waits for its id."""
    plane.create_ready_model(plane.leader)
    create(plane, "first", f"first/{CHOSEN}")
    wait_for(lambda: len(plane.deployments()) == 1)
    create(plane, "second", f"second/{CHOSEN}")
    has_reason(plane, "second", "DuplicateUid")
    assert "InferenceDeployment first had the id" in ready(plane, "second")["message"]
    path = plane.path("inferencedeployments", "second")
    second = plane.api.request("GET", path)
    assert second["status"]["uid"] == second["metadata"]["uid"]
    key = plane.secret(f"exo-{CHOSEN}-api-key")
    plane.api.kubectl("delete", "inferencedeployment", "first", "--timeout=60s")
    create(plane, "first", f"first/{CHOSEN}")
    wait_for(lambda: len(plane.deployments()) == 1)
    assert plane.secret(f"exo-{CHOSEN}-api-key") != key
    has_reason(plane, "second", "DuplicateUid")
    first = plane.api.request("GET", plane.path("inferencedeployments", "first"))
    assert first["status"]["uid"] == CHOSEN
    annotate(plane, "inferencedeployments", "second", None)  # it goes by its own
    wait_for(lambda: len(plane.deployments()) == 2)
    assert plane.api.request("GET", path)["status"]["uid"] == second["metadata"]["uid"]


def restart(plane: ControlPlane) -> None:
    """Start the controller anew, as an upgrade does: it knows nothing but what is written down."""
    (process,) = plane.processes
    process.popen.kill()
    process.popen.wait(10)
    plane.processes.clear()
    started = plane.start("controller-1")
    wait_for(lambda: started.probe("/readyz")[0] == 200 and started.is_leading)


def test_who_writes_anothers_id_into_a_status_does_not_have_it_after_a_restart(
    plane: ControlPlane,
) -> None:
    """Without the chart's admission policy, which keeps others from writing it; the older one is ranked first."""
    plane.create_ready_model(plane.leader)
    create(plane, "thief", None)
    victim = plane.create_deployment(plane.leader, "victim")
    create(plane, "applied", f"applied/{OTHER}")
    wait_for(lambda: len(plane.deployments()) == 3)
    wait_for(lambda: not _unfinished(plane))
    path = plane.path("inferencedeployments", "thief")
    own = plane.api.request("GET", path)["status"]
    for uid in (victim, OTHER):
        key = plane.secret(f"exo-{uid}-api-key")
        # Nobody puts it right while no controller runs.
        (process,) = plane.processes
        process.popen.kill()
        lies = {"uid": uid, "release": f"exo-d-{uid}", "url": f"https://g.example/{uid}/v1"}
        plane.api.client.request("PATCH", f"{path}/status", {"status": lies}, MERGE)
        before = state(plane, RELEASES)
        restart(plane)
        wait_for(lambda: plane.api.request("GET", path)["status"]["uid"] == own["uid"])
        wait_for(lambda: plane.api.request("GET", path)["status"]["url"] == own["url"])
        shown = plane.call(plane.leader, "GET", f"/ai/deployment/{uid}")
        assert shown["name"] == ("victim" if uid == victim else "applied")
        assert state(plane, RELEASES) == before
        assert plane.secret(f"exo-{uid}-api-key") == key
    plane.api.kubectl("delete", "inferencedeployment", "thief", "--timeout=60s")
    wait_for(lambda: len(plane.deployments()) == 2)
    assert plane.secret(f"exo-{victim}-api-key")


def test_the_id_of_what_was_deleted_is_kept_for_its_name_over_a_restart(
    plane: ControlPlane,
) -> None:
    plane.create_ready_model(plane.leader)
    create(plane, "first", f"first/{CHOSEN}")
    wait_for(lambda: len(plane.deployments()) == 1)
    plane.api.kubectl("delete", "inferencedeployment", "first", "--timeout=60s")
    create(plane, "thief", f"thief/{CHOSEN}")
    has_reason(plane, "thief", "DuplicateUid")
    restart(plane)
    create(plane, "second", f"second/{CHOSEN}")
    has_reason(plane, "second", "DuplicateUid")
    assert "is kept for InferenceDeployment first" in ready(plane, "second")["message"]
    create(plane, "first", f"first/{CHOSEN}")
    wait_for(lambda: len(plane.deployments()) == 1)
    first = plane.api.request("GET", plane.path("inferencedeployments", "first"))
    assert first["status"]["uid"] == CHOSEN
