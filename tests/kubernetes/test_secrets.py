"""No secret leaves the Secret it is kept in, and every pod passes the `restricted` Pod Security Standard.

A model is fetched with a Hub token, a deployment runs, scoped keys are made; meanwhile the process list
of the node is read again and again. Then everything that can be read of the namespace is searched.
"""

from __future__ import annotations

import base64
import gzip
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests
from exoscale_auth import ExoscaleV2Auth

from tests.kubernetes import test_control_plane
from tests.kubernetes.real_plane import Plane, deploy_chat

stand, plane = test_control_plane.stand, test_control_plane.plane  # the fixtures

RELEASE_TYPE = "helm.sh/release.v1"


def forms(secret: bytes) -> set[bytes]:
    """Return what a secret looks like: itself, in hex, and in base64 wherever it begins."""
    found = {secret, secret.hex().encode()}
    for shift in range(3):
        coded = base64.b64encode(b"\0" * shift + secret)
        found.add(coded[-(-shift * 8 // 6) : len(coded) // 4 * 4 - 4])
    return found


def test_the_forms_of_a_secret_are_found_wherever_it_begins() -> None:
    for before in (b"", b"a", b"ab", b"abc"):
        text = base64.b64encode(before + b"a secret word" + b" and more")
        assert any(form in text for form in forms(b"a secret word")), before


class Processes:
    """What was seen in the process list of this machine, which is the cluster's node."""

    def __init__(self) -> None:
        self.command_lines: set[bytes] = set()
        self.environments: dict[str, bytes] = {}

    def look(self) -> None:
        for process in Path("/proc").glob("[0-9]*"):
            try:
                self.command_lines.add((process / "cmdline").read_bytes())
                if process.name not in self.environments and _is_of_pod(process):
                    self.environments[process.name] = (process / "environ").read_bytes()
            except OSError:  # it has ended
                continue

    @contextmanager
    def followed(self) -> Iterator[None]:
        stop = threading.Event()

        def look_on() -> None:
            while not stop.wait(0.05):
                self.look()

        thread = threading.Thread(target=look_on, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(10)


def _is_of_pod(process: Path) -> bool:
    return "kubepods" in (process / "cgroup").read_text()


def call(plane: Plane, method: str, path: str, body: object = None) -> dict[str, str]:
    data = secret(plane, "exo-credentials")
    auth = ExoscaleV2Auth(data["api-key"].decode(), data["api-secret"].decode())
    url = f"{plane.address('exo-controller')}/v2{path}"
    answer = requests.request(method, url, auth=auth, json=body, timeout=20)
    assert answer.status_code < 400, answer.text
    found: dict[str, str] = answer.json()
    return found


def secret(plane: Plane, name: str) -> dict[str, bytes]:
    path = f"/api/v1/namespaces/{plane.cluster.namespace}/secrets/{name}"
    return _decoded(plane.cluster.request("GET", path)["data"])


def _decoded(data: dict[str, str]) -> dict[str, bytes]:
    return {key: base64.b64decode(value) for key, value in data.items()}


def places(plane: Plane) -> Iterator[tuple[str, bytes]]:
    """Yield everything that can be read of the namespace but its Secrets, with where it is."""
    kinds = plane.cluster.kubectl(
        "api-resources", "--namespaced", "--verbs=list", "--output=name"
    ).stdout.split()
    named = ",".join(kind for kind in kinds if kind != "secrets")
    words = ("get", named, "--output=json", "--show-managed-fields")
    yield "the objects", plane.cluster.kubectl(*words).stdout.encode()
    for found in plane.get("secrets"):
        if found["type"] == RELEASE_TYPE:
            packed = base64.b64decode(base64.b64decode(found["data"]["release"]))
            yield found["metadata"]["name"], gzip.decompress(packed)
    for release in plane.helm("list", "--all", "--short").split():
        for part in ("values", "manifest", "notes", "hooks"):
            yield f"{part} of {release}", plane.helm("get", part, release).encode()
    for pod in plane.get("pods"):
        name = pod["metadata"]["name"]
        said = plane.cluster.kubectl("logs", name, "--all-containers", "--prefix").stdout
        yield f"logs of {name}", said.encode()


def test_no_secret_leaves_its_place_and_every_pod_is_restricted(
    plane: Plane, tmp_path: Path
) -> None:
    token = f"hf_{secrets.token_hex(17)}"
    (tmp_path / "token").write_text(token)
    processes = Processes()
    with processes.followed():
        words = ("model", "create", "exo/tiny-chat", "--wait")
        plane.exo(*words, f"--huggingface-token-file={tmp_path}/token")
        deploy_chat(plane, 1)
        plane.openai()
        uid = plane.show()["id"]
        scoped = [
            call(plane, "POST", "/ai/api-key", {"name": name, "scope": scope})["value"]
            for name, scope in (("one", uid), ("all", "public"))
        ]
        plane.exo("deployment", "scale", "chat", "2", "--wait")
    hidden = {
        "the Hub token": token.encode(),
        "the API's secret": secret(plane, "exo-credentials")["api-secret"],
        "the key of the secrets": secret(plane, "exo-inference-secret-key")["secret.key"],
        "the deployment's key": plane.key.encode(),
        "a scoped key": scoped[0].encode(),
        "a public key": scoped[1].encode(),
    }
    searched = [
        *places(plane),
        ("a command line", b"\n".join(processes.command_lines)),
        ("an environment", b"\n".join(processes.environments.values())),
    ]
    assert len(searched) > 10
    assert any(b"exo_engine" in line for line in processes.command_lines)
    assert any(b"EXO_POD_NAME=" in found for found in processes.environments.values())
    leaks = [
        (what, place)
        for what, value in hidden.items()
        for place, text in searched
        if any(form in text for form in forms(value))
    ]
    assert leaks == []
    _assert_kept(plane, hidden)
    said = b"".join(text for _, text in searched)
    assert b"is forbidden" not in said
    assert b"violates PodSecurity" not in said
    _assert_restricted(plane)


def _assert_kept(plane: Plane, hidden: dict[str, bytes]) -> None:
    """Of the Secrets, each value is in its own alone; keys and the token are in none as they are."""
    found = {
        (what, item["metadata"]["name"])
        for item in plane.get("secrets")
        if item["type"] != RELEASE_TYPE
        for value in _decoded(item.get("data", {})).values()
        for what, plain in hidden.items()
        if any(form in value for form in forms(plain))
    }
    assert found == {
        ("the API's secret", "exo-credentials"),
        ("the key of the secrets", "exo-inference-secret-key"),
    }


def _assert_restricted(plane: Plane) -> None:
    """The namespace enforces it, and would enforce it of every pod that runs."""
    name = plane.cluster.namespace
    label = "pod-security.kubernetes.io/enforce"
    found = plane.cluster.request("GET", f"/api/v1/namespaces/{name}")
    assert found["metadata"]["labels"][label] == "restricted"
    components = {
        pod["metadata"]["labels"]["app.kubernetes.io/component"] for pod in plane.get("pods")
    }
    assert {"controller", "gateway", "engine"} <= components
    # Whoever labels a namespace is warned of the pods in it that would be refused.
    for level in ("privileged", "restricted"):
        words = ("label", "namespace", name, f"{label}={level}", "--overwrite")
        said = plane.cluster.kubectl(*words)
        assert "Warning" not in said.stderr
