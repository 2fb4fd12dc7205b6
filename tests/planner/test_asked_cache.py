"""The type of cache that a checkpoint asks for: from its config, from a public account, and since which release."""

from __future__ import annotations

from typing import Any

import pytest

from exo_inference.planner import (
    EngineParameters,
    Plan,
    Verdict,
    find_gpu,
    find_model,
    load_models,
    plan,
    read_architecture,
)
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.model.asked_cache import ASKED

MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
MODELOPTS_SCHEME = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": SCHEME}
COMPRESSED = {
    "quant_method": "compressed-tensors", "format": "float-quantized", "kv_cache_scheme": SCHEME,
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": SCHEME, "input_activations": SCHEME}},
    "ignore": ["lm_head"],
}  # fmt: skip
PACKED = {
    **COMPRESSED, "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
        "num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}}},
}  # fmt: skip


def with_quantization(**quantization: Any) -> Architecture:
    config = dict(load_models()["Qwen/Qwen3-8B"]["config"])
    return read_architecture({**config, "quantization_config": quantization})


def planned(model: Architecture, version: str, gpu: str = "H100", **flags: object) -> Plan:
    parameters = EngineParameters.of(dict(flags), engine="vllm", engine_version=version)
    return plan(model, find_gpu(gpu), 1, parameters)


def bytes_per_token(result: Plan) -> float:
    return result.kv_bytes_per_token


@pytest.mark.parametrize(
    ("quantization", "version", "elements"),
    [
        (MODELOPT, "0.13.0", 2), (MODELOPT, "0.14.0", 1), (MODELOPTS_SCHEME, "0.24.0", 1),
        (COMPRESSED, "0.14.1", 2), (COMPRESSED, "0.15.0", 1),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": None}, "0.24.0", 2),
    ],
)  # fmt: skip
def test_a_release_takes_the_type_of_the_checkpoint_or_that_of_the_run(
    quantization: dict[str, Any], version: str, elements: int
) -> None:
    result = planned(with_quantization(**quantization), version)
    assert bytes_per_token(result) == 36 * 8 * 256 * elements


def test_a_flag_says_more_than_the_checkpoint() -> None:
    model = with_quantization(**MODELOPT)
    assert bytes_per_token(planned(model, "0.24.0", kv_cache_dtype="bfloat16")) == 36 * 8 * 256 * 2
    assert bytes_per_token(planned(model, "0.13.0", kv_cache_dtype="fp8")) == 36 * 8 * 256


@pytest.mark.parametrize(("version", "is_refused"), [("0.15.0", True), ("0.14.1", False)])
def test_a_gpu_without_fp8_refuses_the_checkpoints_type_from_the_release_that_takes_it(
    version: str, is_refused: bool
) -> None:
    result = planned(with_quantization(**PACKED), version, gpu="T4", max_model_len=4096)
    said = [each for each in result.problems if "the checkpoint's KV cache" in each.detail]
    assert (result.verdict is Verdict.REFUSED, bool(said)) == (is_refused, is_refused)


@pytest.mark.parametrize("name", sorted(ASKED))
def test_a_file_that_is_known_by_its_name_has_the_cache_that_a_public_account_says(
    name: str,
) -> None:
    model = find_model(name)
    ours, old = (bytes_per_token(planned(model, each, gpu="B200")) for each in ("0.24.0", "0.13.0"))
    assert 2 * ours == old
    kind, source = ASKED[name]
    assert kind == "fp8"
    assert source


def test_qwen3_8b_in_4_bit_floats_has_the_tokens_per_byte_that_were_printed() -> None:
    """An fp8_e4m3 cache without a flag (vLLM 0.24.0): 73,728 bytes a token."""
    assert bytes_per_token(planned(find_model("nvidia/Qwen3-8B-NVFP4"), "0.24.0")) == 73_728


def test_a_file_of_which_nothing_is_known_has_the_cache_of_the_run() -> None:
    model = find_model("nvidia/Qwen3-14B-NVFP4")
    assert bytes_per_token(planned(model, "0.24.0")) == 40 * 8 * 256 * 2
