"""A pod as the platform reports it: a replica with a phase, an address and what is to be said. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from exo_inference.engines.adapters import adapter_names
from exo_inference.platforms.base import ObservedReplica, ReplicaPhase
from exo_inference.platforms.kubernetes.diagnosis import (
    Diagnosis,
    condition,
    container_status,
    diagnose_pod,
)
from exo_inference.platforms.kubernetes.names import (
    ENGINE_CONTAINER,
    ENGINE_LABEL,
    ENGINE_PORT,
    PARAMETERS_ANNOTATION,
    PODS_ANNOTATION,
    annotation,
    read_flags,
)

Object = Mapping[str, Any]

_MODEL_NAME = "EXO_SERVED_MODEL_NAME"
"""The variable of an engine's pod that has the name of its model."""


def counts(pod: Object) -> bool:
    """Whether a pod is a replica. One that ended is not: Kubernetes has replaced it."""
    phase = pod.get("status", {}).get("phase")
    return phase not in ("Failed", "Succeeded") or "deletionTimestamp" in pod["metadata"]


def observe_pod(
    pod: Object,
    pods_hash: str,
    *,
    events: Sequence[Object] = (),
    log_tail: Sequence[str] = (),
    node: Object | None = None,
    said: str = "",
    now: datetime,
) -> ObservedReplica:
    """Return what the platform reports of a pod.

    Args:
        pod: as the API has it.
        pods_hash: of the wanted version.
        events: about the pod, oldest first.
        log_tail: last lines of the engine's run that crashed.
        node: that it is on.
        said: what the engine itself says of its start.
        now: for how long it has been starting.
    """
    status = container_status(pod, ENGINE_CONTAINER)
    diagnosis = diagnose_pod(pod, events, log_tail, node=node)
    phase = _phase(pod, diagnosis)
    ip = pod.get("status", {}).get("podIP")
    started = status.get("state", {}).get("running", {}).get("startedAt")
    return ObservedReplica(
        name=pod["metadata"]["name"],
        phase=phase,
        current=annotation(pod, PODS_ANNOTATION) == pods_hash,
        details=_details(pod, phase, diagnosis, said or _progress(pod, now)),
        address=_address(ip) if ip else None,
        restarts=int(status.get("restartCount", 0)),
        started_at=parse_time(started) if started else None,
        models=_models(pod),
    )


def is_ready(pod: Object) -> bool:
    """Whether Kubernetes says that a pod takes requests."""
    return condition(pod, "Ready").get("status") == "True"


def is_starting(pod: Object) -> bool:
    """Whether the engine runs and is not ready yet."""
    running = "running" in container_status(pod, ENGINE_CONTAINER).get("state", {})
    return running and not is_ready(pod) and "deletionTimestamp" not in pod["metadata"]


def parse_time(text: str) -> datetime:
    """Read a time of the API."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC)


def _models(pod: Object) -> tuple[str, ...]:
    """Return the names that a pod's engine answers to: that of its model, and those of its adapters."""
    containers = pod["spec"].get("containers", ())
    engine: Object = next((each for each in containers if each.get("name") == ENGINE_CONTAINER), {})
    given = [each.get("value") for each in engine.get("env", ()) if each.get("name") == _MODEL_NAME]
    if not given or not given[-1]:
        return ()
    name = pod["metadata"].get("labels", {}).get(ENGINE_LABEL, "")
    flags = read_flags(annotation(pod, PARAMETERS_ANNOTATION)) or ()
    return (given[-1], *adapter_names(name, flags))


def _phase(pod: Object, diagnosis: Diagnosis | None) -> ReplicaPhase:
    if "deletionTimestamp" in pod["metadata"]:
        return ReplicaPhase.DRAINING
    if is_ready(pod):
        return ReplicaPhase.READY
    if diagnosis is not None and diagnosis.final:
        return ReplicaPhase.FAILED
    waiting = container_status(pod, ENGINE_CONTAINER).get("state", {}).get("waiting", {})
    in_backoff = waiting.get("reason") in ("CrashLoopBackOff", "ImagePullBackOff")
    ended = "terminated" in container_status(pod, ENGINE_CONTAINER).get("state", {})
    return ReplicaPhase.BACKOFF if in_backoff or ended else ReplicaPhase.STARTING


def _details(pod: Object, phase: ReplicaPhase, diagnosis: Diagnosis | None, progress: str) -> str:
    if phase is ReplicaPhase.READY:
        return ""
    if phase is ReplicaPhase.DRAINING:
        lost = diagnosis is not None and diagnosis.reason.startswith("Node")
        return diagnosis.details if diagnosis is not None and lost else "finishing its requests"
    if diagnosis is not None:
        restarts = container_status(pod, ENGINE_CONTAINER).get("restartCount", 0)
        times = f". It crashed {restarts} times" if diagnosis.crashed and restarts > 1 else ""
        return f"{diagnosis.details}{times}"
    return progress


def _progress(pod: Object, now: datetime) -> str:
    status = pod.get("status", {})
    state = container_status(pod, ENGINE_CONTAINER).get("state", {})
    if not pod["spec"].get("nodeName"):
        return "waiting for a node"
    if "running" not in state:
        created = status.get("conditions") and condition(pod, "PodReadyToStartContainers")
        pulling = bool(created) and created.get("status") == "True"
        return "pulling the image" if pulling else "being set up on its node"
    began = parse_time(state["running"]["startedAt"])
    return f"the engine has been starting for {_roughly((now - began).total_seconds())}"


def _roughly(seconds: float) -> str:
    """Return a time that changes seldom: each change of it is a write of a deployment's status."""
    if seconds < 60:
        return f"{max(0, int(seconds)) // 10 * 10} s"
    return f"{int(seconds) // 60} min"


def _address(ip: str) -> str:
    return f"http://[{ip}]:{ENGINE_PORT}" if ":" in ip else f"http://{ip}:{ENGINE_PORT}"
