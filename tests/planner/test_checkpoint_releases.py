"""Quantized checkpoints are planned for releases that read them, and refused by name for others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exo_inference.engines.flags.catalogue import flags_of, listed_releases
from exo_inference.planner import (
    Plan,
    Verdict,
    advise,
    find_gpu,
    find_model,
    plan,
    read_architecture,
)
from exo_inference.planner.catalog_models import load_models
from exo_inference.planner.engine_rules import parse_version
from exo_inference.planner.parameters import EngineParameters
from exo_inference.planner.releases.checkpoints import (
    DEPRECATED,
    GONE,
    ONLINE_SINCE,
    SINCE,
    check_release,
)
from tests.planner.flags import settings_of

QWEN: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 128, "hidden_size": 1024,
    "intermediate_size": 3072, "max_position_embeddings": 40960, "num_attention_heads": 16, "num_hidden_layers": 28,
    "num_key_value_heads": 8, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "vocab_size": 151936,
}  # fmt: skip
HQQ = {
    "quant_method": "hqq",
    "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}},
    "skip_modules": ["lm_head"],
}


def plan_of(checkpoint: dict[str, Any] | None, version: str, *others: str, **flags: Any) -> Plan:
    extra = {} if checkpoint is None else {"quantization_config": checkpoint}
    model = read_architecture({**QWEN, **extra}, name="mine")
    asked = settings_of((*others, "--max-model-len=4096"), engine_version=version)
    asked = replace(asked, **flags)
    return plan(model, find_gpu("L4"), 1, asked)


@pytest.mark.parametrize(
    ("quantization", "last", "first"),
    [
        (HQQ, "0.14.1", "0.15.0"),
        ({"quant_method": "gguf", "file_type": "Q4_K_M"}, "0.23.0", "0.24.0"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "0.27.0", "0.28.0"),
    ],
    ids=["hqq", "gguf", "bitsandbytes"],
)
def test_a_checkpoint_is_refused_by_name_from_the_release_that_dropped_its_method(
    quantization: dict[str, Any], last: str, first: str
) -> None:
    assert plan_of(quantization, last).verdict is Verdict.FITS
    refused = plan_of(quantization, first)
    assert refused.verdict is Verdict.REFUSED
    (problem,) = [each for each in refused.problems if each.code == "quantization"]
    assert f"mine is {quantization['quant_method']}" in problem.detail
    assert f"vLLM {first}" in problem.detail
    assert f"before {first}" in problem.detail


def test_a_method_is_not_taken_before_the_release_that_has_it() -> None:
    mixed = {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"model.layers.0.mlp.up_proj": {"quant_algo": "NVFP4"}}}  # fmt: skip
    assert "use 0.17.0 or later" in plan_of(mixed, "0.16.0").problems[0].detail
    assert not plan_of(mixed, "0.24.0").problems


def test_a_deprecated_method_needs_the_flag_that_allows_it() -> None:
    fbgemm = {"quant_method": "fbgemm_fp8"}
    assert plan_of(fbgemm, "0.12.0").verdict is Verdict.FITS
    refused = plan_of(fbgemm, "0.15.1")
    assert refused.verdict is Verdict.REFUSED
    assert "add --allow-deprecated-quantization" in refused.problems[0].detail


@pytest.mark.parametrize(
    ("flags", "verdict"),
    [
        ("--allow-deprecated-quantization", Verdict.FITS),
        ("--allow_deprecated_quantization", Verdict.FITS),
        ("--no-allow-deprecated-quantization --allow_deprecated-quantization", Verdict.FITS),
        ("--allow-deprecated-quantization --no-allow-deprecated-quantization", Verdict.REFUSED),
        ("--allow-deprecated-quantization --no-allow_deprecated_quantization", Verdict.REFUSED),
    ],
)
def test_the_last_flag_that_allows_deprecated_methods_or_does_not_holds(
    flags: str, verdict: Verdict
) -> None:
    assert plan_of({"quant_method": "fbgemm_fp8"}, "0.15.1", *flags.split()).verdict is verdict


def test_quantizing_while_loading_ends_with_the_method() -> None:
    assert plan_of(None, "0.27.0", quantization="bitsandbytes").verdict is Verdict.FITS
    refused = plan_of(None, "0.28.0", quantization="bitsandbytes")
    assert refused.verdict is Verdict.REFUSED
    assert "--quantization is bitsandbytes" in refused.problems[0].detail


def test_hqq_takes_four_bits_with_a_scale_and_a_zero_point_for_every_64_weights() -> None:
    plain = plan_of(None, "0.12.0").weights_bytes_per_gpu
    rows = 151936 * 1024 * 2  # the table of tokens stays in 16 bit
    expected = rows + (find_model("Qwen/Qwen3-0.6B").num_parameters * 2 - rows) * 4.5 / 16
    assert plan_of(HQQ, "0.12.0").weights_bytes_per_gpu == pytest.approx(
        expected, rel=0.025
    )  # pages of the allocator apart
    assert plan_of(HQQ, "0.12.0").weights_bytes_per_gpu < plain / 2
    eight = {**HQQ, "quant_config": {"weight_quant_params": {"nbits": 8, "group_size": 64}}}
    assert "8 bit in groups of 64, is unknown" in plan_of(eight, "0.12.0").problems[0].detail


def test_the_table_is_that_of_the_methods_of_each_release() -> None:
    path = Path(__file__).with_name("vllm_classes.json")
    methods = json.loads(path.read_text(encoding="utf-8"))["methods"]
    for method, version in (*SINCE.items(), *ONLINE_SINCE.items()):
        assert methods[method][0] == ".".join(map(str, version)), method
    for method, version in GONE.items():
        assert methods[method][1] == ".".join(map(str, version)), method


def test_the_table_is_that_of_the_flags_of_each_release() -> None:
    for release in listed_releases():
        version, flags = parse_version(release), flags_of(release).by_name
        assert version is not None
        choices = set(flags["quantization"].choices)
        known = {**SINCE, **ONLINE_SINCE}
        assert {each for each in known if version >= known[each]} == choices & known.keys(), release
        assert {each for each in GONE if version < GONE[each]} == choices & GONE.keys(), release
        allows = "allow-deprecated-quantization" in flags
        assert allows == (version >= DEPRECATED["fbgemm_fp8"]), release


INT = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
MXFP4 = {**NVFP4, "group_size": 32}
BLOCK = {"num_bits": 8, "type": "float", "strategy": "block"}


def compressed(weights: dict[str, Any]) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]}


@pytest.mark.parametrize(
    ("checkpoint", "last", "first"),
    [
        (compressed(NVFP4), "0.8.5", "0.9.0"), (compressed(BLOCK), "0.10.2", "0.11.0"), (compressed(MXFP4), "0.13.0", "0.14.0"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "0.8.5", "0.9.0"),
        ({"quant_method": "mxfp4"}, "0.10.0", "0.10.1"),
    ],
    ids=["nvfp4", "fp8-block", "mxfp4", "modelopt-nvfp4", "mxfp4-method"],
)  # fmt: skip
def test_a_format_is_not_taken_before_the_release_that_reads_it(
    checkpoint: dict[str, Any], last: str, first: str
) -> None:
    refused = plan_of(checkpoint, last)
    assert refused.verdict is Verdict.REFUSED
    assert any(f"vLLM {last} does not read yet: use {first}" in p.detail for p in refused.problems)
    assert plan_of(checkpoint, first).verdict is Verdict.FITS


@pytest.mark.parametrize(
    ("checkpoint", "last", "first"),
    [
        (compressed(NVFP4), "0.9.1", "0.9.2"), (compressed(MXFP4), "0.14.1", "0.15.0"), (compressed(INT), "0.8.5", "0.9.0"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "0.9.2", "0.10.0"),
    ],
    ids=["nvfp4", "mxfp4", "int8", "modelopt-fp8"],
)  # fmt: skip
def test_experts_are_read_in_a_format_later(
    checkpoint: dict[str, Any], last: str, first: str
) -> None:
    config = {**load_models()["Qwen/Qwen3-30B-A3B"]["config"], "quantization_config": checkpoint}
    model = read_architecture(config, name="mine")
    said = [
        [each.detail for each in check_release(model, EngineParameters(engine_version=release))]
        for release in (last, first)
    ]
    assert "which vLLM " + last + " does not read yet: use " + first in said[0][0]
    assert said[1] == []
    assert plan_of(checkpoint, last).verdict is Verdict.FITS  # without experts


def test_a_checkpoint_known_by_name_waits_for_any_method_that_reads_its_format() -> None:
    result = plan(find_model("nvidia/Llama-3.1-8B-Instruct-NVFP4"), find_gpu("H100"), 1, EngineParameters(engine_version="0.6.6"))  # fmt: skip
    assert result.verdict is Verdict.REFUSED
    assert "nvfp4, which vLLM 0.6.6 does not read yet: use 0.9.0 or later" in result.problems[0].detail  # fmt: skip


@pytest.mark.parametrize(
    ("value", "last", "first"),
    [("mxfp8", "0.18.1", "0.19.0"), ("fp8_per_block", "0.19.1", "0.20.0"), ("fp8_per_channel", "0.23.0", "0.24.0")],
)  # fmt: skip
def test_plain_weights_are_quantized_by_releases_that_can(
    value: str, last: str, first: str
) -> None:
    parameters = [EngineParameters(engine_version=each, quantization=value) for each in (last, first)]  # fmt: skip
    model = read_architecture(QWEN, name="mine")
    assert f"use {first} or later" in check_release(model, parameters[0])[0].detail
    assert check_release(model, parameters[1]) == []


BNB: dict[str, Any] = {"quant_method": "bitsandbytes", "load_in_4bit": True}


def _on_two(
    checkpoint: dict[str, Any] | None, *flags: str, version: str = "0.27.0"
) -> tuple[Any, Any, int, EngineParameters]:
    extra = {} if checkpoint is None else {"quantization_config": checkpoint}
    model = read_architecture({**QWEN, **extra}, name="mine")
    asked = settings_of((*flags, "--max-model-len=4096"), engine_version=version)
    return model, find_gpu("L4"), 2, asked


@pytest.mark.parametrize("version", ["0.8.5", "0.9.2", "0.27.0"])
def test_stored_bitsandbytes_weights_are_not_split(version: str) -> None:
    refused = plan(*_on_two(BNB, version=version))
    assert refused.verdict is Verdict.REFUSED
    assert refused.problems[0].code == "tensor-parallel"
    assert "--pipeline-parallel-size=2 with --tensor-parallel-size=1" in refused.problems[0].detail
    staged = _on_two(BNB, "--pipeline-parallel-size=2", version=version)
    assert plan(*staged).verdict is Verdict.FITS


def test_weights_that_are_quantized_while_loading_are_split() -> None:
    assert plan(*_on_two(None, "--quantization=bitsandbytes")).verdict is Verdict.FITS


def test_the_ways_out_of_weights_that_are_not_split_fit() -> None:
    ways = advise(*_on_two(BNB))
    assert ways[0].flags == ("--pipeline-parallel-size=2",)
    assert all(way.plan.verdict is Verdict.FITS and way.plan.ranks.tensor == 1 for way in ways)
    assert any(way.options == ("--gpu-count=1",) for way in ways)
    fixed = advise(*_on_two(BNB, "--tensor-parallel-size=2"))
    assert set(fixed[0].flags) == {"--tensor-parallel-size=1", "--pipeline-parallel-size=2"}


def test_no_other_engine_splits_them_either() -> None:
    model, gpu, count, _ = _on_two(BNB)
    asked = EngineParameters(engine="sglang", engine_version="0.5.17")
    refused = plan(model, gpu, count, asked)
    assert [each.code for each in refused.problems if each.refuses] == ["tensor-parallel"]
    assert advise(model, gpu, count, asked)[0].plan.ranks.pipeline == 2
