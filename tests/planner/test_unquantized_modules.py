"""Which modules of published checkpoints stay in 16 or 8 bit: by the lists that their publishers give."""

from __future__ import annotations

import pytest

from exo_inference.planner import find_model, load_models, read_architecture
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.model.checkpoint import stored_bytes


def _bytes_by_kind(model: Architecture) -> dict[str, str]:
    return {
        w.path: w.format.name if w.format else "16 bit"
        for layer in model.layers
        for w in layer.weights
        if w.in_features > 1
    }


@pytest.mark.parametrize("size", ["Super-120B-A12B", "Ultra-550B-A55B"])
def test_nemotron_3_in_4_bit_floats_is_mixed_as_its_recipe_says(size: str) -> None:
    """NVIDIA/Model-Optimizer, modelopt_recipes: "mirrors the published hf_quant_config.json"."""
    model = find_model(f"nvidia/NVIDIA-Nemotron-3-{size}-NVFP4")
    forms = _bytes_by_kind(model)
    assert forms["mlp.experts.up_proj"] == "nvfp4"
    assert forms["mlp.shared_experts.up_proj"] == "fp8"
    assert forms["mixer.in_proj"] == forms["mixer.out_proj"] == "fp8"
    assert forms["self_attn.q_proj"] == forms["self_attn.o_proj"] == "16 bit"
    assert forms["mlp.fc2_latent_proj"] == "16 bit"
    assert not any(weight.format for weight in model.mtp_weights)


def test_nemotron_3_ultra_in_4_bit_floats_has_the_published_size() -> None:
    """352.3 GB (NVIDIA's own account of the checkpoint), the prediction layer among them."""
    model = find_model("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4")
    drafted = 2 * sum(weight.num_elements for weight in model.mtp_weights)
    assert (stored_bytes(model) + drafted) / 1e9 == pytest.approx(352.3, rel=0.01)


def test_nemotron_3_super_in_8_bit_keeps_attention_and_latent_projections_in_16() -> None:
    """docs.nvidia.com/nemotron, Nemotron 3 Super, stage 3."""
    forms = _bytes_by_kind(find_model("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8"))
    assert forms["mlp.experts.up_proj"] == forms["mixer.in_proj"] == "fp8"
    assert forms["self_attn.k_proj"] == forms["mlp.fc1_latent_proj"] == "16 bit"


def test_nemotron_3_nano_keeps_attention_and_the_states_before_it_in_16_bit() -> None:
    model = find_model("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4")
    kept = [
        index
        for index, layer in enumerate(model.layers)
        for w in layer.weights
        if w.path in ("mixer.in_proj", "self_attn.o_proj") and w.format is None
    ]
    assert kept == [4, 5, 11, 12, 18, 19, 25, 26, 32, 33, 41, 42]


def test_experts_named_one_by_one_are_the_experts() -> None:
    """hf_quant_config.json of Nemotron 3 Super names each expert of each layer."""
    config = dict(load_models()["nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16"]["config"])
    named = {
        f"backbone.layers.1.mixer.experts.{each}.{side}_proj": {"quant_algo": "NVFP4"}
        for each in range(512)
        for side in ("up", "down")
    }
    model = read_architecture(
        config, hf_quant_config={"quant_algo": "MIXED_PRECISION", "quantized_layers": named}
    )
    forms = {w.path: w.format for w in model.layers[1].weights}
    assert forms["mlp.experts.up_proj"] is not None
    assert forms["mlp.experts.down_proj"] is not None
    assert not any(w.format for w in model.layers[3].weights)


@pytest.mark.parametrize("ignored", ["mtp*", "*mtp*", "mtp", "re:.*mtp.*"])
def test_a_prediction_layer_that_is_not_quantized_keeps_16_bit(ignored: str) -> None:
    config = dict(load_models()["Qwen/Qwen3.6-27B"]["config"])
    quantized = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", ignored]}
    model = read_architecture({**config, "quantization_config": quantized})
    assert not any(weight.format for weight in model.mtp_weights)
    whole = {**quantized, "ignore": ["lm_head"]}
    assert any(
        weight.format
        for weight in read_architecture({**config, "quantization_config": whole}).mtp_weights
    )


def test_qwen3_next_in_4_bit_of_red_hat_keeps_the_states_projections_in_16() -> None:
    """40.9 GiB are the files (magicsmokepress/cmp-170hx-vllm, docs/setup.md), by the list of the publisher's README."""
    model = find_model("RedHatAI/Qwen3-Next-80B-A3B-Instruct-quantized.w4a16")
    kinds = {w.path: w.format for layer in model.layers for w in layer.weights}
    assert kinds["linear_attn.out_proj"] is None
    assert kinds["self_attn.q_proj"] is not None
    assert stored_bytes(model) / 2**30 == pytest.approx(40.9, rel=0.005)


