"""GPUs by family, common name and description."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from exo_inference.errors import UsageError
from exo_inference.planner import EngineParameters, families, find_gpu, find_model, load_gpus, plan
from exo_inference.planner.gpu_catalog import GIB


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("gpu2", "v100-16gb"), ("gpu3", "a40"), ("gpu3080ti", "rtx-3080-ti"), ("gpua30", "a30"),
        ("gpua5000", "rtx-a5000"), ("gpurtx6000pro", "rtx-pro-6000"), ("gpub300", "b300"), ("H100", "h100-sxm"),
        ("A100-80GB", "a100-80gb-sxm"), ("L4", "l4"), ("RTX 4090", "rtx-4090"), ("NVIDIA L40S", "l40s"),
        ("NVIDIA GB10 (DGX Spark)", "gb10"), ("rtx a5000 24gb", "rtx-a5000"),
        ("rtx4090", "rtx-4090"), ("H100SXM", "h100-sxm"), ("rx7900xtx", "rx-7900-xtx"), ("RTX4090D", "rtx-4090-d"),
        ("3060", "rtx-3060"), ("5070ti", "rtx-5070-ti"), ("7900xtx", "rx-7900-xtx"), ("Tesla V100-SXM2-16GB", "v100-16gb"), ("thor", "jetson-thor"),
        ("NVIDIA L40", "l40"), ("RTX 4080 SUPER", "rtx-4080-super"), ("RTX 3090 Ti", "rtx-3090-ti"),
        ("RTX 3080 12GB", "rtx-3080-12gb"), ("Jetson AGX Orin 64GB", "jetson-agx-orin-64gb"), ("Jetson AGX Orin 32GB", "jetson-agx-orin-32gb"),
        ("RTX A4500", "rtx-a4500"), ("Quadro RTX 8000", "quadro-rtx-8000"), ("T4G", "t4g"), ("Tesla P40", "p40"), ("TITAN RTX", "titan-rtx"),
    ],
)  # fmt: skip
def test_a_gpu_is_found_by_the_names_people_use(name: str, key: str) -> None:
    assert find_gpu(name).key == key


def test_an_unknown_gpu_names_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        find_gpu("gpua500")
    assert caught.value.hint is not None
    assert "gpua5000" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "hint"),
    [("RTX 5060 T", "Did you mean rtx-5060-ti"), ("MI 300", "Did you mean mi300x?"), ("RTX 6000", "Did you mean rtx-6000-ada"),
     ("L40T", "Did you mean l40 or l40s"), ("Gaudi 3", "Known: "), ("TPU v5e", "Known: ")],
)  # fmt: skip
def test_names_that_have_all_of_an_unknown_one_come_first_and_none_for_an_unknown_maker(
    name: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        find_gpu(name)
    assert (caught.value.hint or "").startswith(hint)


def test_all_families_of_the_enum_are_there() -> None:
    assert {gpu.family for gpu in families()} == {
        "gpu2", "gpu3", "gpu3080ti", "gpua30", "gpua5000", "gpurtx6000pro", "gpub300",
    }  # fmt: skip


def test_every_gpu_keeps_its_source_and_reports_less_than_the_box_says() -> None:
    for gpu in load_gpus().values():
        assert gpu.source
        assert gpu.bandwidth > 1e11
        assert gpu.tflops
    assert find_gpu("A100-80GB").reported_bytes < 80 * GIB


def test_a_bridge_joins_two_gpus_and_a_switch_all() -> None:
    bridged, switched = find_gpu("gpua5000"), find_gpu("H100")
    assert [bridged.is_linked(count) for count in (2, 4)] == [True, False]
    assert [switched.is_linked(count) for count in (2, 8)] == [True, True]
    assert bridged.bandwidth_between(2) > bridged.bandwidth_between(4) == 32e9
    assert find_gpu("L40S").bandwidth_between(4) == find_gpu("L40S").link_bandwidth


def test_families_are_priced_by_size_and_others_by_the_piece() -> None:
    assert find_gpu("gpua5000").price(4) == pytest.approx(4.55694)
    assert find_gpu("gpua5000").price(3) == pytest.approx(4.55694)  # the next larger size
    assert find_gpu("gpua5000").price(8) is None
    assert find_gpu("H100").price(2) == pytest.approx(2 * 2.69)
    assert find_gpu("gpub300").price(1) is None


def test_a_model_is_found_without_organisation_and_in_another_quantization() -> None:
    assert find_model("qwen3-8b").name == "Qwen/Qwen3-8B"
    derived = find_model("someone/Qwen3-14B-AWQ")
    assert derived.quantization is not None
    assert derived.notes[-1].startswith("derived from Qwen/Qwen3-14B")


def test_a_model_is_derived_from_another_quantization_of_it() -> None:
    derived = find_model("poolside/Laguna-S-2.1-INT4")
    assert derived.notes[-1].startswith("derived from poolside/Laguna-S-2.1-FP8")
    assert derived.quantization is not None
    assert derived.quantization.default.bits < 5
    assert derived.quantization.kv_cache_dtype is None


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        find_model("Qwen/Qwen3-9B")
    assert caught.value.hint is not None
    assert "Qwen" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "meant"),
    [("llama3", "meta-llama/Llama-3.1-8B"), ("gemma3", "google/gemma-3-1b-it"), ("qwen3:8b", "Qwen/Qwen3-8B"), ("llama3:70b", "meta-llama/Meta-Llama-3-70B"), ("qwen3:30b-a3b", "Qwen/Qwen3-30B-A3B"), ("gpt-oss:20b", "openai/gpt-oss-20b")],
)  # fmt: skip
def test_a_name_as_ollama_writes_it_offers_the_model_of_its_owner_first(
    name: str, meant: str
) -> None:
    with pytest.raises(UsageError) as refused:
        find_model(name)
    assert (refused.value.hint or "").startswith(f"Did you mean {meant}")


def test_a_geforce_may_have_more_memory_under_windows_and_hardly_less() -> None:
    """PyTorch prints 31.34 to 31.39 GiB under Linux, 31.84 under Windows."""
    gpu = find_gpu("RTX 5090")
    most, least = (
        gpu.reported_bytes + gpu.reported_error_bytes,
        gpu.reported_bytes - gpu.shortfall_bytes,
    )
    assert most / GIB == pytest.approx(31.84, abs=0.01)
    assert 31.2 < least / GIB < 31.34
    parameters = EngineParameters(max_model_len=4096)
    sure = replace(gpu, reported_error_bytes=0, reported_short_bytes=0)
    model = find_model("Qwen/Qwen3-8B")
    loose, tight = plan(model, gpu, 1, parameters), plan(model, sure, 1, parameters)
    grown = loose.available_kv_bytes_high - tight.available_kv_bytes_high
    lost = tight.available_kv_bytes_low - loose.available_kv_bytes_low
    assert grown > 2 * lost > 0


@pytest.mark.parametrize(
    ("gpu", "reads"),
    [("rtx-4090", False), ("rtx-5090", False), ("rtx-a6000", True), ("rtx-pro-6000", True), ("l40s", True)],
)  # fmt: skip
def test_geforce_cards_do_not_read_one_anothers_memory(gpu: str, reads: bool) -> None:
    assert find_gpu(gpu).reads_peers is reads


@pytest.mark.parametrize(
    ("processor", "rate"),
    [
        ("AMD EPYC 7551 32-Core Processor", 16e9),
        ("AMD EPYC 7702 64-Core Processor", 32e9),
        ("AMD EPYC 7J13 64-Core Processor", 32e9),
        ("AMD EPYC 9554 64-Core Processor", 64e9),
        ("Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz", 16e9),
        ("Intel(R) Xeon(R) Platinum 8368 CPU @ 2.40GHz", 32e9),
        ("Intel(R) Xeon(R) Platinum 8380H CPU @ 2.90GHz", 16e9),
        ("INTEL(R) XEON(R) GOLD 6530", 64e9),
        ("", 64e9),
    ],
)
def test_a_processor_limits_pcie_to_its_generation(processor: str, rate: float) -> None:
    card = replace(find_gpu("rtx-5090"), processor=processor)
    assert card.bandwidth_between(4) == rate
    assert replace(find_gpu("h100-sxm"), processor=processor).bandwidth_between(8) == 450e9


@pytest.mark.parametrize(
    ("name", "key", "mib"),
    [
        ("RTX PRO 5000", "rtx-pro-5000", 48404), ("RTX PRO 5000 Blackwell 48GB", "rtx-pro-5000", 48404),
        ("NVIDIA RTX PRO 5000 72GB Blackwell", "rtx-pro-5000-72gb", 72915),
        ("RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000-workstation", 97387),
        ("RTX PRO 4000 Blackwell SFF Edition", "rtx-pro-4000-sff", 23967), ("RTX PRO 2000 Blackwell", "rtx-pro-2000", 15811),
        ("RTX 5070", "rtx-5070", 11727), ("RTX 5060", "rtx-5060", 7651), ("RTX 5060 Ti 8GB", "rtx-5060-ti-8gb", 7651),
        ("MI350X", "mi350x", 294896), ("Radeon AI PRO R9700", "r9700", 32624),
    ],
)  # fmt: skip
def test_gpus_sold_since_2025_are_known(name: str, key: str, mib: int) -> None:
    gpu = find_gpu(name)
    assert (gpu.key, gpu.reported_bytes) == (key, mib * 2**20)


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("H100 96GB", "80 GB (h100-sxm, h100-pcie), 94 GB (h100-nvl)"), ("A100 20GB", "40 GB (a100-40gb-sxm, a100-40gb-pcie), 80 GB"),
        ("L4 48GB", "24 GB (l4)"), ("RTX 3080 20GB", "10 GB (rtx-3080)"), ("GH200 144GB", "96 GB (gh200)"),
        ("GH200 144G HBM3e", "96 GB (gh200)"), ("RTX 5060 Ti 12 GB", "8 GB (rtx-5060-ti-8gb), 16 GB (rtx-5060-ti-16gb)"),
        ("H100 PCIe 94GB", "80 GB (h100-pcie, h100-sxm), 94 GB (h100-nvl)"),
    ],
)  # fmt: skip
def test_a_size_that_a_gpu_is_not_known_in_is_refused_with_those_there_are(
    name: str, there: str
) -> None:
    with pytest.raises(UsageError, match="it is not known with") as error:
        find_gpu(name)
    assert there in (error.value.hint or "")


def test_every_gpu_is_found_with_its_size_and_with_no_other() -> None:
    for key, gpu in load_gpus().items():
        if re.search(r"\d+gb", key):
            continue
        size = gpu.marketing_gb
        assert find_gpu(f"{gpu.key} {size}GB").marketing_gb == size
        with pytest.raises(UsageError):
            find_gpu(f"{gpu.key} {size + 400}GB")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA A100-PCIE-40GB", "a100-40gb-pcie"), ("A100-SXM4-80GB", "a100-80gb-sxm"), ("A100 80 GB", "a100-80gb-sxm"),
        ("H100 94GB", "h100-nvl"), ("NVIDIA H100 80GB HBM3", "h100-sxm"), ("H100 PCIe 80GB", "h100-pcie"), ("V100 32GB", "v100-32gb"),
        ("NVIDIA GH200 480GB", "gh200"), ("B200 192GB", "b200"), ("RTX 4060 Ti 8GB", "rtx-4060-ti-8gb"), ("L4 22GiB", "l4"),
        ("RTX PRO 5000 72GB", "rtx-pro-5000-72gb"), ("RTX 4090 48GB", "rtx-4090-48gb"), ("A10G 24GB", "a10g"),
    ],
)  # fmt: skip
def test_a_size_in_a_name_counts(name: str, key: str) -> None:
    gpu = find_gpu(name)
    assert (gpu.key, gpu.note) == (key, "")


@pytest.mark.parametrize(
    ("name", "taken", "other"),
    [
        ("A100", "a100-80gb-sxm, of 80 GB", "a100-40gb-sxm (40 GB)"), ("RTX4090", "rtx-4090, of 24 GB", "rtx-4090-48gb (48 GB)"),
        ("V100", "v100-16gb, of 16 GB", "v100-32gb (32 GB)"),
        ("RTX 4060 Ti", "rtx-4060-ti-16gb, of 16 GB", "rtx-4060-ti-8gb (8 GB)"), ("RTX 4090", "rtx-4090, of 24 GB", "rtx-4090-48gb (48 GB)"),
        ("RTX 5060 Ti", "rtx-5060-ti-16gb, of 16 GB", "rtx-5060-ti-8gb (8 GB)"), ("RTX PRO 5000", "rtx-pro-5000, of 48 GB", "72gb (72 GB)"),
    ],
)  # fmt: skip
def test_a_name_without_a_size_says_which_of_several_it_was_taken_for(
    name: str, taken: str, other: str
) -> None:
    note = find_gpu(name).note
    assert f"is taken for {taken}" in note
    assert other in note
    assert find_gpu(find_gpu(name).key).note == ""


@pytest.mark.parametrize("name", ["H100", "gpu2", "H200", "L4", "rtx-4090", "H20", "A800"])
def test_a_name_of_one_size_alone_says_nothing(name: str) -> None:
    assert find_gpu(name).note == ""


def test_all_geforce_cards_multiply_with_sums_in_float32() -> None:
    """Which is a quarter of their int8; with sums in FP16 it would be half. Workstation cards have no such gap."""
    cards = [gpu for gpu in load_gpus().values() if "GeForce" in gpu.name]
    assert len(cards) > 20
    for gpu in cards:
        assert gpu.tflops["fp16"] * 4 == pytest.approx(gpu.tflops["int8"], rel=0.03), gpu.key


def test_a_board_with_its_own_memory_for_all_has_one_gpu() -> None:
    for name in ("gb10", "jetson-orin", "jetson-thor"):
        found = plan(find_model("Qwen/Qwen3-8B"), find_gpu(name), 4, EngineParameters())
        assert any("a machine has 1 " in problem.detail for problem in found.problems)


@pytest.mark.parametrize(
    "name",
    ["https://huggingface.co/Qwen/Qwen3-8B", "hf.co/Qwen/Qwen3-8B", "/Qwen/Qwen3-8B", "/models/Qwen/Qwen3-8B"],
)  # fmt: skip
def test_an_address_or_a_path_is_no_name(name: str) -> None:
    """An engine would be given it as it is, and load nothing."""
    with pytest.raises(UsageError, match="is no address and no path") as caught:
        find_model(name)
    assert caught.value.hint == "Name it Qwen/Qwen3-8B."
