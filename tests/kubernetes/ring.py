"""Deployments in a ring, each one step of its life behind the next, and what is expected of each.

`test_chaos` lets all take their next step at once while something is broken, and asks here what is not
as it should be: what users were promised, what the cluster has, what the API says.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from exo_inference import Client
from exo_inference.errors import ApiError as Refused
from exo_inference.errors import Conflict, ConnectionFailed, NotFound
from exo_inference.platforms.kubernetes.names import UID_LABEL, release_name
from exo_inference.wire import Operation
from scripts.kubernetes.client import ApiError
from tests.kubernetes.simulated_plane import SimulatedPlane, wait_for

STEPS = ("create", "scale", "update", "bad update", "to zero", "back to one", "delete")
FIRST, SECOND = ["--max-num-seqs=4"], ["--max-num-seqs=5"]
BAD = ["--max-num-seqs=13"]
"""The engine parameters of the stage: admission takes them, the engine does not."""

REASON = "unknown flag --max-num-seqs"
CONVERGED_SECONDS = 100.0
WRITTEN_SECONDS = 60.0
WRITE_SPREAD_SECONDS = 1.0
KINDS = (
    ("inferencedeployments", "inference.exo.dev/v1alpha1"),
    ("deployments", "apps/v1"),
    ("replicasets", "apps/v1"),
    ("pods", "v1"),
    ("services", "v1"),
    ("configmaps", "v1"),
    ("secrets", "v1"),
    ("poddisruptionbudgets", "policy/v1"),
    ("networkpolicies", "networking.k8s.io/v1"),
)
"""Where nothing of a deleted deployment may be left."""


@dataclass
class Life:
    """One deployment: what was acknowledged to its user, and what is expected of it."""

    name: str
    step: str = "delete"
    uid: str = ""
    key: str = ""
    replicas: int = 0
    parameters: list[str] = field(default_factory=list)
    serving: list[str] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)
    least_ready: int | None = None

    @property
    def next_step(self) -> str:
        return STEPS[(STEPS.index(self.step) + 1) % len(STEPS)]

    @property
    def exists(self) -> bool:
        return bool(self.uid) and self.step != "delete"

    @property
    def is_refused(self) -> bool:
        """Whether what is wanted cannot be, and an older version serves."""
        return self.parameters != self.serving and self.replicas > 0


class Ring:
    """The deployments, their writes and their state."""

    def __init__(self, plane: SimulatedPlane, dice: random.Random) -> None:
        self.plane = plane
        self.dice = dice
        self.lives = [Life(f"chat-{number}") for number in range(len(STEPS))]
        self.before: list[str] = []
        self.deposed: tuple[str, float] | None = None

    # -- writing

    def prepare(self) -> None:
        """Bring the deployments to different steps, without faults."""
        self.acknowledge(lambda client: client.models.create("exo/tiny-chat"))
        wait_for(lambda: self._read(lambda c: c.models.list()[0].state) == "ready", "the model", 60)
        steps = (("create", 2, FIRST), ("scale", 3, FIRST), *[("update", 3, SECOND)] * 4)
        for life, (step, replicas, parameters) in zip(self.lives[1:], steps, strict=True):
            self._create(life, replicas, parameters)
            life.step = step
        self.wait_converged(self.lives[1:])
        for number in range(STEPS.index("bad update") + 1, len(STEPS)):
            self.take_steps(self.lives[number:])
            self.wait_converged(self.lives[number:])

    def take_steps(self, lives: list[Life]) -> None:
        """Let deployments take their next steps, at moments of their own; return when they may."""
        moments = [self.dice.uniform(0, WRITE_SPREAD_SECONDS) for _ in lives]
        with ThreadPoolExecutor(len(lives)) as pool:
            list(pool.map(self._take_step, lives, moments))

    def _take_step(self, life: Life, moment: float) -> None:
        time.sleep(moment)
        step, uid = life.next_step, life.uid
        if step == "create":
            operation = self._create(life, 2, FIRST)
        elif step in ("update", "bad update"):
            wanted = SECOND if step == "update" else BAD
            operation = self.acknowledge(
                lambda client: client.deployments.update(uid, engine_parameters=wanted)
            )
            life.parameters = wanted
            life.serving = SECOND
        elif step == "delete":
            operation = self.acknowledge(lambda client: _delete(client, uid), lambda client: "")
        else:
            life.replicas = {"scale": 3, "to zero": 0, "back to one": 1}[step]
            operation = self.acknowledge(
                lambda client: client.deployments.scale(uid, life.replicas)
            )
        life.step, life.least_ready = step, None
        if isinstance(operation, Operation):
            life.operations.append(operation.id)

    def _create(self, life: Life, replicas: int, parameters: list[str]) -> Operation | str:
        operation = self.acknowledge(
            lambda client: client.deployments.create(
                life.name,
                model="exo/tiny-chat",
                gpu_type="cpu",
                replicas=replicas,
                engine_parameters=parameters,
            ),
            lambda client: client.deployments.find(life.name).id,
        )
        life.uid = operation if isinstance(operation, str) else _id_in(operation)
        life.key, life.replicas = "", replicas
        life.parameters = life.serving = parameters
        return operation

    def acknowledge(
        self,
        write: Callable[[Client], Operation | str],
        find: Callable[[Client], str] | None = None,
    ) -> Operation | str:
        """Send a write until it is acknowledged; one that had no answer may have happened: `find`."""
        deadline, was_unsure = time.monotonic() + WRITTEN_SECONDS, False
        while True:
            for controller in self.plane.controllers:
                try:
                    with self.plane.client(controller) as client:
                        return write(client)
                except (ConnectionFailed, OSError, ApiError):
                    was_unsure = True
                except (Conflict, NotFound):
                    if find is None or not was_unsure:
                        raise
                    with self.plane.client(controller) as client:
                        return find(client)
                except Refused as exc:
                    if exc.status_code < 500:
                        raise
                    was_unsure = True
            assert time.monotonic() < deadline, "a write was not acknowledged"
            time.sleep(0.1)

    def _read(self, read: Callable[[Client], Any]) -> Any:
        """Ask the first controller that answers; wait for one."""
        deadline = time.monotonic() + CONVERGED_SECONDS
        while True:
            for controller in self.plane.controllers:
                if not controller.is_paused:
                    with (
                        contextlib.suppress(ConnectionFailed),
                        self.plane.client(controller) as client,
                    ):
                        return read(client)
            assert time.monotonic() < deadline, "no controller answers"
            time.sleep(0.1)

    # -- judging

    def wait_converged(self, lives: list[Life], seconds: float = CONVERGED_SECONDS) -> None:
        """Wait until nothing is wrong with any of them."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                found = self.problems(lives)
            except (OSError, ApiError, Refused, ConnectionFailed) as exc:
                found = {"all": [repr(exc)]}
            if not found:
                return
            if time.monotonic() > deadline:
                pytest.fail(f"not converged after {seconds:.0f} s: {json.dumps(found, indent=1)}")
            time.sleep(0.3)

    def problems(self, lives: list[Life]) -> dict[str, list[str]]:
        """Return what is not as it should be, by the step that was taken."""
        there = {plural: self.plane.items(plural, group) for plural, group in KINDS}
        shown = self._read(lambda c: {found.name: found for found in c.deployments.list()})
        found = {}
        for life in lives:
            said = list(self._problems(life, there, shown))
            if said:
                found[f"{life.step} ({life.name} {life.uid})"] = said
        return found

    def _problems(
        self, life: Life, there: dict[str, list[Any]], shown: dict[str, Any]
    ) -> Iterator[str]:
        if not life.exists:
            yield from (f"{kind} is left" for kind in _left(life.uid, there))
            if life.name in shown:
                yield "it is still shown"
            return
        mine = {kind: [i for i in items if _uid_of(i) == life.uid] for kind, items in there.items()}
        for kind in ("deployments", "services"):
            if len(mine[kind]) != 1:
                yield f"{len(mine[kind])} {kind}"
        yield from _release_problems(life, there["secrets"])
        yield from _object_problems(life, mine)
        yield from self._shown_problems(life, shown)

    def _shown_problems(self, life: Life, shown: dict[str, Any]) -> Iterator[str]:
        if life.name not in shown or shown[life.name].id != life.uid:
            yield "it is not shown under its name"
            return
        found = self._read(lambda client: client.deployments.get(life.uid))
        wanted = "error" if life.is_refused else "ready"
        if life.replicas and found.state != wanted:
            yield f"it says {found.state}: {found.state_details}"
        if life.is_refused and REASON not in (found.state_details or ""):
            yield f"it does not say why: {found.state_details}"
        if (found.ready_replicas or 0) != life.replicas or found.replicas != life.replicas:
            yield f"it says {found.ready_replicas} of {found.replicas} ready, not {life.replicas}"
        if found.inference_engine_parameters != life.parameters:
            yield f"it says {found.inference_engine_parameters}, not {life.parameters}"

    def check_promises(self) -> None:
        """Check what must never have changed: keys, and that operations have ended."""
        for life in self.lives:
            while life.operations:
                ended = self._read(partial(_get_operation, uid=life.operations.pop()))
                assert ended.state == "success", f"{life.name}: {ended}"
            if life.exists:
                key = self._read(partial(_reveal, uid=life.uid))
                assert life.key in ("", key), f"{life.name} has another key after {life.step}"
                life.key = key

    def sample(self) -> None:
        """Note how many pods of the versions that must not go were ready."""
        pods = self.plane.items("pods")
        for life in self.lives:
            if life.step in ("update", "bad update"):
                ready = sum(_is_ready(pod) for pod in pods if _uid_of(pod) == life.uid)
                life.least_ready = (
                    ready if life.least_ready is None else min(ready, life.least_ready)
                )