def test_aeons_file_keeps_the_states_projections_in_16_bit() -> None:
    """6.89 GiB on each of four cards were printed, the prediction layer among them."""
    model = find_model("AEON-7/Qwen3.6-27B-AEON-Ultimate-Uncensored-Multimodal-NVFP4-MTP")
    kinds = {w.path: w.format for layer in model.layers for w in layer.weights}
    assert kinds["linear_attn.in_proj_qkv"] is None
    assert kinds["linear_attn.out_proj"] is None
    assert kinds["self_attn.q_proj"] is not None
    assert not any(weight.format for weight in model.mtp_weights)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("RedHatAI/Qwen3-8B-quantized.w4a16", "w4a16"),
        ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w8a8", "int8"),
        ("RedHatAI/Qwen3-14B-FP8-dynamic", "fp8-channel"),
    ],
)
def test_red_hats_names_are_the_model_and_its_quantization(name: str, form: str) -> None:
    model = find_model(name)
    assert model.quantization is not None
    assert model.quantization.default.name == form
    assert not any("fine-tune" in note for note in model.notes)


def test_deepseek_v4_with_experts_in_nvidias_4_bit_floats_keeps_the_rest_in_8_bit() -> None:
    """Its list leaves attention and shared experts "in their native precision", which is FP8 in blocks."""
    forms = _bytes_by_kind(find_model("nvidia/DeepSeek-V4-Flash-NVFP4"))
    assert forms["mlp.experts.up_proj"] == "nvfp4"
    assert forms["self_attn.q_b_proj"] == forms["mlp.shared_experts.up_proj"] == "fp8-block"


def test_a_list_that_names_shared_experts_with_a_star_keeps_them_in_16_bit() -> None:
    forms = _bytes_by_kind(find_model("nvidia/Qwen3.5-122B-A10B-NVFP4"))
    assert forms["mlp.experts.up_proj"] == "nvfp4"
    assert forms["mlp.shared_experts.up_proj"] == "16 bit"


def test_unsloths_file_has_its_published_size() -> None:
    """24.57 GiB are its tensors (Hub, revision 890bdef7), the prediction layer among them."""
    model = find_model("unsloth/Qwen3.6-27B-NVFP4")
    drafted = 2 * sum(weight.num_elements for weight in model.mtp_weights)
    assert (stored_bytes(model) + drafted) / 2**30 == pytest.approx(24.57, rel=0.001)


def test_qwen3_8_in_8_bit_has_as_many_tensors_in_8_bit_as_were_counted() -> None:
    """400 in the layers and 7 in the prediction layer are FP8 (a reader of its safetensors headers)."""
    model = find_model("Qwen/Qwen3.8-27B-FP8")
    assert sum(w.format is not None for layer in model.layers for w in layer.weights) == 400
    assert sum(weight.format is not None for weight in model.mtp_weights) == 7


def test_qwens_35b_in_8_bit_has_as_many_tensors_as_were_counted() -> None:
    """64,196 (0xBakeer/inference-atlas pull request 145): each module in 8 bit has a scale beside it."""
    model = find_model("Qwen/Qwen3.6-35B-A3B-FP8")
    forms = _bytes_by_kind(model)
    assert forms["mlp.experts.gate_proj"] == forms["linear_attn.in_proj_qkv"] == "fp8-block"
    assert forms["linear_attn.in_proj_ba"] == forms["mlp.gate"] == "16 bit"
    held = {"linear_attn.in_proj_ba": 2, "linear_attn.state": 3, "norms": 2, "self_attn.qk_norm": 2}
    tensors = sum(
        weight.copies * (2 if weight.format is not None else held.get(weight.path, 1))
        for layer in model.layers
        for weight in layer.weights
    )
    # The prediction layer's, the encoder's, and those outside the layers.
    assert tensors + 1_560 + 333 + 3 == 64_196


@pytest.mark.parametrize(
    ("name", "error"),
    [
        (
            "Qwen/Qwen3.6-27B-FP8",
            0.02,
        ),  # as its owner's Qwen3.8-27B-FP8, whose tensors were counted
        ("Qwen/Qwen3-Coder-Next-FP8", 0.11),  # no list of its architecture is known
        ("RedHatAI/Qwen3.6-27B-FP8-block", 0.11),  # another maker chooses by itself
    ],
)
def test_the_files_of_one_owner_in_8_bit_leave_the_same_modules(name: str, error: float) -> None:
    assert find_model(name).weights_error == pytest.approx(error)
