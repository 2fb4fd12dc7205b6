"""In which type a release of vLLM computes a model, and which GPUs have kernels for attention over an index."""

from __future__ import annotations

from dataclasses import replace

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
from exo_inference.planner.engine_rules import rules_for
from exo_inference.planner.gpu_catalog import GIB, Gpu
from exo_inference.planner.releases.dtypes import NO_FLOAT16, types_taken
from exo_inference.planner.releases.sparse import SPARSE
from tests.planner.flags import settings_of

GEMMA3, GEMMA3_TEXT, GLM4 = "google/gemma-3-4b-it", "google/gemma-3-1b-it", "zai-org/GLM-4-9B-0414"


def on(name: str, gpu: str, *flags: str, version: str = "0.19.0", count: int = 1) -> Plan:
    parameters = replace(settings_of(flags), engine_version=version)
    return plan(find_model(name), find_gpu(gpu), count, parameters)


def refusals(found: Plan, code: str) -> list[str]:
    return [each.detail for each in found.problems if each.code == code and each.refuses]


@pytest.mark.parametrize(
    ("name", "version", "dtype"),
    [
        (GEMMA3, "0.9.0", "float16"), (GEMMA3, "0.9.1", "float32"), (GEMMA3, "0.33.0", "float32"),
        (GEMMA3_TEXT, "0.10.1", "float16"), (GEMMA3_TEXT, "0.10.2", "float32"),
        ("google/gemma-2-9b-it", "0.19.0", "float32"), (GLM4, "0.19.0", "float32"), ("Qwen/Qwen3-4B", "0.19.0", "float16"),
    ],
)  # fmt: skip
def test_what_may_not_run_in_float16_runs_in_float32_without_bfloat16(
    name: str, version: str, dtype: str
) -> None:
    found = on(name, "T4", version=version)
    assert found.basis is not None
    assert found.basis.setting.dtype == dtype


def test_float32_doubles_the_weights_and_says_so() -> None:
    """Gemma 3 4B was said to fit a T4 with 8.57 GiB."""
    found = on(GEMMA3, "T4")
    assert found.verdict is Verdict.REFUSED
    assert found.weights_bytes_per_gpu / GIB == pytest.approx(17.14, abs=0.02)
    assert any("computes it in float32" in each.detail for each in found.problems)


def test_float16_that_is_asked_for_is_refused_where_the_release_refuses_it() -> None:
    (detail,) = refusals(on("google/gemma-3-27b-it", "H100", "--dtype=half"), "dtype")
    assert "--dtype is half" in detail
    assert "set --dtype=bfloat16" in detail
    (detail,) = refusals(on(GEMMA3, "T4", "--dtype=float16"), "dtype")
    assert "set --dtype=float32" in detail
    assert not refusals(on(GEMMA3, "H100", "--dtype=half", version="0.9.0"), "dtype")
    assert not refusals(on("Qwen/Qwen3-4B", "H100", "--dtype=half"), "dtype")


def test_advice_sets_the_type_that_is_taken() -> None:
    parameters = replace(settings_of(("--dtype=half",)), engine_version="0.28.0")
    first = advise(find_model("google/gemma-3-27b-it"), find_gpu("H100"), 1, parameters)[0]
    assert first.flags == ("--dtype=bfloat16",)


def test_quantized_weights_that_are_not_computed_in_float32_are_refused() -> None:
    """`auto` is float32 for Gemma 3 on a T4, which AWQ's kernels do not take."""
    base = find_model("Qwen/Qwen3-8B-AWQ")
    gemma = replace(base, model_type="gemma3", dtype="bfloat16")
    found = plan(gemma, find_gpu("T4"), 1, EngineParameters(engine_version="0.19.0"))
    (detail,) = refusals(found, "dtype")
    assert "does not compute awq weights in float32" in detail
    assert "GPU that computes bfloat16" in detail
    (detail,) = refusals(on("Qwen/Qwen3-8B-AWQ", "H100", "--dtype=float32"), "dtype")
    assert "set --dtype=auto" in detail


