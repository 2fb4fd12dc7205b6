"""The rules of llama.cpp one by one: contexts, types of tensors, where layers are, what --fit does, odd values."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import pytest

from exo_inference.planner import EngineParameters, Plan, Verdict, find_gpu, find_model
from exo_inference.planner.gpu_catalog import MIB
from exo_inference.planner.llama_cpp.cache import element_bytes, mask_cells
from exo_inference.planner.llama_cpp.planning import find_lack, plan_llama_cpp
from exo_inference.planner.llama_cpp.room import Asked, fitted_context, longest, spilled
from exo_inference.planner.llama_cpp.setting import (
    ALL,
    LlamaSetting,
    WrongFlag,
    read_setting,
    resolve,
)
from exo_inference.planner.llama_cpp.sizes import Sizes, measure
from exo_inference.planner.llama_cpp.weights import file_bytes, mix_of, place
from exo_inference.planner.model.families import FAMILIES, Family, LlamaCpp
from exo_inference.planner.model.requantize import with_quantization

SMALL = with_quantization(find_model("meta-llama/Llama-3.1-8B-Instruct"), "Q4_K_M")
EXPERTS = with_quantization(find_model("Qwen/Qwen3-30B-A3B"), "Q4_K_M")
WINDOWS = with_quantization(find_model("google/gemma-3-27b-it"), "Q4_K_M")
STATES = with_quantization(find_model("Qwen/Qwen3.6-27B"), "Q4_K_M")


def sized(model: object = SMALL, gpus: int = 1, **flags: object) -> Sizes:
    setting = replace(LlamaSetting(context=8192), **flags)  # type: ignore[arg-type]
    context = resolve(setting, 131072)
    return measure(model, setting, context, gpus)  # type: ignore[arg-type]


def planned(gpu: str = "gpu3080ti", gpus: int = 1, model: object = SMALL, **flags: object) -> Plan:
    return plan_llama_cpp(asked(gpu, gpus, model, **flags), EngineParameters(engine="llama-cpp"))


def asked(gpu: str = "gpu3080ti", gpus: int = 1, model: object = SMALL, **flags: object) -> Asked:
    setting = replace(LlamaSetting(), **flags)  # type: ignore[arg-type]
    return Asked(model, find_gpu(gpu), gpus, setting)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("flags", "total", "each", "streams"),
    [
        ({}, 131072, 131072, 1),
        ({"ctx-size": 1000}, 1024, 1024, 1),
        ({"ctx-size": 8192, "parallel": 4}, 8192, 2048, 4),
        ({"ctx-size": 8000, "parallel": 3}, 8448, 2816, 3),
        ({"ctx-size": 8192, "parallel": 4, "kv-unified": True}, 8192, 8192, 1),
        ({"ctx-size": 8192, "parallel": -1, "kv-unified": False}, 8192, 8192, 1),
        ({"kv-unified-per-slot": 2048, "parallel": 3}, 6144, 6144, 1),
    ],
)
def test_contexts(flags: dict[str, object], total: int, each: int, streams: int) -> None:
    context = resolve(read_setting(flags, 1), 131072)
    assert (context.total, context.per_sequence, context.streams) == (total, each, streams)


@pytest.mark.parametrize(
    ("flags", "batch"),
    [
        ({}, 512),
        ({"ubatch-size": 4096}, 2048),
        ({"ubatch-size": 0}, 2048),
        ({"ctx-size": 256}, 256),
    ],
)
def test_a_batch_is_no_larger_than_the_context(flags: dict[str, object], batch: int) -> None:
    assert resolve(read_setting(flags, 1), 131072).batch == batch


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"ctx-size": -1}, "--ctx-size is -1, expected a whole number from 0"),
        ({"ctx-size": 10**18}, "--ctx-size is 1000000000000000000"),
        ({"ctx-size": math.nan}, "--ctx-size is nan"),
        ({"ctx-size": math.inf}, "--ctx-size is inf"),
        ({"parallel": 0}, "--parallel is 0, expected 1 or more"),
        ({"parallel": 257}, "--parallel is 257"),
        ({"batch-size": 0}, "--batch-size is 0"),
        ({"batch-size": True}, "--batch-size is True"),
        ({"cache-type-k": "q2_0"}, "--cache-type-k is 'q2_0', expected one of f32, f16"),
        ({"gpu-layers": "most"}, "--gpu-layers is 'most', expected a number, auto or all"),
        ({"tensor-split": "nan,1"}, "--tensor-split is 'nan,1', expected the shares"),
        ({"tensor-split": "0,0"}, "--tensor-split"),
        ({"tensor-split": "-1,2"}, "--tensor-split"),
        ({"tensor-split": "1e308,1e308"}, "--tensor-split"),
        ({"tensor-split": "٣,1"}, "--tensor-split"),
        ({"tensor-split": ",1"}, "--tensor-split"),
        ({"tensor-split": ""}, "--tensor-split"),
        ({"tensor-split": ",".join(["1"] * 16)}, "--tensor-split"),
        ({"tensor-split": "1," * 10**6}, "--tensor-split"),
        ({"fit-target": ",".join(["1"] * 16)}, "--fit-target"),
        ({"fit-target": "٣"}, "--fit-target"),
        ({"gpu-layers": "٣"}, "--gpu-layers"),
        ({"gpu-layers": "AUTO"}, "--gpu-layers is 'AUTO'"),
        ({"split-mode": "none", "main-gpu": 2}, "--main-gpu is 2"),
        ({"fit-target": "much"}, "--fit-target is 'much', expected MiB"),
        ({"n-cpu-moe": -3}, "--n-cpu-moe is -3"),
    ],
)
def test_values_that_no_start_has_are_told(flags: dict[str, object], words: str) -> None:
    with pytest.raises(WrongFlag, match=words.replace("(", r"\(")):
        read_setting(flags, 2)


def test_the_platform_asks_for_all_layers_unless_a_flag_says_otherwise() -> None:
    found = {
        text: read_setting({"gpu-layers": text}, 1).gpu_layers
        for text in ("auto", "all", "-1", "20")
    }
    assert found == {"auto": None, "all": ALL, "-1": None, "20": 20}
    assert read_setting({}, 1).gpu_layers == 999


@pytest.mark.parametrize(
    ("kind", "size"),
    [("f32", 4), ("f16", 2), ("bf16", 2), ("q8_0", 34 / 32), ("q4_0", 18 / 32), ("q5_1", 0.75)],
)
def test_bytes_of_the_cache(kind: str, size: float) -> None:
    assert element_bytes(kind) == size
    cells = sized(key_type=kind, value_type=kind).gpus[0].cells
    assert cells == int(32 * 8192 * 2 * 1024 * size)


def test_keys_and_values_have_types_of_their_own() -> None:
    both = sized(key_type="q8_0", value_type="q4_0").gpus[0].cells
    assert both == 32 * 8192 * 1024 * (34 + 18) // 32


def test_layers_with_windows_keep_a_window_and_a_batch() -> None:
    model = WINDOWS
    short, full = sized(model, context=32768), sized(model, context=32768, full_windows=True)
    assert short.gpus[0].cells < full.gpus[0].cells / 3
    context = resolve(LlamaSetting(context=32768, sequences=4, unified=True), 131072)
    assert mask_cells(model, LlamaSetting(sequences=4), context) == 32768 + 4 * 1024 + 512


def test_states_are_kept_for_each_sequence() -> None:
    one = sized(STATES, sequences=1).gpus[0]
    four = sized(STATES, sequences=4).gpus[0]
    assert (four.states, four.cells) == (4 * one.states, one.cells)


def test_the_context_is_what_config_json_names() -> None:
    """Another engine multiplies Gemma 3's by the factor of its rotary positions, and takes Phi-3's of before they were stretched."""
    assert asked(model=WINDOWS).trained == 131_072
    assert asked(model=find_model("microsoft/Phi-4-mini-instruct")).trained == 131_072
    assert asked(model=find_model("mistralai/Mistral-Large-Instruct-2407")).trained == 131_072


def test_a_context_that_is_shortened_in_vain_is_said_so() -> None:
    large = with_quantization(find_model("meta-llama/Llama-3.3-70B-Instruct"), "Q4_K_M")
    vain = " ".join(planned(model=large).notes)
    assert "to leave 1,024 MiB of each GPU free, of which it falls short" in vain
    assert "falls short" not in " ".join(planned().notes)


@pytest.mark.parametrize("layers", [None, ALL])
def test_a_plan_is_a_matter_of_milliseconds(layers: int | None) -> None:
    """Bounds calls rather than time: each of them is of some hundredths of a millisecond."""
    large = with_quantization(find_model("meta-llama/Llama-3.1-405B-Instruct"), "Q4_K_M")
    wide = replace(large, layers=large.layers * 30)
    calls = []

    def count(frame: object, event: str, argument: object) -> None:
        calls.append(event == "call")

    planned("gpua5000", 8, large, gpu_layers=layers, fit_targets=(1024 * MIB,) * 8)
    planned("gpua5000", 8, wide, gpu_layers=layers, fit_targets=(1024 * MIB,) * 8)
    for model in (large, wide):
        calls.clear()
        sys.setprofile(count)
        try:
            planned("gpua5000", 8, model, gpu_layers=layers, fit_targets=(1024 * MIB,) * 8)
        finally:
            sys.setprofile(None)
        assert sum(calls) < 20_000


def test_what_llama_cpp_does_not_load_is_not_sized() -> None:
    gpu = find_gpu("h100")
    awq = with_quantization(find_model("meta-llama/Llama-3.1-8B-Instruct"), "awq")
    assert mix_of(awq) is None
    assert "of which it loads no file" in (find_lack(awq, gpu) or "")
    other = replace(SMALL, model_type="nemotron_h")
    assert "models of the type nemotron_h is not known" in (find_lack(other, gpu) or "")
    assert "NVIDIA" in (find_lack(SMALL, replace(gpu, vendor="amd")) or "")
    assert find_lack(SMALL, gpu) is None


@pytest.mark.parametrize("kind", ["frob", "frob_text"])
def test_a_family_is_sized_by_its_row(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    gpu, model = find_gpu("h100"), replace(SMALL, model_type=kind)
    monkeypatch.setitem(FAMILIES, "frob", Family())
    assert f"models of the type {kind} is not known" in (find_lack(model, gpu) or "")
    monkeypatch.setitem(FAMILIES, "frob", Family(llama_cpp=LlamaCpp()))
    assert find_lack(model, gpu) is None


def test_the_last_layers_and_the_output_are_on_the_gpu() -> None:
    setting = LlamaSetting()
    assert place(SMALL, setting, 1, 0).output is None
    one = place(SMALL, setting, 1, 1)
    assert (one.output, set(one.layers)) == (0, {None})
    some = place(SMALL, setting, 1, 10)
    assert (some.layers.count(0), some.layers[-1], some.layers[0]) == (9, 0, None)


def test_layers_are_split_by_shares() -> None:
    def counts(setting: LlamaSetting, gpus: int) -> list[int]:
        units = place(SMALL, setting, gpus, ALL).units
        return [units.count(gpu) for gpu in range(gpus)]

    assert counts(LlamaSetting(), 2) == [17, 16]
    assert counts(LlamaSetting(splits=(3.0, 1.0)), 2) == [25, 8]
    assert counts(LlamaSetting(splits=(0.0, 1.0)), 2) == [0, 33]
    assert counts(LlamaSetting(only_gpu=1), 2) == [0, 33]


def test_experts_in_main_memory_leave_attention_on_the_gpu() -> None:
    whole, moved = sized(EXPERTS), sized(EXPERTS, cpu_moe=ALL)
    assert moved.gpus[0].weights < whole.gpus[0].weights / 10
    assert moved.gpus[0].cells == whole.gpus[0].cells
    assert moved.gpus[0].weights + moved.host.weights == whole.gpus[0].weights + whole.host.weights
    assert sized(SMALL, cpu_moe=ALL).gpus == sized(SMALL).gpus


def test_gpus_fetch_layers_of_main_memory_to_compute_prompts() -> None:
    few = sized(gpu_layers=20).gpus[0].compute
    assert few > sized().gpus[0].compute + 50 * MIB
    assert sized(gpu_layers=20, offloads_ops=False).gpus[0].compute == sized().gpus[0].compute


def test_caches_in_blocks_are_copied_for_flash_attention() -> None:
    plain, blocks = sized(context=131072), sized(context=131072, key_type="q8_0", value_type="q8_0")
    assert blocks.gpus[0].compute - plain.gpus[0].compute > 400 * MIB
    assert blocks.gpus[0].cells < plain.gpus[0].cells


def test_a_cache_in_main_memory_is_not_on_the_gpu() -> None:
    found = sized(offloads_cache=False)
    assert (found.gpus[0].cells, found.host.cells) == (0, sized().gpus[0].cells)


def test_batches_that_overlap_have_inputs_of_their_own() -> None:
    """A start of SmolLM2-135M on two A40s printed 24.91 MiB of each."""
    model = with_quantization(find_model("HuggingFaceTB/SmolLM2-135M-Instruct"), "Q4_K_M")
    found = sized(model, gpus=2, context=2048)
    assert [each.compute / MIB for each in found.gpus] == pytest.approx([24.91, 24.91], abs=0.05)


def test_a_context_that_nobody_asked_for_is_shortened() -> None:
    plan = planned()
    assert plan.verdict is Verdict.FITS
    assert 30_000 < plan.max_model_len < 60_000
    assert plan.max_model_len % 256 == 0
    used = sum(each.num_bytes for each in plan.components)
    assert plan.total_bytes_per_gpu - used >= 1024 * MIB
    assert any("--fit shortens the context from 131,072 to" in note for note in plan.notes)
    assert planned(fits=False).verdict is not Verdict.FITS
    assert planned(fit_context=ALL).max_model_len == 131_072


def test_a_context_that_was_asked_for_is_kept_or_refused() -> None:
    plan = planned(context=200_000)
    assert plan.verdict is Verdict.REFUSED
    (problem,) = plan.problems
    assert (problem.code, problem.refuses) == ("memory", True)
    assert "the cache of 200,192 tokens" in problem.detail
    assert 0 < plan.safe_max_model_len <= plan.largest_max_model_len < 131_072
    assert planned(context=plan.safe_max_model_len).verdict is Verdict.FITS


def test_the_longest_context_is_the_longest() -> None:
    found = asked(context=200_000)
    length = longest(found, surely=True)
    more = replace(found, setting=replace(found.setting, context=length + 256))
    assert plan_llama_cpp(more, EngineParameters()).verdict is not Verdict.FITS


def test_layers_are_moved_where_that_was_left_open() -> None:
    plan = planned(
        model=with_quantization(find_model("meta-llama/Llama-3.3-70B-Instruct"), "Q4_K_M"),
        gpu_layers=None,
    )
    assert plan.verdict is Verdict.TIGHT
    (problem,) = plan.problems
    assert (problem.code, problem.refuses) == ("gpu-layers", False)
    assert "of 81 layers, the output being one, in main memory" in problem.detail
    used = sum(each.high for each in plan.components)
    assert used + 1024 * MIB <= plan.total_bytes_per_gpu


def test_experts_are_moved_before_layers() -> None:
    model = find_model("openai/gpt-oss-120b")
    found = asked(model=model)
    moved = spilled(found, fitted_context(found))
    assert moved is not None
    assert 0 < moved.cpu_moe < len(model.layers)
    assert moved.gpu_layers == len(model.layers) + 1


def test_layers_are_moved_where_all_experts_are_not_enough() -> None:
    plan = planned(model=find_model("openai/gpt-oss-120b"), gpu_layers=None, context=131_072 * 16)
    (problem,) = plan.problems
    assert "the experts of about 36 of 36 layers and about" in problem.detail
    assert "of 37 layers, the output being one, in main memory" in problem.detail
    assert any("the experts of 36 layers" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("gpus", "flags"),
    [(1, {"cpu_moe": 5}), (1, {"cpu_moe": ALL}), (2, {"splits": (3.0, 1.0)}), (1, {"fits": False})],
)
def test_no_layers_are_moved_where_a_flag_says_where_some_are(
    gpus: int, flags: dict[str, object]
) -> None:
    """`common_params_fit_impl` gives up where overrides of tensors or a split are set by the user."""
    large = with_quantization(find_model("meta-llama/Llama-3.3-70B-Instruct"), "Q4_K_M")
    targets = (1024 * MIB,) * gpus
    plan = planned(gpus=gpus, model=large, gpu_layers=None, fit_targets=targets, **flags)
    assert plan.verdict is Verdict.REFUSED
    said = any("--fit moves no layers to main memory" in note for note in plan.notes)
    assert said == flags.get("fits", True)
    one = planned(model=large, gpu_layers=None, splits=(1.0,))
    assert one.verdict is Verdict.TIGHT


def test_memory_that_the_cpu_shares_holds_its_part_too() -> None:
    gpu = replace(find_gpu("gb10"))
    found = plan_llama_cpp(Asked(SMALL, gpu, 1, LlamaSetting(context=4096)), EngineParameters())
    part = found.component("non_torch")
    assert part is not None
    assert part.num_bytes > 500 * MIB


def test_what_others_use_is_not_there() -> None:
    free = replace(asked(context=32768), free_bytes=7 * 2**30)
    assert plan_llama_cpp(free, EngineParameters()).verdict is Verdict.REFUSED
    assert planned(context=32768).verdict is Verdict.FITS


@pytest.mark.parametrize(
    "flags",
    [
        {"context": 2**31 - 1, "sequences": 256, "unified": False},
        {"batch": 2**31 - 1, "ubatch": 2**31 - 1},
        {"context": 1},
        {"fit_context": 0},
        {"gpu_layers": 0},
        {"gpu_layers": None, "context": 2**31 - 1},
        {"flash_attention": False, "context": 131072},
        {"splits": (0.0, 1.0)},
        {"only_gpu": 1},
        {"cpu_moe": ALL, "gpu_layers": 3},
    ],
)
@pytest.mark.parametrize("model", [SMALL, EXPERTS, WINDOWS, STATES], ids=lambda each: each.name)
def test_odd_starts_are_planned(model: object, flags: dict[str, object]) -> None:
    plan = planned(gpus=2, model=model, fit_targets=(MIB, MIB), **flags)
    used = sum(each.num_bytes for each in plan.components)
    assert (plan.verdict is Verdict.REFUSED) == (
        plan.problems[:1] != () and plan.problems[0].refuses
    )
    assert plan.verdict is not Verdict.FITS or used <= plan.total_bytes_per_gpu
    assert all(0 <= each.low <= each.num_bytes <= each.high for each in plan.components)


def test_prediction_layers_widen_the_band_where_files_have_them() -> None:
    plan = planned("l40s", model=STATES, context=4096)
    part = plan.component("weights")
    assert part is not None
    assert part.high - part.num_bytes > 200 * MIB
    assert any("prediction layers takes up to 0.22 GiB more" in note for note in plan.notes)
    assert file_bytes(with_quantization(find_model("zai-org/GLM-4.5-Air"), "Q4_K_M")).drafting == 0


def test_a_gpu_with_more_than_its_share_is_too_full_for_the_context_that_fit_chooses() -> None:
    """`--fit` shortens by the sum of what all GPUs have free."""
    large = with_quantization(find_model("Qwen/Qwen3-14B"), "Q4_K_M")
    targets = (1024 * MIB,) * 2
    assert planned(gpus=2, model=large, fit_targets=targets).verdict is Verdict.FITS
    odd = planned(gpus=2, model=large, splits=(12.0, 1.0), fit_targets=targets)
    assert odd.verdict is Verdict.REFUSED
    assert planned(gpus=2, model=large, splits=(12.0, 1.0), context=4096).verdict is Verdict.FITS


def test_fit_sees_one_gpu_where_one_has_everything() -> None:
    targets = (1024 * MIB,) * 2
    one = planned(only_gpu=1, gpus=2, fit_targets=targets)
    assert (one.verdict, one.max_model_len) == (Verdict.FITS, planned().max_model_len)
    assert one.max_model_len < 131_072


def test_a_context_that_fit_chooses_has_room_where_the_shortest_has() -> None:
    """Its length follows from sizes that llama-server measures, so that none of them is too much."""
    model = with_quantization(find_model("meta-llama/Llama-3.3-70B-Instruct"), "Q4_K_M")
    plan = planned("l40s", model=model)
    assert plan.verdict is Verdict.FITS
    assert (
        planned("l40s", model=model, context=plan.max_model_len + 4096).verdict is not Verdict.FITS
    )
