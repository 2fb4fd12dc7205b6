"""Every failure of a pod has its reason and one sentence with the next step."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exo_inference.platforms.kubernetes.denials import diagnose_deployment, explain_denial
from exo_inference.platforms.kubernetes.diagnosis import diagnose_pod, needs_gpu
from tests.platforms.kubernetes.recorded import (
    IMAGE,
    Object,
    copy_of,
    crashed,
    deployment,
    event,
    node,
    pod,
    restarted,
    unscheduled,
    waiting,
)

Case = tuple[Object, tuple[Object, ...], tuple[str, ...]]

PREEMPTION = "preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod."
PULL = f'Failed to pull image "{IMAGE}": failed to pull and unpack image "{IMAGE}": '
GATED = "huggingface_hub.errors.GatedRepoError: 401 Client Error. Cannot access gated repo"
CUDA = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity "
    "of 23.50 GiB of which 1.10 GiB is free."
)
VLLM_END = "RuntimeError: Engine core initialization failed. See root cause above."


def lack(words: str) -> Object:
    return unscheduled(f"0/3 nodes are available: {words}. {PREEMPTION}")


CASES: dict[str, tuple[Object, tuple[Object, ...], tuple[str, ...], str, str]] = {
    "no free gpu": (lack("3 Insufficient nvidia.com/gpu"), (), (), "NoFreeGpu", "add a node"),
    "no free gpu, among other words": (
        lack("2 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint(s)"), (), (), "NoFreeGpu",
        "no node has enough nvidia.com/gpu. Scale something down",
    ),
    "no free part of a gpu": (
        lack("3 Insufficient nvidia.com/mig-1g.5gb"), (), (), "NoFreeGpu", "enough nvidia.com/mig-1g.5gb. Scale",
    ),
    "no memory": (lack("3 Insufficient memory"), (), (), "NoFreeResources", "memory"),
    "no cpu": (lack("1 node(s) had untolerated taint {a: b}, 2 Insufficient cpu"), (), (), "NoFreeResources", "cpu"),
    "tainted": (lack("3 node(s) had untolerated taint {dedicated: gpu}"), (), (), "Tainted", "dedicated"),
    "cordoned, others tainted": (
        lack("1 node(s) were unschedulable, 3 node(s) had untolerated taint(s). no new claims to deallocate"),
        (), (), "Cordoned", "and 1 is closed for new pods (`kubectl cordon`). Run `kubectl uncordon NODE`",
    ),
    "tainted, newer words": (
        lack("3 node(s) had untolerated taint(s). no new claims to deallocate"), (), (), "Tainted",
        "all nodes that fit are tainted (a taint). Add",
    ),
    "tainted, new words": (lack("3 node(s) had untolerated taint(s)"), (), (), "Tainted", "toleration"),
    "no such node": (lack("3 node(s) didn't match Pod's node affinity/selector"), (), (), "NoSuchNode", "GPU type"),
    "cordoned": (lack("3 node(s) were unschedulable"), (), (), "Cordoned", "uncordon"),
    "no nodes": (unscheduled("no nodes available to schedule pods"), (), (), "NoNodes", "Add a node"),
    "nodes full": (lack("3 Too many pods"), (), (), "NodesFull", "Add a node"),
    "claim pending": (
        lack("pod has unbound immediate PersistentVolumeClaims"), (), (), "ClaimPending", "storage class",
    ),
    "claim gone": (
        unscheduled('persistentvolumeclaim "exo-model-m1" not found'), (), (), "ClaimMissing", "exo-model-m1",
    ),
    "claim going": (
        unscheduled('persistentvolumeclaim "exo-m-m1" is being deleted'), (), (), "ClaimGoing",
        "claim exo-m-m1 is being deleted: it goes when no pod uses it",
    ),
    "volume elsewhere": (lack("3 node(s) had volume node affinity conflict"), (), (), "VolumeElsewhere", "ReadWriteMany"),
    "devices": (lack("3 cannot allocate all claims"), (), (), "NoDevice", "DeviceClass"),
    "gated": (unscheduled("", "SchedulingGated"), (), (), "SchedulingGated", "gate"),
    "unknown scheduling": (lack("3 node(s) are made of cheese"), (), (), "Unschedulable", "cheese"),
    "image missing": (
        waiting("ErrImagePull", PULL + "failed to resolve reference: not found"), (), (), "ImageMissing", IMAGE,
    ),
    "image missing, waiting": (
        waiting("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"'),
        (event("Failed", PULL + "manifest unknown"),), (), "ImageMissing", "version",
    ),
    "image unauthorized": (
        waiting("ErrImagePull", PULL + "failed to authorize: 401 Unauthorized"), (), (), "ImageUnauthorized", "imagePullSecrets",
    ),
    "image name": (
        waiting("InvalidImageName", "couldn't parse image name: invalid reference format"), (), (), "ImageName", "valid",
    ),
    "registry away": (
        waiting("ErrImagePull", PULL + "dial tcp: lookup ghcr.io: no such host"), (), (), "RegistryUnreachable", "network",
    ),
    "rate limit": (waiting("ErrImagePull", PULL + "toomanyrequests: slow down"), (), (), "ImageRateLimit", "mirror"),
    "image disk": (waiting("ErrImagePull", PULL + "write /x: no space left on device"), (), (), "ImageNoSpace", "disk"),
    "never pulled": (
        waiting("ErrImageNeverPull", "Container image is not present with pull policy of Never"), (), (), "ImageMissing", "exist",
    ),
    "root image": (
        waiting("CreateContainerConfigError", "container has runAsNonRoot and image will run as root"), (), (),
        "ContainerRefused", "another image",
    ),
    "oom": (crashed(137, reason="OOMKilled"), (), (), "OutOfMemory", "16Gi"),
    "cuda oom": (crashed(1, CUDA), (), (), "EngineFailed", "--max-model-len"),
    "cuda oom in the log": (crashed(1, VLLM_END), (), (CUDA, "  File ...", VLLM_END), "EngineFailed", "GPU's memory"),
    "bad flag": (
        crashed(2, "vllm: error: unrecognized arguments: --max-model-length=1"), (), (), "EngineFailed", "--max-model-length=1",
    ),
    "bad value": (
        crashed(2, "vllm: error: argument --dtype: invalid choice: 'x'"), (), (), "EngineFailed", "--dtype",
    ),
    "own words": (
        crashed(78, "exo-adapter: error: EXO_SERVED_MODEL_NAME is not set"), (), (), "EngineFailed", "EXO_SERVED",
    ),
    "gated model": (crashed(1, GATED), (), (), "EngineFailed", "licence"),
    "context too long": (
        crashed(1, "ValueError: To serve at least one request with the models's max seq len (131072) is larger than the "
                "maximum number of tokens that can be stored in KV cache (53216)."), (), (), "EngineFailed", "--max-model-len",
    ),
    "no cache": (crashed(1, "ValueError: No available memory for the cache blocks."), (), (), "EngineFailed", "weights"),
    "architecture": (
        crashed(1, "ValueError: Model architectures ['NewForCausalLM'] are not supported for now."), (), (),
        "EngineFailed", "NewForCausalLM",
    ),
    "no gpu in the container": (crashed(1, "RuntimeError: No CUDA GPUs are available"), (), (), "EngineFailed", "device plugin"),
    "no program": (crashed(127), (), (), "EngineFailed", "engine.image"),
    "crash without words": (crashed(1, "Killed by fate"), (), (), "EngineFailed", "Killed by fate"),
    "ended by itself": (crashed(0), (), (), "EngineFailed", "without being asked"),
    "start too slow": (
        restarted(143), (event("Killing", "Container engine failed startup probe, will be restarted", type_="Normal"),), (),
        "StartTooSlow", "310 s",
    ),
    "stuck": (
        restarted(137), (event("Killing", "Container engine failed liveness probe, will be restarted", type_="Normal"),), (),
        "EngineStuck", "--previous",
    ),
    "evicted": (
        pod(phase="Failed") | {"status": {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}},
        (), (), "Evicted", "low on resource",
    ),
    "volume in use": (
        pod(phase="Pending", state={"waiting": {"reason": "ContainerCreating"}}),
        (event("FailedAttachVolume", "Multi-Attach error for volume \"pvc-1\" Volume is already used by pod(s) x"),), (),
        "VolumeInUse", "ReadWriteMany",
    ),
    "volume not mounted": (
        pod(phase="Pending", state={"waiting": {"reason": "ContainerCreating"}}),
        (event("FailedMount", "MountVolume.SetUp failed for volume \"pvc-1\" : rpc error: no such export"),), (),
        "VolumeNotMounted", "no such export",
    ),
    "no Secret with the Hub's token": (
        pod(phase="Pending", state={"waiting": {"reason": "ContainerCreating"}}),
        (event("FailedMount", "MountVolume.SetUp failed for volume \"token\" : secret \"hub\" not found"),), (),
        "TokenSecretMissing", "secret \"hub\" not found. Make the Secret",
    ),
    "no such key in it": (
        pod(phase="Pending", state={"waiting": {"reason": "ContainerCreating"}}),
        (event("FailedMount", "MountVolume.SetUp failed for volume \"token\" : references non-existent secret key: token"),), (),
        "TokenSecretMissing", "non-existent secret key: token. Make",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_failure_has_its_reason_and_the_next_step(case: Any) -> None:
    found_pod, events, log_tail, reason, words = case
    found = diagnose_pod(found_pod, events, log_tail, node=node())
    assert found is not None
    assert found.reason == reason
    assert words in found.details
    assert len(found.details) < 700
    assert not re.search(r"[{}]\d|\bNone\b", found.details)


NOISE = [
    event("Failed", "Error: ErrImagePull", at="2026-11-21T19:00:00Z"),
    event("Killing", "Container engine failed startup probe, will be restarted", at="2026-11-21T19:00:00Z"),
    event("Killing", "Stopping container engine", at="2026-11-21T20:09:00Z"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_happened_before_this_run_does_not_change_the_reason(case: Any) -> None:
    found_pod, events, log_tail, reason, _ = case
    found = diagnose_pod(found_pod, [*NOISE[:2], *events], log_tail, node=node())
    assert found is not None
    assert found.reason == reason


def test_a_node_that_is_lost_outranks_what_the_pod_says() -> None:
    found = diagnose_pod(crashed(1), node=node(ready="Unknown"))
    assert found is not None
    assert found.reason == "NodeLost"
    assert "kubectl delete node gpu-1" in found.details
    not_ready = diagnose_pod(pod(), node=node(ready="False"))
    assert not_ready is not None
    assert not_ready.reason == "NodeNotReady"


def test_nothing_is_wrong_with_a_pod_that_starts_or_serves() -> None:
    for healthy in (
        pod(),
        pod(ready=True),
        pod(phase="Pending", state={"waiting": {"reason": "ContainerCreating"}}),
    ):
        assert diagnose_pod(healthy, NOISE, node=node()) is None  # fmt: skip


def test_what_cannot_mend_itself_is_final() -> None:
    final = {name for name, case in CASES.items() if _diagnose(case).final}
    assert {
        "image missing",
        "image name",
        "own words",
        "bad flag",
        "gated model",
        "no program",
    } <= final
    assert final.isdisjoint({"no free gpu", "oom", "registry away", "start too slow", "cuda oom"})


def _diagnose(case: Any) -> Any:
    return diagnose_pod(case[0], case[1], case[2], node=node())


def test_only_a_missing_gpu_makes_an_update_go_in_place() -> None:
    assert needs_gpu(CASES["no free gpu"][0])
    assert not needs_gpu(CASES["no memory"][0])
    assert not needs_gpu(pod())


def _prune(item: Any, choose: Any) -> Any:
    """Return an object in which optional fields are missing at random."""
    if isinstance(item, dict):
        kept = {"metadata", "spec", "containers", "name", "type", "status"}
        return {
            key: _prune(value, choose)
            for key, value in item.items()
            if key in kept or choose(st.booleans())
        }
    return [_prune(entry, choose) for entry in item] if isinstance(item, list) else item


@given(st.data(), st.sampled_from(sorted(CASES)))
def test_fields_that_are_missing_never_break_a_diagnosis(data: Any, name: str) -> None:
    found_pod, events, log_tail, _, _ = CASES[name]
    pruned = _prune(copy_of(found_pod), data.draw)
    found = diagnose_pod(pruned, events, log_tail, node=_prune(copy.deepcopy(node()), data.draw))
    assert found is None or found.details


FORBIDDEN = 'pods "exo-1-abc" is forbidden: '
DENIALS = {
    "quota": (
        FORBIDDEN + "exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=4, "
        "limited: requests.nvidia.com/gpu=4", "QuotaExceeded", "limited to requests.nvidia.com/gpu=4",
    ),
    "pod security": (
        FORBIDDEN + 'violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false (container "engine" must '
        "set securityContext.allowPrivilegeEscalation=false)", "PodSecurity", "allowPrivilegeEscalation",
    ),
    "webhook": (
        'admission webhook "validate.kyverno.svc-fail" denied the request: \n\nresource Pod/x was blocked: \n\n'
        "require-labels: label 'team' is required", "AdmissionDenied", "label 'team' is required",
    ),
    "policy": (
        "deployments.apps \"x\" is forbidden: ValidatingAdmissionPolicy 'replicas' with binding 'b' denied request: too many",
        "AdmissionDenied", "too many",
    ),
    "webhook down": (
        'Internal error occurred: failed calling webhook "x.example.com": failed to call webhook: Post "https://x": '
        "connection refused", "WebhookDown", "x.example.com",
    ),
    "limit range": (
        FORBIDDEN + "maximum memory usage per Container is 4Gi, but limit is 16Gi", "LimitRange", "4Gi",
    ),
    "service account": (
        FORBIDDEN + 'error looking up service account ns/engines: serviceaccount "engines" not found',
        "NoServiceAccount", "engines",
    ),
    "priority": (FORBIDDEN + "no PriorityClass with name gold was found", "NoPriorityClass", "gold"),
    "runtime class": ('pod rejected: RuntimeClass "nvidia" not found', "NoRuntimeClass", "GPU operator"),
    "schema": (
        "values don't meet the specifications of the schema(s) in the following chart(s):\ninference-deployment:\n"
        "- (root): Additional property x is not allowed", "ValuesRefused", "property x",
    ),
    "rbac": (
        'secrets is forbidden: User "system:serviceaccount:exo:exo-controller" cannot list resource "secrets" in API group ""',
        "NotPermitted", "exo-controller",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DENIALS.values(), ids=DENIALS.keys())
def test_what_the_cluster_refuses_is_explained(case: tuple[str, str, str]) -> None:
    text, reason, words = case
    found = explain_denial(text)
    assert found is not None
    assert (found.reason, words in found.details) == (reason, True)
    failure = {"type": "ReplicaFailure", "status": "True", "message": text}
    assert diagnose_deployment(deployment(conditions=(failure,))) == found


def test_a_refusal_that_no_rule_knows_is_quoted() -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "message": "the moon is full"}
    found = diagnose_deployment(deployment(conditions=(failure,)))
    assert found is not None
    assert "the moon is full" in found.details
    assert diagnose_deployment(deployment()) is None