def test_a_release_before_0_9_does_not_replace_bfloat16() -> None:
    (detail,) = refusals(on("Qwen/Qwen3-4B", "T4", version="0.8.5"), "dtype")
    assert "set --dtype=float16" in detail
    for flags, version in ((("--dtype=float16",), "0.8.5"), ((), "0.9.0")):
        assert not refusals(on("Qwen/Qwen3-4B", "T4", *flags, version=version), "dtype")


def test_sglang_computes_in_float16_there() -> None:
    """`maybe_downgrade_dtype_for_legacy_gpu` asks for no family."""
    rules = rules_for("sglang", "0.5.17")
    assert types_taken(find_model(GEMMA3), find_gpu("T4"), rules)[0] == "float16"


def test_the_families_of_the_table_are_those_of_the_models() -> None:
    known = {find_model(each).model_type for each in (GEMMA3, GEMMA3_TEXT, GLM4, "google/gemma-2-9b-it")}  # fmt: skip
    assert known == NO_FLOAT16.keys()


SPARSE_MODEL = "deepseek-ai/DeepSeek-V3.2"


@pytest.mark.parametrize(
    ("gpu", "version", "is_served"),
    [
        ("H200", "0.11.0", True), ("B200", "0.11.2", True), ("rtx-pro-6000", "0.23.0", False), ("rtx-pro-6000", "0.24.0", True),
        ("gb10", "0.24.0", True), ("a100", "0.33.0", False), ("l40s", "0.33.0", False),
        ("mi300x", "0.11.2", False), ("mi300x", "0.12.0", True), ("mi355x", "0.33.0", True), ("mi210", "0.33.0", False),
        ("rx-7900-xtx", "0.33.0", False),
    ],
)  # fmt: skip
def test_attention_over_an_index_has_kernels_on_some_gpus_alone(
    gpu: str, version: str, is_served: bool
) -> None:
    details = refusals(on(SPARSE_MODEL, gpu, version=version, count=8), "gpu-type")
    assert any("sparse latent attention" in each for each in details) is not is_served


def test_amds_latent_attention_takes_blocks_of_one_token() -> None:
    """To 0.17.1 (platforms/rocm.py), as in the start of GLM-5-FP8 on eight MI300X with --block-size=1 (0.16.0)."""
    without = on(SPARSE_MODEL, "mi300x", version="0.16.0", count=8)
    (detail,) = refusals(without, "block-size")
    assert "set --block-size=1" in detail
    for flags, version in ((("--block-size=1",), "0.16.0"), ((), "0.18.0")):
        found = on(SPARSE_MODEL, "mi300x", *flags, version=version, count=8)
        assert not refusals(found, "block-size")
    assert refusals(on("Qwen/Qwen3-8B", "mi300x", "--block-size=1"), "block-size")


def test_what_has_no_index_needs_no_such_kernels() -> None:
    found = on("deepseek-ai/DeepSeek-V3", "a100", version="0.28.0", count=8)
    assert not any("sparse" in each for each in refusals(found, "gpu-type"))


def test_latents_over_an_index_are_packed_where_the_only_kernels_are_of_fp8() -> None:
    """`fp8_ds_mla`, 656 bytes, also where --kv-cache-dtype is `auto` or bfloat16 (vLLM 0.24.0, mla_attention.py)."""

    def per_token(gpu: str, *flags: str) -> float:
        return on(SPARSE_MODEL, gpu, *flags, version="0.24.0", count=8).kv_bytes_per_token

    packed = per_token("rtx-pro-6000")
    assert packed == per_token("rtx-pro-6000", "--kv-cache-dtype=bfloat16")
    assert packed == per_token("H200", "--kv-cache-dtype=fp8") < per_token("H200")


def test_each_row_of_the_table_names_a_gpu_of_the_catalogue() -> None:
    def kind(gpu: Gpu) -> float | str:
        return gpu.gfx if gpu.capability is None else int(gpu.capability)

    names = ("H200", "B200", "rtx-pro-6000", "mi300x", "mi355x")
    assert {kind(find_gpu(each)) for each in names} == SPARSE.keys()