def _delete(client: Client, uid: str) -> Operation | str:
    try:
        return client.deployments.delete(uid)
    except NotFound as exc:
        if "answer was lost" in (exc.hint or ""):  # the client has sent it before
            return ""
        raise


def _get_operation(client: Client, uid: str) -> Operation:
    return client.operations.get(uid)


def _reveal(client: Client, uid: str) -> str:
    return client.deployments.reveal_api_key(uid)


def _id_in(operation: Operation) -> str:
    assert operation.reference is not None, "a create names what it made"
    return operation.reference.id


def _left(uid: str, there: dict[str, list[Any]]) -> list[str]:
    return [
        f"{kind[:-1]} {item['metadata']['name']}"
        for kind, items in there.items()
        for item in items
        if uid and (_uid_of(item) == uid or uid in item["metadata"]["name"])
    ]


def _release_problems(life: Life, secrets: list[Any]) -> Iterator[str]:
    records = [s["metadata"]["labels"] for s in secrets if s["type"].startswith("helm.sh/")]
    mine = [labels for labels in records if labels["name"] == release_name(life.uid)]
    states = [labels["status"] for labels in sorted(mine, key=lambda item: int(item["version"]))]
    # An older one may say "deployed" too: when the API is away as Helm marks it as superseded, Helm only warns.
    if states[-1:] != ["deployed"]:
        yield f"its release has the revisions {states}"
    if stuck := [state for state in states if state.startswith(("pending", "uninstalling"))]:
        yield f"its release is stuck: {stuck}"


def _object_problems(life: Life, mine: dict[str, list[Any]]) -> Iterator[str]:
    (wrapped,) = mine["inferencedeployments"] or [{}]
    if wrapped.get("metadata", {}).get("name") != life.name:
        yield "its object is gone or has another name"
    for deployment in mine["deployments"]:
        if deployment["spec"]["replicas"] != life.replicas:
            yield f"{deployment['spec']['replicas']} replicas are wanted, not {life.replicas}"
    if len(mine["pods"]) != life.replicas:
        yield f"{len(mine['pods'])} pods, not {life.replicas}"
    for pod in mine["pods"]:
        if not _is_ready(pod):
            yield f"pod {pod['metadata']['name']} is not ready"
        flags = pod["metadata"]["annotations"]["inference.exo.dev/engine-parameters"]
        if json.loads(flags) != life.serving:
            yield f"pod {pod['metadata']['name']} has {flags}"


def _uid_of(item: Any) -> str:
    labels = item["metadata"].get("labels", {})
    found: str = labels.get(UID_LABEL) or labels.get("inference.exo.dev/uid", "")
    return found


def _is_ready(pod: Any) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    is_going = "deletionTimestamp" in pod["metadata"]
    return not is_going and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
