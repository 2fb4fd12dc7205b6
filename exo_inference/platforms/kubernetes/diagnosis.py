"""Why a pod does not serve, in one sentence with the next step. Pure: objects in, words out.

`replicas.py` asks for pods of engines, `models.py` for pods of downloads. The rules are tried in the
order of their tables; the first that fits speaks. `denials.py` has what keeps a pod from being made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exo_inference.engines.container_failures import diagnose_container

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong with a pod.

    Attributes:
        reason: one word for events and tests.
        details: one sentence, and the next step.
        crashed: it ended and is started again by the kubelet after a while.
        final: it goes away only when the spec or the cluster changes.
    """

    reason: str
    details: str
    crashed: bool = False
    final: bool = False


def diagnose_pod(
    pod: Object,
    events: Sequence[Object] = (),
    log_tail: Sequence[str] = (),
    *,
    container: str = "engine",
    node: Object | None = None,
) -> Diagnosis | None:
    """Say why a pod does not serve; None when nothing is wrong with it.

    Args:
        pod: as the API has it.
        events: about the pod, oldest first.
        log_tail: last lines of the container's last run; what the pod itself has of them suffices.
        container: the one that counts.
        node: that the pod is on, where it is known.
    """
    return (
        _diagnose_node(pod, node)
        or _diagnose_scheduling(pod)
        or _diagnose_eviction(pod)
        or _diagnose_waiting(pod, events, container)
        or _diagnose_probes(pod, events, container)
        or _diagnose_end(pod, log_tail, container)
        or _diagnose_volumes(pod, events)
    )


def condition(item: Object, type_: str) -> Object:
    """Return a condition of an object, empty where it has none."""
    conditions = item.get("status", {}).get("conditions") or ()
    return next((found for found in conditions if found["type"] == type_), {})


def container_status(pod: Object, container: str) -> Object:
    """Return the status of a container, empty before there is one."""
    found = pod.get("status", {}).get("containerStatuses") or ()
    return next((status for status in found if status["name"] == container), {})


def container_spec(pod: Object, container: str) -> Object:
    """Return what a container was asked to be, empty where the pod has no such container."""
    return next((spec for spec in pod["spec"]["containers"] if spec["name"] == container), {})


