"""What AMD's GPUs report of their memory, and what starts hold there beside PyTorch's."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files

import pytest

from exo_inference.planner import (
    EngineParameters,
    Plan,
    Verdict,
    advise,
    find_gpu,
    find_model,
    plan,
)
from exo_inference.planner.gpu_catalog import GIB, load_gpus
from exo_inference.planner.gpu_file import parse_gpu
from exo_inference.planner.overheads import AMD, AMD_CDNA3, AMD_JOINED, CDNA3, measured

STARTS = json.loads(
    files("exo_inference.planner")
    .joinpath("catalog", "outside_amd.json")
    .read_text(encoding="utf-8")
)


def on(gpu: str, name: str = "Qwen/Qwen3-0.6B", count: int = 1, version: str = "0.28.0") -> Plan:
    parameters = EngineParameters(engine_version=version)
    return plan(find_model(name), find_gpu(gpu), count, parameters)


@pytest.mark.parametrize(
    ("gpu", "gib"),
    [("rx-7900-xtx", 23.98), ("rx-7900-xt", 19.98), ("rx-9070-xt", 15.92), ("mi355x", 287.98), ("mi210", 63.98)],
)  # fmt: skip
def test_amds_driver_keeps_nothing_of_a_card(gpu: str, gib: float) -> None:
    found = find_gpu(gpu)
    assert found.reported_bytes / GIB == pytest.approx(gib, abs=0.006)
    assert found.reported_error_bytes < 0.13 * GIB


def test_an_mi300x_reports_less_in_a_virtual_machine() -> None:
    gpu = find_gpu("mi300x")
    least, most = (
        gpu.reported_bytes - gpu.shortfall_bytes,
        gpu.reported_bytes + gpu.reported_error_bytes,
    )
    assert least / GIB == pytest.approx(191.69, abs=0.006)
    assert most / GIB == pytest.approx(191.98, abs=0.006)


def test_so_it_is_for_a_card_of_the_users() -> None:
    entry = {"vendor": "amd", "memory-gib": 48, "bandwidth-gbps": 864}
    assert parse_gpu("w7900", entry).reported_bytes == 48 * GIB
    assert parse_gpu("other", {**entry, "vendor": "nvidia"}).reported_bytes < 48 * GIB


def test_the_band_is_what_starts_on_such_gpus_held() -> None:
    """It reached to 8.87 GiB, DeepSeek-V4's on GPUs of NVIDIA's."""
    alone = [each["gib"] for each in STARTS if each["ranks"] == 1 and each["gfx"] not in CDNA3]
    for gpu in ("rx-7900-xtx", "rx-7900-xt", "rx-9070-xt"):
        outside = on(gpu).component("non_torch")
        assert outside is not None
        assert (outside.low / GIB, outside.high / GIB) == pytest.approx(
            (min(alone), max(alone)), abs=1e-6
        )
        assert on(gpu, version="0.33.0").verdict is Verdict.FITS


def test_more_ranks_hold_more() -> None:
    sizes = [measured(AMD).value]
    for count in (2, 4):
        outside = on("rx-7900-xtx", "Qwen/Qwen3-8B", count).component("non_torch")
        assert outside is not None
        sizes.append(outside.num_bytes / GIB)
    assert sizes[1] - sizes[0] == pytest.approx(measured(AMD_JOINED).value, abs=1e-6)
    assert sizes[2] - sizes[0] == pytest.approx(2 * measured(AMD_JOINED).value, abs=1e-6)


def test_cdna_3_has_a_figure_of_its_own() -> None:
    outside = on("mi300x").component("non_torch")
    assert outside is not None
    assert outside.num_bytes / GIB == pytest.approx(measured(AMD_CDNA3).value, abs=1e-6)
    known = {gpu.gfx for gpu in load_gpus().values()}
    assert known >= CDNA3


def test_graphs_take_what_starts_on_amd_printed() -> None:
    """Two starts of the default batch sizes: 3.19 and 3.22 GiB; by layers it would be 0.5 to 0.7."""
    for name in ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B"):
        graphs = on("rx-7900-xtx", name).component("cuda_graphs")
        assert graphs is not None
        assert graphs.num_bytes / GIB == pytest.approx(3.205, abs=0.005)
        assert graphs.low < graphs.num_bytes < graphs.high
    fewer = EngineParameters(engine_version="0.28.0", max_num_seqs=16)
    graphs = plan(find_model("Qwen/Qwen3-0.6B"), find_gpu("rx-7900-xtx"), 1, fewer).component("cuda_graphs")  # fmt: skip
    assert graphs is not None
    assert graphs.num_bytes < 0.5 * GIB
    states = on("rx-7900-xtx", "Qwen/Qwen3.5-9B").component("cuda_graphs")
    nvidia = on("rtx-4090", "Qwen/Qwen3.5-9B").component("cuda_graphs")
    assert states is not None
    assert nvidia is not None
    assert states.num_bytes == nvidia.num_bytes


def test_graphs_that_no_budget_has_room_for_are_told_with_a_way_out() -> None:
    """0.28.0 runs dense models in its second runner, which captures graphs beside the budget: 1.9 GiB of a 7900 XTX."""
    found = on("rx-7900-xtx")
    assert found.verdict is Verdict.TIGHT
    assert any("CUDA graphs are captured after" in each.detail for each in found.problems)
    parameters = EngineParameters(engine_version="0.28.0")
    ways = advise(find_model("Qwen/Qwen3-0.6B"), find_gpu("rx-7900-xtx"), 1, parameters)
    assert any("--max-num-seqs" in flag for each in ways for flag in each.flags)


def test_each_figure_names_a_gpu_and_a_source() -> None:
    assert all(each["gpu"].startswith("AMD ") and each["gib"] > 0 for each in STARTS)
    known = [each for each in STARTS if each["source"].startswith("https://")]
    assert len(known) >= len(STARTS) - 1


def test_a_constant_that_nobody_set_is_no_more_than_ranks_alone_or_joined() -> None:
    unknown = measured("outside PyTorch, of a kind that is not there")
    assert unknown.starts == 0
    assert unknown.high < 2


@pytest.mark.parametrize(
    ("version", "is_in_budget"), [("0.19.0", False), ("0.20.0", False), ("0.25.1", False), ("0.26.0", True)]
)  # fmt: skip
def test_graphs_come_out_of_the_budget_on_amd_later(version: str, is_in_budget: bool) -> None:
    """No graphs are estimated there before 0.26.0 (v1/worker/gpu_worker.py; vllm-project/vllm#36720, #48526)."""
    model = replace(find_model("Qwen/Qwen3-30B-A3B"))  # no second model runner
    parameters = EngineParameters(engine_version=version)
    graphs = plan(model, find_gpu("mi300x"), 1, parameters).component("cuda_graphs")
    assert graphs is not None
    assert graphs.is_in_budget is is_in_budget
    ours = plan(model, find_gpu("H200"), 1, parameters).component("cuda_graphs")
    assert ours is not None
    assert ours.is_in_budget is (version != "0.19.0")
