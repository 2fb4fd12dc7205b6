"""A day in which a deployment is shared, on a whole cluster: install, deploy, share, change, break, repair, remove.

Keys are tried at the gateways' Service, each time on a new connection, so that every gateway is met.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import httpx

from tests.controller.control_plane_processes import GROUP
from tests.kubernetes.real_plane import (
    Plane,
    chat,
    create_chat,
    kill,
    leader_of,
    pod_of,
    restart,
    wait_for,
)
from tests.kubernetes.test_control_plane import plane, stand

__all__ = ["plane", "stand"]  # fixtures

OPENS, UNKNOWN, OF_ANOTHER, NOTHING_RUNS = 200, 401, 403, 503
BY_HAND = "exo-sk-chosen-by-hand-with-kubectl"


def answers(plane: Plane, value: str, name: str = "chat") -> set[int]:
    """Return what the gateways answer a key, of a dozen connections."""
    url = f"{plane.address('exo-gateway')}/{name}/v1/models"
    headers = {"Authorization": f"Bearer {value}"}
    return {httpx.get(url, headers=headers, timeout=30).status_code for _ in range(12)}


def make_key(plane: Plane, *words: str) -> str:
    made = plane.exo("api-key", *words, "-O", "json")
    return str(json.loads(made.stdout)["value"])


def keys(plane: Plane) -> set[str]:
    return {key["name"] for key in json.loads(plane.exo("api-key", "list", "-O", "json").stdout)}


def apply_key(plane: Plane) -> None:
    """Make a key as a GitOps tool does: by the name of its deployment, and with the hash alone."""
    sha256 = hashlib.sha256(BY_HAND.encode()).hexdigest()
    spec = {"displayName": "by hand", "scope": "chat", "sha256": sha256}
    body = {"apiVersion": GROUP, "kind": "InferenceApiKey", "metadata": {"name": "by-hand"}}
    plane.cluster.kubectl("apply", "-f", "-", stdin=json.dumps({**body, "spec": spec}))


def conditions(plane: Plane, what: str) -> dict[str, Any]:
    found = json.loads(plane.cluster.kubectl("get", what, "-ojson").stdout)
    return {each["type"]: each for each in found.get("status", {}).get("conditions", ())}


def test_a_day_in_which_a_deployment_is_shared(plane: Plane) -> None:
    create_chat(plane)
    words = ["deployment", "create", "private", "--model-name", "exo/tiny-chat"]
    plane.exo(*words, "--gpu-type", "cpu", "--gpu-count", "1")
    plane.exo("deployment", "scale", "private", "0", "--wait")
    owner = plane.exo("deployment", "reveal-api-key", "chat", "-O", "text").stdout.strip()

    # A colleague gets a key of his own, which opens that one deployment; a program one that opens all.
    colleague = make_key(plane, "create", "colleague", "--deployment", "chat")
    program = make_key(plane, "create", "program", "--all")
    apply_key(plane)
    wait_for(lambda: answers(plane, colleague) == {OPENS})
    wait_for(lambda: answers(plane, program) == {OPENS})
    wait_for(lambda: answers(plane, BY_HAND) == {OPENS})
    # A dozen connections may have met all gateways but one, which knows the keys a moment later.
    wait_for(lambda: answers(plane, colleague, "private") == {OF_ANOTHER})
    wait_for(lambda: answers(plane, BY_HAND, "private") == {OF_ANOTHER})
    wait_for(lambda: answers(plane, program, "private") == {NOTHING_RUNS})
    assert answers(plane, "exo-sk-guessed") == {UNKNOWN}

    # The owner changes it, it breaks and is repaired, and the colleague loses no request.
    plane.key = colleague
    with plane.streaming() as stream:
        update = ["deployment", "update", "chat", "--inference-engine-params=--max-model-len=512"]
        plane.exo(*update, "--wait")
        plane.exo("api-key", "update", "colleague", "--name", "neighbour")
        plane.cluster.kubectl("delete", "pod", plane.pods("engine")[0], "--wait=false")
        leader = leader_of(plane)
        kill(plane, pod_of(leader), "controller")
        wait_for(lambda: leader_of(plane) not in ("", leader), 60)
        wait_for(lambda: plane.ready("engine") == 2 and len(plane.pods("engine")) == 2)
        wait_for(lambda: plane.ready("controller") == 2)
    assert stream.failures == []
    assert stream.outcomes["answered"] > 20

    # The key was passed on: it gets another value. Then the colleague leaves.
    rotated = make_key(plane, "rotate", "neighbour")
    wait_for(lambda: answers(plane, rotated) == {OPENS})
    wait_for(lambda: answers(plane, colleague) == {UNKNOWN})
    restart(plane, "controller")
    assert make_key(plane, "reveal", "neighbour") == rotated
    plane.exo("api-key", "delete", "neighbour", "--force")
    wait_for(lambda: answers(plane, rotated) == {UNKNOWN})
    for value in (owner, program, BY_HAND):
        assert answers(plane, value) == {OPENS}
    plane.key = owner
    assert chat(plane.openai()).strip()

    # What is removed takes the keys along that open nothing else, but not what Git holds.
    phone = make_key(plane, "create", "phone", "--deployment", "chat")
    wait_for(lambda: answers(plane, phone) == {OPENS})
    assert keys(plane) == {"program", "phone", "by hand"}
    plane.exo("deployment", "delete", "chat", "--force", "--wait")
    assert keys(plane) == {"program", "by hand"}
    wait_for(lambda: conditions(plane, "inferenceapikey/by-hand")["Ready"]["status"] == "False")
    assert answers(plane, program, "private") == {NOTHING_RUNS}
    plane.exo("deployment", "delete", "private", "--force", "--wait")
    plane.exo("model", "delete", "exo/tiny-chat", "--force", "--wait")
    wait_for(lambda: not plane.get("deployments.apps", "app.kubernetes.io/name=inference-deployment"))  # fmt: skip
