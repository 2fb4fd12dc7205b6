"""Buffers by which ranks talk: the fused all-reduce, all-to-all of experts, and experts over data-parallel ranks."""

from __future__ import annotations

from typing import Any

import pytest

from exo_inference.planner.catalog_models import find_model
from exo_inference.planner.engine_rules import rules_for
from exo_inference.planner.gpu_catalog import GIB, MIB, find_gpu
from exo_inference.planner.memory import Ranks
from exo_inference.planner.parallel.all_reduce import NOTHING, fused_all_reduce
from exo_inference.planner.parallel.all_to_all import all_to_all_bytes, low_latency_bytes
from exo_inference.planner.parameters import EngineParameters
from exo_inference.planner.planning import plan
from exo_inference.planner.verdict import Plan

V3 = "deepseek-ai/DeepSeek-V3"


def fused(gpu: str, version: str, tensor: int = 2, tokens: int = 8192, **ranks: Any) -> int:
    found = fused_all_reduce(
        4096, Ranks(tensor, **ranks), rules_for("vllm", version), find_gpu(gpu), tokens, 2
    )
    assert found.low <= found.num_bytes <= found.high
    return found.num_bytes


def planned(name: str, gpu: str, count: int, version: str = "0.32.0", **flags: Any) -> Plan:
    parameters = EngineParameters(engine_version=version, max_model_len=8192, **flags)
    return plan(find_model(name), find_gpu(gpu), count, parameters)


def size(result: Plan, name: str) -> int:
    part = result.component(name)
    return 0 if part is None else part.num_bytes


@pytest.mark.parametrize(
    ("gpu", "version", "tensor", "mib"),
    [
        ("H100", "0.16.0", 2, 0),  # off
        (
            "H100",
            "0.17.0",
            2,
            4 * 2 * 64 + 2,
        ),  # FlashInfer's IPC workspace: 1 + 3 of all ranks' tokens, and flags
        ("H100", "0.24.0", 4, 4 * 4 * 2 + 2),
        ("H100", "0.32.0", 2, 3 * 2 * 64),  # over multicast: three of two stages
        (
            "H100",
            "0.32.0",
            8,
            4,
        ),  # 0.5 MiB, but never less than three of the one-shot kernel's 1 MiB
        ("h100-pcie", "0.32.0", 2, 4 * 2 * 64 + 2),  # no switch that multicasts
        ("B200", "0.32.0", 4, 3 * 2 * 32),
        ("B300", "0.18.0", 4, 0),
        ("B300", "0.19.0", 4, 4 * 4 * 64 + 2),
        ("A100", "0.32.0", 2, 0),
        ("L40S", "0.32.0", 2, 0),
        ("H100", "0.32.0", 6, 0),
    ],
)
def test_the_fused_all_reduce_by_release_gpu_and_ranks(
    gpu: str, version: str, tensor: int, mib: int
) -> None:
    assert fused(gpu, version, tensor) == mib * MIB


def test_it_is_as_large_as_the_step_at_most() -> None:
    assert fused("H100", "0.20.0", tokens=1024) == 4 * 2 * 8 * MIB + 2 * MIB


@pytest.mark.parametrize(
    ("version", "ranks", "is_on"),
    [
        ("0.20.0", {"data": 2}, False), ("0.20.0", {"pipeline": 2}, False), ("0.21.0", {"pipeline": 2}, True),
        ("0.23.0", {"pipeline": 2}, False), ("0.23.0", {"data": 2}, True), ("0.24.0", {"pipeline": 2}, True),
    ],
)  # fmt: skip
def test_it_is_off_beside_ranks_that_it_did_not_work_with(
    version: str, ranks: dict[str, int], is_on: bool
) -> None:
    assert (fused("H100", version, **ranks) > 0) is is_on


def test_nothing_is_fused_by_hand() -> None:
    assert size(planned("Qwen/Qwen3-32B", "H100", 2), "communication") > 300 * MIB
    assert size(planned("Qwen/Qwen3-32B", "H100", 2, enforce_eager=True), "communication") == 0
    assert NOTHING.num_bytes == 0


def test_what_ranks_hold_comes_out_of_the_cache() -> None:
    before, since = (planned("Qwen/Qwen3-32B", "H100", 2, v) for v in ("0.16.0", "0.17.0"))
    grown = size(since, "communication")
    others = sum(
        size(since, name) - size(before, name) for name in ("weights", "activations", "non_torch")
    )
    lost = before.available_kv_bytes_per_gpu - since.available_kv_bytes_per_gpu
    assert grown > 500 * MIB
    assert lost == pytest.approx(grown + others, abs=2)


def test_deepeps_low_latency_buffers_are_those_of_its_layout() -> None:
    # 2 sets x (send + receive) x 256 experts x 128 tokens x (7,168 x 2 + 56 x 4 bytes)
    assert low_latency_bytes(7168, 256, 128) == 2 * 2 * 256 * 128 * 14_560
    assert low_latency_bytes(6912, 256, 128) == low_latency_bytes(7168, 256, 128)  # rounded up


