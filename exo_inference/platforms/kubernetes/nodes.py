"""GPU families and what is free of them, from nodes and the pods on them. Pure.

A node's family comes from the label that NVIDIA's feature discovery puts on it, else from the name
of Exoscale's instance type. Free is what a node offers less what the pods on it ask for, as the
scheduler counts; pods that the controller may not see do not count.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from exo_inference.engine_names import GPU_ENGINE
from exo_inference.engines import engines_on
from exo_inference.planner import Gpu as PlannedGpu
from exo_inference.planner import cpu_as_gpu, find_family
from exo_inference.planner.processor.kernels import PLAIN_LOOPS
from exo_inference.platforms.base import InstanceTypeInfo
from exo_inference.platforms.gpu_families import CPU_FAMILY, describe_gpu, family_of
from exo_inference.platforms.kubernetes.diagnosis import condition
from exo_inference.platforms.kubernetes.names import label

Object = Mapping[str, Any]

GPU_RESOURCE = "nvidia.com/gpu"
PRODUCT_LABEL = "nvidia.com/gpu.product"
_CPUID = "feature.node.kubernetes.io/cpu-cpuid."
MEMORY_LABEL = "nvidia.com/gpu.memory"
INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"

_SHARED = re.compile(r"-(SHARED|MIG-\S+)$")

_SUFFIXES = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip
_QUANTITY = re.compile(r"([0-9.]+)(m|[kKMGTPE]i?|)")


@dataclass(frozen=True, slots=True)
class GpuNode:
    """A node with GPUs.

    Attributes:
        match: label and value that find nodes with the same GPU.
        gpu: what the planner knows of it.
        free: GPUs that no pod asks for; 0 on a node that takes no pods.
    """

    name: str
    family: str
    match: tuple[str, str]
    gpu: PlannedGpu
    product: str
    memory_mib: int
    total: int
    free: int


def gpu_nodes(nodes: Iterable[Object], pods: Iterable[Object]) -> list[GpuNode]:
    """Return the nodes whose GPUs have a family, by name."""
    used = _requested(pods, GPU_RESOURCE)
    found = []
    for node in nodes:
        total = int(parse_quantity(node.get("status", {}).get("allocatable", {}).get(GPU_RESOURCE)))
        described = _describe(node) if total > 0 else None
        if described is None:
            continue
        name = node["metadata"]["name"]
        free = max(0, total - int(used.get(name, 0))) if takes_pods(node) else 0
        family, match, gpu, product, memory_mib = described
        found.append(GpuNode(name, family, match, gpu, product, memory_mib, total, free))
    return sorted(found, key=lambda node: node.name)


def instance_types(
    nodes: Iterable[Object], pods: Iterable[Object], *, spans_nodes: bool = False
) -> list[InstanceTypeInfo]:
    """Return the families of a cluster; `cpu` comes last, where any node takes pods.

    Args:
        nodes: of the cluster.
        pods: that the controller may see.
        spans_nodes: the cluster has LeaderWorkerSet, and the controller may use it.
    """
    nodes, pods = list(nodes), list(pods)
    by_family: dict[str, list[GpuNode]] = {}
    for node in gpu_nodes(nodes, pods):
        by_family.setdefault(node.family, []).append(node)
    types = []
    for family, members in sorted(by_family.items()):
        smallest = min(members, key=lambda node: node.memory_mib)
        size = f", {smallest.memory_mib} MiB" if smallest.memory_mib else ""
        largest = max(node.total for node in members)
        where = "1 node" if len(members) == 1 else f"{len(members)} nodes, at most {largest} on one"
        types.append(
            InstanceTypeInfo(
                family,
                total_gpus=sum(node.total for node in members),
                free_gpus=sum(node.free for node in members),
                description=f"{smallest.product}{size}, on {where}",
                gpu=smallest.gpu,
                engine=GPU_ENGINE,
                engines=engines_on("gpu"),
                largest_node=largest,
                spans_nodes=spans_nodes,
            )
        )
    cpu = _cpu_type(nodes, pods)
    return [*types, cpu] if cpu is not None else types


def count_free_slots(nodes: Iterable[GpuNode], family: str, gpu_count: int) -> int:
    """Return how many more replicas fit: the GPUs of one are all on one node."""
    return sum(node.free // max(1, gpu_count) for node in nodes if node.family == family)


def largest_node(nodes: Iterable[GpuNode], family: str) -> int:
    """Return the GPUs of the node of a family that has most; 0 where there is none."""
    return max((node.total for node in nodes if node.family == family), default=0)


def affinity_of(nodes: Iterable[GpuNode], family: str) -> dict[str, Any] | None:
    """Return the affinity that keeps pods on nodes of a family; None where there are none."""
    values: dict[str, set[str]] = {}
    for node in nodes:
        if node.family == family:
            values.setdefault(node.match[0], set()).add(node.match[1])
    if not values:
        return None
    terms = [
        {"matchExpressions": [{"key": key, "operator": "In", "values": sorted(found)}]}
        for key, found in sorted(values.items())
    ]
    required = {"nodeSelectorTerms": terms}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def takes_pods(node: Object) -> bool:
    """Whether a node is ready and not closed for new pods."""
    is_open = not node.get("spec", {}).get("unschedulable", False)
    return is_open and condition(node, "Ready").get("status") == "True"


def capacity_of(node: Object) -> tuple[str, ...]:
    """Return what decides whether a replica could go to a node; heartbeats do not change it."""
    allocatable = node.get("status", {}).get("allocatable", {})
    offered = [str(allocatable.get(resource, "")) for resource in (GPU_RESOURCE, "cpu", "memory")]
    names = [label(node, key) for key in (PRODUCT_LABEL, MEMORY_LABEL, INSTANCE_TYPE_LABEL)]
    return (*offered, *names, str(takes_pods(node)))


def parse_quantity(text: object) -> float:
    """Read a quantity of Kubernetes such as `4`, `500m` or `16Gi`; what is none is 0."""
    return _parse_quantity(str(text or "0"))


@functools.lru_cache(maxsize=256)
def _parse_quantity(text: str) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return 0.0
    number, suffix = match.groups()
    try:
        return float(number) / 1000 if suffix == "m" else float(number) * _SUFFIXES[suffix]
    except (ValueError, KeyError):
        return 0.0


def _describe(node: Object) -> tuple[str, tuple[str, str], PlannedGpu, str, int] | None:
    labels = (label(node, key) for key in (PRODUCT_LABEL, MEMORY_LABEL, INSTANCE_TYPE_LABEL))
    return _describe_labels(*labels)


@functools.lru_cache(maxsize=256)
def _describe_labels(
    product: str, memory: str, instance_type: str
) -> tuple[str, tuple[str, str], PlannedGpu, str, int] | None:
    if product:
        name = _SHARED.sub("", product)
        memory_mib = int(memory) if memory.isdigit() else 0
        family = family_of(name)
        if memory_mib:
            gpu = describe_gpu(name, memory_mib)
        else:
            known = find_family(family)
            if known is None:
                return None
            gpu = known
        return family, (PRODUCT_LABEL, product), gpu, name.replace("-", " "), memory_mib
    known = find_family(instance_type.partition(".")[0])
    if known is None or known.family is None:
        return None
    return known.family, (INSTANCE_TYPE_LABEL, instance_type), known, known.name, 0


def _cpu_type(nodes: list[Object], pods: list[Object]) -> InstanceTypeInfo | None:
    usable = [node for node in nodes if takes_pods(node)]
    if not usable:
        return None
    used = _requested(pods, "cpu")
    total = free = largest = 0
    memory = 0.0
    for node in usable:
        allocatable = node.get("status", {}).get("allocatable", {})
        cores = parse_quantity(allocatable.get("cpu"))
        total += int(cores)
        largest = max(largest, int(cores))
        free += int(max(0.0, cores - used.get(node["metadata"]["name"], 0.0)))
        memory = max(memory, parse_quantity(allocatable.get("memory")))
    where = "1 node" if len(usable) == 1 else f"{len(usable)} nodes"
    have_vectors = all(map(_has_vectors, usable))
    kernels = "avx2" if have_vectors else PLAIN_LOOPS
    gpu = cpu_as_gpu(int(memory), is_fast_in_bfloat16=have_vectors, kernels=kernels)
    return InstanceTypeInfo(
        CPU_FAMILY,
        total,
        free,
        f"{total} cores on {where}",
        gpu=gpu,
        engines=engines_on("cpu"),
        largest_node=largest,
    )


def _has_vectors(node: Object) -> bool:
    """Whether the engine's image has kernels for bfloat16 there: on x86 with AVX2, which is assumed unless it is told."""
    labels = node.get("metadata", {}).get("labels") or {}
    if any(label.startswith(_CPUID) for label in labels):  # Node Feature Discovery
        return all(labels.get(f"{_CPUID}{name}") == "true" for name in ("AVX2", "FMA3"))
    info = node.get("status", {}).get("nodeInfo", {})
    return bool(info.get("architecture") == "amd64")


def _requested(pods: Iterable[Object], resource: str) -> dict[str, float]:
    """Return by node what pods that have not ended ask for of a resource."""
    used: dict[str, float] = {}
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if not node or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            continue
        wanted = sum(_wants(container, resource) for container in pod["spec"]["containers"])
        first = [_wants(c, resource) for c in pod["spec"].get("initContainers") or ()]
        used[node] = used.get(node, 0.0) + max(wanted, *first, 0.0)
    return used


def _wants(container: Object, resource: str) -> float:
    resources = container.get("resources", {})
    limit = resources.get("limits", {}).get(resource)
    return parse_quantity(resources.get("requests", {}).get(resource, limit))
