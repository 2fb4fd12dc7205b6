"""Pods as replicas."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from exo_inference.platforms.base import ReplicaPhase
from exo_inference.platforms.kubernetes.replicas import counts, is_starting, observe_pod, parse_time
from tests.platforms.kubernetes.recorded import (
    STARTED,
    Object,
    crashed,
    event,
    node,
    pod,
    restarted,
    unscheduled,
    waiting,
)

NOW = parse_time(STARTED) + timedelta(seconds=42)


@pytest.mark.parametrize(
    ("found", "phase", "words"),
    [
        pytest.param(pod(ready=True), "ready", "", id="ready"),
        pytest.param(pod(), "starting", "starting for 40 s", id="starting"),
        pytest.param(pod(node=None), "starting", "waiting for a node", id="no node yet"),
        pytest.param(
            pod(phase="Pending", state={"waiting": {"reason": "ContainerCreating"}}),
            "starting",
            "set up",
            id="being set up",
        ),
        pytest.param(
            unscheduled("1 Insufficient nvidia.com/gpu"), "starting", "free GPU", id="no GPU"
        ),
        pytest.param(pod(ready=True, deleting=True), "draining", "finishing", id="draining"),
        pytest.param(crashed(1, "boom"), "backoff", "boom. It crashed 3 times", id="crashes"),
        pytest.param(crashed(78, "exo-adapter: error: no"), "failed", "no", id="cannot work"),
        pytest.param(waiting("ErrImagePull", "not found"), "failed", "does not exist", id="image"),
        pytest.param(
            waiting("ImagePullBackOff", "i/o timeout"), "backoff", "registry", id="registry away"
        ),
    ],
)
def test_phases(found: Object, phase: str, words: str) -> None:
    seen = observe_pod(found, "new", node=node(), now=NOW)
    assert seen.phase is ReplicaPhase(phase)
    assert words in seen.details
    assert bool(seen.details) == (phase != "ready")


def test_what_the_engine_says_of_its_start_is_shown() -> None:
    assert observe_pod(pod(), "new", said="loading 43 %", now=NOW).details == "loading 43 %"
    killed = event("Killing", "Container engine failed startup probe, will be restarted")
    seen = observe_pod(restarted(143), "new", events=(killed,), said="loading 43 %", now=NOW)
    assert "within 310 s" in seen.details


def test_the_version_the_address_and_the_restarts_are_told() -> None:
    found = pod(ready=True, restartCount=2)
    seen = observe_pod(found, "new", now=NOW)
    assert (seen.current, seen.address, seen.restarts) == (True, "http://10.0.0.7:8000", 2)
    assert seen.started_at == parse_time(STARTED)
    found["status"]["podIP"] = "fd00::7"
    assert observe_pod(found, "newer", now=NOW).address == "http://[fd00::7]:8000"
    assert not observe_pod(found, "newer", now=NOW).current


def test_a_pod_on_a_lost_node_says_so_even_while_it_is_deleted() -> None:
    seen = observe_pod(pod(deleting=True), "new", node=node(ready="Unknown"), now=NOW)
    assert seen.phase is ReplicaPhase.DRAINING
    assert "is lost" in seen.details


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (pod(), True),
        (pod(phase="Failed"), False),
        (pod(phase="Succeeded"), False),
        (pod(phase="Failed", deleting=True), True),
    ],
)
def test_pods_that_ended_are_no_replicas(found: Object, expected: bool) -> None:
    assert counts(found) is expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [(pod(), True), (pod(ready=True), False), (pod(node=None), False), (pod(deleting=True), False)],
)
def test_only_engines_that_start_are_asked_how_far_they_are(found: Any, expected: bool) -> None:
    assert is_starting(found) is expected


@pytest.mark.parametrize(
    ("environment", "flags", "expected"),
    [
        pytest.param([], "[]", (), id="nobody said"),
        pytest.param([{"name": "EXO_SERVED_MODEL_NAME", "value": "m"}], "", ("m",), id="a model"),
        pytest.param(
            [{"name": "EXO_SERVED_MODEL_NAME", "value": "m"}, {"name": "A"}],
            '["--lora-modules", "sql=/a", "chat=/b"]',
            ("m", "sql", "chat"),
            id="with adapters",
        ),
        pytest.param([{"name": "EXO_SERVED_MODEL_NAME", "valueFrom": {}}], "[]", (), id="strange"),
    ],
)
def test_the_models_that_a_pod_answers_to_are_told(
    environment: list[Object], flags: str, expected: tuple[str, ...]
) -> None:
    found = pod(ready=True)
    found["spec"]["containers"][0]["env"] = environment
    found["metadata"]["annotations"]["inference.exo.dev/engine-parameters"] = flags
    found["metadata"]["labels"]["inference.exo.dev/engine"] = "vllm"
    assert observe_pod(found, "new", now=NOW).models == expected