def event_time(event: Object) -> str:
    """Return when an event was last seen; as text, such times sort."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return str(next((time for time in times if time), event["metadata"]["creationTimestamp"]))


def needs_gpu(pod: Object) -> bool:
    """Whether a pod waits for GPUs that no node has free."""
    scheduled = condition(pod, "PodScheduled")
    text = str(scheduled.get("message", ""))
    return scheduled.get("status") == "False" and bool(_NO_GPU.search(text))


def _diagnose_node(pod: Object, node: Object | None) -> Diagnosis | None:
    name = pod["spec"].get("nodeName")
    if not name:
        return None
    lost = pod.get("status", {}).get("reason") == "NodeLost"
    if node is not None:
        lost = lost or condition(node, "Ready").get("status") == "Unknown"
        if condition(node, "Ready").get("status") == "False":
            text = str(condition(node, "Ready").get("message", ""))[:200]
            return Diagnosis(
                "NodeNotReady",
                f"node {name} is not ready: {text}. Run `kubectl describe node {name}`",
            )
    if lost:
        return Diagnosis(
            "NodeLost",
            f"node {name} is lost: its kubelet does not answer. The replica is replaced when Kubernetes "
            f"gives it up, after 5 minutes; if the machine is gone, run `kubectl delete node {name}`",
        )
    return None


_NO_GPU = re.compile(r"Insufficient ((?:nvidia\.com|amd\.com|gpu\.[\w.-]+)/[\w.-]*\w)")

_SCHEDULING: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (
        re.compile(r"persistentvolumeclaim \"?([^\"\s]+)\"? not found", re.I),
        "ClaimMissing",
        "the model's volume claim {0} is gone. The model is fetched again; a claim of your own "
        "(storage.existingClaim) you have to make again",
    ),
    (
        re.compile(r"persistentvolumeclaim \"?([^\"\s]+)\"? is being deleted", re.I),
        "ClaimGoing",
        "the model's volume claim {0} is being deleted: it goes when no pod uses it any more, and the model "
        "is fetched again then",
    ),
    (
        re.compile(r"unbound immediate PersistentVolumeClaims", re.I),
        "ClaimPending",
        "the model's volume is not there yet. If that stays so, run `kubectl describe pvc` and check "
        "the storage class",
    ),
    (
        re.compile(r"volume node affinity conflict", re.I),
        "VolumeElsewhere",
        "no node that fits can mount the model's volume. Use a storage class with ReadWriteMany, or "
        "GPUs in the volume's zone",
    ),
    (
        _NO_GPU,
        "NoFreeGpu",
        "waiting for a free GPU: no node has enough {0}. Scale something down or add a node",
    ),
    (
        re.compile(r"Insufficient (memory|cpu|ephemeral-storage)"),
        "NoFreeResources",
        "no node has enough {0} free. Add a node, or lower resources.requests",
    ),
    (
        re.compile(r"(\d+) node\(s\) were unschedulable"),
        "Cordoned",
        "no node that is open takes the pod, and {0} closed for new pods (`kubectl cordon`). Run "
        "`kubectl uncordon NODE`, or add a node",
    ),
    (
        re.compile(r"untolerated taint(?:\(s\))?(?: ?\{([^}:,]*))?|had taint"),
        "Tainted",
        "all nodes that fit are tainted ({0}). Add a toleration to the platform's gpuValues",
    ),
    (
        re.compile(r"didn't match Pod's node affinity/selector|node\(s\) didn't match node selector"),
        "NoSuchNode",
        "no node has the labels that are asked for. Add a node of that GPU type, or correct the "
        "platform's gpuValues",
    ),
    (
        re.compile(r"Too many pods"),
        "NodesFull",
        "all nodes have as many pods as they may. Add a node",
    ),
    (
        re.compile(r"cannot allocate all claims|resourceclaim", re.I),
        "NoDevice",
        "no node can give the devices that are claimed. Check the DeviceClass and the driver",
    ),
    (
        re.compile(r"0/0 nodes|no nodes available", re.I),
        "NoNodes",
        "the cluster has no node that takes pods. Add a node",
    ),
)  # fmt: skip


def _diagnose_scheduling(pod: Object) -> Diagnosis | None:
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") != "False":
        return None
    message = str(scheduled.get("message", ""))
    if scheduled.get("reason") == "SchedulingGated":
        return Diagnosis(
            "SchedulingGated", "the pod is held back by a scheduling gate of the cluster"
        )
    for pattern, reason, text in _SCHEDULING:
        if match := pattern.search(message):
            groups = [(group or "").strip() or "a taint" for group in match.groups()]
            if reason == "Cordoned":
                groups = [f"{groups[0]} {'is' if groups[0] == '1' else 'are'}"]
            return Diagnosis(reason, text.format(*groups))
    return Diagnosis(
        "Unschedulable", f"no node takes the pod: {message[:300] or 'no reason given'}"
    )


def _diagnose_eviction(pod: Object) -> Diagnosis | None:
    status = pod.get("status", {})
    if status.get("phase") != "Failed" or status.get("reason") not in (
        "Evicted", "Preempting", "NodeShutdown", "Terminated", "NodeAffinity", "UnexpectedAdmissionError", "OutOfcpu", "OutOfmemory",
    ):  # fmt: skip
        return None
    why = str(status.get("message", ""))[:200].rstrip(". ")
    text = (
        f"the node gave the pod up ({status['reason']}){': ' if why else ''}{why}. It is replaced"
    )
    return Diagnosis("Evicted", text)


_PULL_REASONS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable", "ImageInspectError")  # fmt: skip

_PULLING: tuple[tuple[re.Pattern[str], str, str, bool], ...] = (
    (
        re.compile(r"InvalidImageName|couldn't parse image|invalid reference format", re.I),
        "ImageName",
        "is no valid name. Correct engine.image in the platform's values",
        True,
    ),
    (
        re.compile(r"unauthorized|authentication required|denied|403 Forbidden|401 Unauthorized", re.I),
        "ImageUnauthorized",
        "may not be pulled: the registry wants credentials. Name a Secret in imagePullSecrets",
        True,
    ),
    (
        re.compile(r"not found|manifest unknown|does not exist|404|NeverPull|not present with pull policy", re.I),
        "ImageMissing",
        "does not exist. Correct engine.image or the engine's version",
        True,
    ),
    (
        re.compile(r"no space left", re.I),
        "ImageNoSpace",
        "does not fit on the node's disk. Free space on the node",
        False,
    ),
    (
        re.compile(r"toomanyrequests|rate limit", re.I),
        "ImageRateLimit",
        "is not given by the registry, which limits pulls. Wait, or use a mirror",
        False,
    ),
    (
        re.compile(r"no such host|timeout|refused|unreachable|reset|TLS", re.I),
        "RegistryUnreachable",
        "cannot be pulled: the node does not reach the registry. Check the node's network",
        False,
    ),
)  # fmt: skip


def _diagnose_waiting(pod: Object, events: Sequence[Object], container: str) -> Diagnosis | None:
    waiting = container_status(pod, container).get("state", {}).get("waiting", {})
    reason, message = str(waiting.get("reason", "")), str(waiting.get("message", ""))
    if reason in _PULL_REASONS:
        # While the kubelet waits it says only that; the event before has the registry's words.
        failed = [event for event in events if event.get("reason") == "Failed"]
        return _diagnose_pull(pod, f"{reason} {message} {_last_message(failed)}", container)
    if reason in ("CreateContainerConfigError", "CreateContainerError", "RunContainerError"):
        text = message[:300].rstrip(". ") or reason
        step = "Check the platform's values"
        if "runAsNonRoot" in message or "non-root" in message:
            step = "The image wants to run as root, which is not permitted: take another image"
        return Diagnosis(
            "ContainerRefused", f"the container cannot be made: {text}. {step}", final=True
        )
    return None


def _diagnose_pull(pod: Object, words: str, container: str) -> Diagnosis:
    image = str(container_spec(pod, container).get("image", "?"))
    for pattern, reason, text, final in _PULLING:
        if pattern.search(words.replace(image, "")):
            return Diagnosis(reason, f"image {image} {text}", final=final)
    return Diagnosis("ImagePull", f"image {image} cannot be pulled. Run `kubectl describe pod`")


def _diagnose_probes(pod: Object, events: Sequence[Object], container: str) -> Diagnosis | None:
    """Say that the kubelet killed a container whose probe failed; the exit code alone misleads."""
    status = container_status(pod, container)
    last = status.get("lastState", {}).get("terminated", {})
    if not last or status.get("ready") or last.get("reason") == "OOMKilled":
        return None
    began = str(last.get("startedAt", ""))
    killed = [e for e in events if e.get("reason") == "Killing" and event_time(e) >= began]
    text = _last_message(killed)
    if "startup probe" in text:
        seconds = _startup_seconds(container_spec(pod, container))
        return Diagnosis(
            "StartTooSlow",
            f"it did not become ready within {seconds} s and was started again. Raise "
            "startup.baseSeconds in the platform's values, or use a faster volume",
            crashed=True,
        )
    if "liveness probe" in text:
        return Diagnosis(
            "EngineStuck",
            "it made no progress although it had work, and was started again. Look at its last words "
            "with `deployment logs --previous`",
            crashed=True,
        )
    return None


def _startup_seconds(container: Object) -> int:
    probe = container.get("startupProbe", {})
    return int(probe.get("periodSeconds", 10)) * int(probe.get("failureThreshold", 3))


def _diagnose_end(pod: Object, log_tail: Sequence[str], container: str) -> Diagnosis | None:
    status = container_status(pod, container)
    state = status.get("state", {})
    ended = state.get("terminated") or (
        status.get("lastState", {}).get("terminated") if "running" not in state else None
    )
    if not ended or status.get("ready"):
        return None
    if ended.get("reason") == "OOMKilled":
        limits = container_spec(pod, container).get("resources", {}).get("limits", {})
        memory = limits.get("memory")
        what = f"its memory limit of {memory}" if memory else "the end of the node's memory"
        return Diagnosis(
            "OutOfMemory",
            f"it reached {what}, and the kernel killed it. Raise resources.limits.memory in the "
            "platform's values, or offload less to the CPU",
            crashed=True,
        )
    lines = str(ended.get("message", "")).splitlines() or list(log_tail)
    found = diagnose_container(ended.get("exitCode"), lines)
    if found.message.startswith(("the engine failed", "the engine was ended")) and log_tail:
        found = diagnose_container(ended.get("exitCode"), log_tail)
    return Diagnosis("EngineFailed", found.message, crashed=found.retry, final=not found.retry)


def _diagnose_volumes(pod: Object, events: Sequence[Object]) -> Diagnosis | None:
    if condition(pod, "PodReadyToStartContainers").get("status") == "True":
        return None
    failed = [e for e in events if e.get("reason") in ("FailedMount", "FailedAttachVolume")]
    text = _last_message(failed)
    if not text or container_status(pod, "engine").get("state", {}).get("running"):
        return None
    if "Multi-Attach" in text:
        return Diagnosis(
            "VolumeInUse",
            "the model's volume is mounted on another node, and its class permits only one. Use a "
            "storage class with ReadWriteMany for models",
        )
    if 'volume "token"' in text and "secret" in text:
        return Diagnosis(
            "TokenSecretMissing",
            f"the Secret with the Hub's token cannot be mounted: {text[:300]}. Make the Secret with that "
            "key; the download goes on by itself",
        )
    return Diagnosis("VolumeNotMounted", f"a volume cannot be mounted: {text[:300]}")


def _last_message(events: Iterable[Object]) -> str:
    messages = [str(event.get("message", "")) for event in events]
    return messages[-1] if messages else ""