@pytest.mark.parametrize(
    ("backend", "version", "gib"),
    [
        (None, "0.32.0", 0.0),
        ("allgather_reducescatter", "0.32.0", 0.0),
        ("pplx", "0.17.0", 0.0),
        ("pplx", "0.16.0", None),
        ("deepep_high_throughput", "0.32.0", 1 + 32 / 1024),
        ("deepep_low_latency", "0.19.0", 1 + 32 / 1024 + 4 * 256 * 256 * 14_560 / GIB),
        ("flashinfer_nvlink_one_sided", "0.32.0", 8 * 1024 * (7168 + 224 + 64 + 2 * 7168) / GIB),
        ("nixl_ep", "0.32.0", None),
        ("mori_low_latency", "0.32.0", None),
    ],
)
def test_all_to_all_by_backend(backend: str | None, version: str, gib: float | None) -> None:
    found = all_to_all_bytes(
        find_model(V3), Ranks(1, 1, 8, True), rules_for("vllm", version), find_gpu("H200"), backend, 1024, 2
    )  # fmt: skip
    assert (None if found is None else found / GIB) == (
        None if gib is None else pytest.approx(gib, rel=1e-6)
    )


@pytest.mark.parametrize(
    "ranks", [Ranks(8, 1, 1, True), Ranks(1, 1, 8, False), Ranks(2, 4, 1, True)]
)
def test_without_data_parallel_ranks_that_spread_experts_there_is_no_all_to_all(
    ranks: Ranks,
) -> None:
    rules, gpu = rules_for("vllm", "0.32.0"), find_gpu("H200")
    model = find_model(V3)
    assert all_to_all_bytes(model, ranks, rules, gpu, "deepep_low_latency", 256, 2) == 0
    dense = find_model("Qwen/Qwen3-32B")
    spread = Ranks(1, 1, 8, True)
    assert all_to_all_bytes(dense, spread, rules, gpu, "deepep_low_latency", 256, 2) == 0


def test_high_throughput_has_a_second_buffer_between_machines() -> None:
    rules, gpu, model = rules_for("vllm", "0.32.0"), find_gpu("H200"), find_model(V3)
    one, two = (
        all_to_all_bytes(
            model, Ranks(1, 1, data, True), rules, gpu, "deepep_high_throughput", 256, 2
        )
        for data in (8, 16)
    )
    assert one is not None
    assert two is not None
    assert two - one == GIB


def test_steps_are_small_where_each_expert_has_room_for_all() -> None:
    flags: dict[str, Any] = {"data_parallel_size": 8, "enable_expert_parallel": True}
    plain, batched, asked = (
        planned(V3, "H200", 8, **flags, **more)
        for more in (
            {},
            {"all2all_backend": "deepep_low_latency"},
            {"all2all_backend": "deepep_low_latency", "max_num_batched_tokens": 1024},
        )
    )
    steps = [(each.max_num_batched_tokens, each.max_num_seqs) for each in (plain, batched, asked)]
    assert steps == [(8192, 1024), (256, 256), (1024, 1024)]
    assert size(asked, "communication") > 3 * size(batched, "communication")


def test_buffers_that_were_not_read_are_named() -> None:
    flags: dict[str, Any] = {"data_parallel_size": 8, "enable_expert_parallel": True}
    found = planned(V3, "H200", 8, **flags, all2all_backend="nixl_ep")
    assert [note for note in found.notes if "--all2all-backend=nixl_ep are not sized" in note]
    assert not [note for note in planned(V3, "H200", 8, **flags).notes if "not sized" in note]


def test_data_parallel_ranks_share_the_experts_with_and_without_expert_parallelism() -> None:
    whole = planned(V3, "H200", 1, "0.32.0")
    spread, sliced = (
        planned(V3, "H200", 8, data_parallel_size=8, enable_expert_parallel=is_spread)
        for is_spread in (True, False)
    )
    # 256 experts over 8 ranks are as many bytes as an eighth of each.
    assert sliced.weights_bytes_per_gpu == pytest.approx(spread.weights_bytes_per_gpu, rel=0.001)
    assert sliced.weights_bytes_per_gpu < 0.16 * whole.weights_bytes_per_gpu


def test_gathered_tokens_are_counted_and_the_band_reaches_down_to_a_ranks_own() -> None:
    flags: dict[str, Any] = {"data_parallel_size": 8, "enable_expert_parallel": True}
    gathered = planned(V3, "H200", 8, **flags).component("activations")
    own = planned(V3, "H200", 8, **flags, all2all_backend="deepep_high_throughput").component(
        "activations"
    )
    assert gathered is not None
    assert own is not None
    assert "8 ranks' tokens are gathered" in gathered.source
    assert gathered.num_bytes - gathered.alternative == own.num_bytes
    assert gathered.num_bytes > 4 * own.num_bytes
    chunked = planned(V3, "H200", 8, "0.16.0", **flags).component("activations")
    assert chunked is not None
    assert chunked.num_bytes < gathered.num_bytes  # experts computed 16,384 rows at once


def test_nccl_counts_data_parallel_ranks_of_a_mixture_alone() -> None:
    dense = [planned("Qwen/Qwen3-32B", "H200", n, data_parallel_size=n) for n in (1, 8)]
    mixed = [planned("Qwen/Qwen3-30B-A3B", "H200", n, data_parallel_size=n) for n in (1, 8)]
    assert size(dense[0], "non_torch") == size(dense[1], "non_torch")
    assert size(mixed[1], "non_torch") > size(mixed[0], "non_torch") + GIB
