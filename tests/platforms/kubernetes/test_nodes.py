"""GPU families and free GPUs, counted from nodes and pods."""

from __future__ import annotations

from typing import Any

import pytest

from exo_inference.engines import engines_on
from exo_inference.platforms.kubernetes.nodes import (
    affinity_of,
    count_free_slots,
    gpu_nodes,
    instance_types,
    parse_quantity,
)
from tests.platforms.kubernetes.recorded import node, pod

A40 = {"nvidia.com/gpu.product": "NVIDIA-A40", "nvidia.com/gpu.memory": "46068"}
H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}
MIG = {
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb",
    "nvidia.com/gpu.memory": "9856",
}
UNKNOWN = {"nvidia.com/gpu.product": "NVIDIA-X9000", "nvidia.com/gpu.memory": "1234567"}
EXOSCALE = {"node.kubernetes.io/instance-type": "gpua5000.small"}


def test_families_have_what_their_nodes_have_free() -> None:
    nodes = [
        node("a", gpus=4, labels=A40),
        node("b", gpus=4, labels=A40),
        node("c", gpus=8, labels=H100),
        node("plain"),
    ]
    pods = [
        pod(name="1", node="a", gpus=2, ready=True),
        pod(name="2", node="c", gpus=8, ready=True),
        pod(name="3", node="b", gpus=1, deleting=True),  # it holds its GPU until it is gone
        pod(name="4", node="b", gpus=4, phase="Succeeded"),
        pod(name="5", node=None, gpus=4),
    ]
    types = {found.family: found for found in instance_types(nodes, pods)}
    assert list(types) == ["gpu3", "h100", "cpu"]
    assert (types["gpu3"].total_gpus, types["gpu3"].free_gpus) == (8, 5)
    assert (types["h100"].total_gpus, types["h100"].free_gpus) == (8, 0)
    assert types["gpu3"].gpu is not None
    assert types["gpu3"].gpu.key == "a40"
    assert types["h100"].gpu is not None
    assert types["h100"].gpu.key == "h100-sxm"
    assert types["gpu3"].description == "NVIDIA A40, 46068 MiB, on 2 nodes, at most 4 on one"
    assert types["cpu"].total_gpus == 64


def test_a_part_of_a_gpu_and_an_unknown_one_have_the_memory_that_the_driver_says() -> None:
    types = instance_types([node("m", gpus=7, labels=MIG), node("u", gpus=1, labels=UNKNOWN)], [])
    memory = {found.family: found.gpu.reported_bytes for found in types if found.gpu is not None}
    assert memory["x9000"] == pytest.approx(1234567 * 2**20, rel=0.01)
    assert memory["h100"] < 10 * 2**30


def test_exoscales_instance_types_are_families_without_any_label_of_nvidia() -> None:
    (found, _) = instance_types([node("e", gpus=1, labels=EXOSCALE)], [])
    assert (found.family, found.free_gpus) == ("gpua5000", 1)


@pytest.mark.parametrize("state", [{"closed": True}, {"ready": "False"}, {"ready": "Unknown"}])
def test_a_node_that_takes_no_pods_has_nothing_free(state: dict[str, Any]) -> None:
    (found,) = instance_types([node("a", gpus=4, labels=A40, **state)], [])
    assert (found.total_gpus, found.free_gpus) == (4, 0)


def test_a_gpu_node_without_a_name_for_its_gpu_is_a_cpu_node() -> None:
    assert [found.family for found in instance_types([node("a", gpus=4)], [])] == ["cpu"]
    assert instance_types([], []) == []


@pytest.mark.parametrize(
    ("architectures", "is_fast"),
    [
        (["amd64"], True),
        (["amd64", "amd64"], True),
        (["amd64", "arm64"], False),
        (["arm64"], False),
        ([None], False),
    ],
)
def test_processors_are_fast_in_bfloat16_where_all_have_kernels_in_the_image(
    architectures: list[str | None], is_fast: bool
) -> None:
    nodes = [node(f"n{number}") for number in range(len(architectures))]
    for each, architecture in zip(nodes, architectures, strict=True):
        each["status"]["nodeInfo"] = {"architecture": architecture} if architecture else {}
    (found,) = instance_types(nodes, [])
    assert found.gpu is not None
    assert found.gpu.supports("bf16") == is_fast
    assert (found.gpu.kernels == "plain") != is_fast


@pytest.mark.parametrize(
    ("features", "is_fast"), [(["AVX2", "FMA3", "SSE42"], True), (["SSE42"], False)]
)
def test_what_node_feature_discovery_tells_of_a_processor_is_believed(
    features: list[str], is_fast: bool
) -> None:
    told = node("n", labels={f"feature.node.kubernetes.io/cpu-cpuid.{f}": "true" for f in features})
    told["status"]["nodeInfo"] = {"architecture": "amd64"}
    (found,) = instance_types([told], [])
    assert found.gpu is not None
    assert found.gpu.supports("bf16") == is_fast


def test_all_gpus_of_a_replica_are_on_one_node() -> None:
    nodes = gpu_nodes([node("a", gpus=3, labels=A40), node("b", gpus=3, labels=A40)], [])
    assert [count_free_slots(nodes, "gpu3", count) for count in (1, 2, 3, 4)] == [6, 2, 2, 0]
    assert count_free_slots(nodes, "gpua5000", 1) == 0


def test_the_affinity_names_what_tells_the_nodes_apart() -> None:
    nodes = gpu_nodes([node("a", gpus=1, labels=A40), node("e", gpus=1, labels=EXOSCALE)], [])
    assert affinity_of(nodes, "gpu3") == {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {
                        "matchExpressions": [
                            {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-A40"]}
                        ]
                    }
                ]
            }
        }
    }  # fmt: skip
    assert affinity_of(nodes, "gpub300") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("24606000Ki", 24606000 * 1024.0),  # as a kubelet says it
        ("4", 4), ("500m", 0.5), ("16Gi", 2**34), ("1.5", 1.5), ("2k", 2000), ("", 0), (None, 0),
        ("many", 0), ("1.2.3", 0), ("1E", 10**18), ("1Ei", 2**60),
    ],
)  # fmt: skip
def test_quantities(text: str | None, value: float) -> None:
    assert parse_quantity(text) == value


def test_vllm_runs_on_gpus_and_exo_engine_on_cpus_unless_asked_otherwise() -> None:
    families = instance_types([node("a", gpus=4, labels=A40)], [])
    assert {family.family: family.engine for family in families} == {"gpu3": "vllm", "cpu": "exo"}


def test_what_can_run_is_told_and_how_many_gpus_one_node_has() -> None:
    nodes = [node("a", gpus=4, labels=A40), node("b", gpus=8, labels=A40)]
    (gpu3, cpu) = instance_types(nodes, [], spans_nodes=True)
    assert (gpu3.total_gpus, gpu3.gpus_of_one_node, gpu3.spans_nodes) == (12, 8, True)
    assert gpu3.possible_engines == engines_on("gpu")
    assert (cpu.possible_engines, cpu.spans_nodes) == (engines_on("cpu"), False)
    assert cpu.gpus_of_one_node < cpu.total_gpus
