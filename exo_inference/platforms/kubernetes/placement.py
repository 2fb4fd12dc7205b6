"""Which nodes the pods of a deployment may go to, and how replicas are replaced. Pure.

Both are part of the values, so they must not change by themselves: what a running release was
installed with stays until its pods change, unless a rollout is stuck for want of a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from exo_inference.errors import PlatformError
from exo_inference.platforms.base import DesiredDeployment, ObservedReplica, ReplicaPhase
from exo_inference.platforms.gpu_families import CPU_FAMILY
from exo_inference.platforms.kubernetes.diagnosis import needs_gpu
from exo_inference.platforms.kubernetes.names import (
    GPU_LABEL,
    PODS_ANNOTATION,
    annotation,
    label,
)
from exo_inference.platforms.kubernetes.nodes import (
    GpuNode,
    affinity_of,
    count_free_slots,
    largest_node,
)
from exo_inference.platforms.kubernetes.release_values import (
    IN_PLACE,
    SURGE,
    Release,
    Strategy,
    build_release,
    has_own_strategy,
    is_placed,
)
from exo_inference.platforms.kubernetes.settings import PlatformValues
from exo_inference.platforms.kubernetes.step import Live

Object = Mapping[str, Any]


def choose_release(
    desired: DesiredDeployment,
    given: PlatformValues,
    live: Live | None,
    pods: Sequence[Object],
    find_nodes: Callable[[], Sequence[GpuNode]],
    *,
    chart_version: str,
) -> Release:
    """Return the release as it is wanted now.

    Args:
        desired: the deployment.
        given: the administrator's values.
        live: the release as it is.
        pods: of the deployment.
        find_nodes: those with GPUs; not called for a release that stays as it is.
        chart_version: of the chart.

    Raises:
        PlatformError: no node has the GPUs, or the model is not on a volume claim.
    """
    nodes = choose_nodes(desired, given, live, find_nodes)
    pods_hash = build_release(desired, given, nodes=nodes).pods_hash
    if live is not None and live.name and live.pods_hash != pods_hash:
        # A new name alone is no reason to replace replicas: they keep the old one as their label.
        renamed = replace(desired, name=live.name)
        if build_release(renamed, given, nodes=nodes).pods_hash == live.pods_hash:
            desired, pods_hash = renamed, live.pods_hash
    affinity = _choose_affinity(desired, given, live, find_nodes, pods_hash)
    strategy = SURGE
    if desired.spec.gpu_type != CPU_FAMILY and not has_own_strategy(given, desired):
        strategy = choose_strategy(desired, live, pods, find_nodes, pods_hash)
    return build_release(
        desired,
        given,
        strategy=strategy,
        affinity=affinity,
        nodes=nodes,
        chart_version=chart_version,
    )


def choose_nodes(
    desired: DesiredDeployment,
    given: PlatformValues,
    live: Live | None,
    find_nodes: Callable[[], Sequence[GpuNode]],
) -> int:
    """Return how many nodes share the GPUs of one replica; it stays what it was at the first start.

    Raises:
        PlatformError: no node has the GPUs, and several together cannot give them.
    """
    if live is not None:
        on_gpus = desired.spec.gpu_type != CPU_FAMILY
        if live.nodes > 1 and (desired.spec.gpu_count % live.nodes or not on_gpus):
            raise PlatformError(
                f"a replica has {live.nodes} nodes, which {desired.spec.gpu_count} x {desired.spec.gpu_type} "
                "cannot be shared out over, and the number of nodes cannot be changed in place",
                hint="Change the specification back, or create another deployment.",
            )
        return live.nodes
    if desired.spec.gpu_type == CPU_FAMILY or is_placed(given, desired.spec.gpu_type):
        return 1
    largest = largest_node(find_nodes(), desired.spec.gpu_type)
    if not largest or desired.spec.gpu_count <= largest:
        return 1
    if given.spans_nodes and desired.spec.gpu_count % largest == 0:
        return desired.spec.gpu_count // largest
    raise PlatformError(
        f"no node has {desired.spec.gpu_count} {desired.spec.gpu_type}; the largest has {largest}",
        hint="Add a node; or switch features.leaderWorkerSet on, for engines that span nodes, and ask "
        f"for a multiple of {largest}.",
    )


def choose_strategy(
    desired: DesiredDeployment,
    live: Live | None,
    pods: Sequence[Object],
    find_nodes: Callable[[], Sequence[GpuNode]],
    pods_hash: str,
) -> Strategy:
    """Return how replicas are replaced: in place only where no GPU is free for one more."""
    if live is None:
        return SURGE
    alive = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    current = [pod for pod in alive if annotation(pod, PODS_ANNOTATION) == pods_hash]
    # Old pods on other GPUs have none to give.
    held = sum(label(pod, GPU_LABEL) in ("", desired.spec.gpu_type) for pod in alive) - len(current)
    if live.pods_hash == pods_hash:
        # Pods that end give their GPUs back soon; only then is it known whether one is missing.
        stuck = held > 0 and len(alive) == len(pods) and any(needs_gpu(pod) for pod in current)
        return IN_PLACE if stuck else live.strategy
    if held <= 0 or desired.spec.replicas == 0:
        return SURGE
    nodes = find_nodes()
    free = count_free_slots(nodes, desired.spec.gpu_type, desired.spec.gpu_count // live.nodes)
    known = any(node.family == desired.spec.gpu_type for node in nodes)
    return IN_PLACE if known and free < live.nodes else SURGE


def surge_note(wanted: Release, live: Live | None, replicas: Sequence[ObservedReplica]) -> str:
    """Return what is to be said of an update for which no GPU is free; empty otherwise."""
    rollout = wanted.values.get("rollout", {})
    in_place = rollout.get("maxSurge") == 0
    old_serve = any(not r.current and r.phase is ReplicaPhase.READY for r in replicas)
    if not (in_place and old_serve and live is not None):
        return ""
    return "no GPU is free for one more replica, so one at a time is replaced"


def _choose_affinity(
    desired: DesiredDeployment,
    given: PlatformValues,
    live: Live | None,
    find_nodes: Callable[[], Sequence[GpuNode]],
    pods_hash: str,
) -> Mapping[str, Any] | None:
    if desired.spec.gpu_type == CPU_FAMILY or is_placed(given, desired.spec.gpu_type):
        return None
    if live is not None and live.pods_hash == pods_hash and not live.edited:
        return live.affinity
    nodes = find_nodes()
    found = affinity_of(nodes, desired.spec.gpu_type)
    if found is None and live is not None and live.affinity:
        return live.affinity  # its nodes are away for the moment
    if found is None and desired.spec.replicas > 0:
        families = ", ".join(sorted({node.family for node in nodes})) or "no GPU"
        raise PlatformError(
            f"no node of the cluster has a {desired.spec.gpu_type}; they have: {families}",
            hint="Add a node; or, for nodes that are made on demand, set nodeSelector in the platform's "
            f"gpuValues.{desired.spec.gpu_type}.",
        )
    return found
