"""Configs that say something odd: refused with the reason, or noted, never planned without a word."""

from __future__ import annotations

from typing import Any

import pytest

from exo_inference.planner import (
    EngineParameters,
    find_gpu,
    load_models,
    plan,
    read_architecture,
    with_index,
)
from exo_inference.planner.model.assumptions import note_assumptions
from exo_inference.planner.model.config_fields import ConfigFields
from exo_inference.planner.model.families import CLASS_LENGTHS, FAMILIES

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "vocab_size": 32000,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 11008,
    "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
}  # fmt: skip
MIXTRAL = {
    **LLAMA,
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 8,
}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({**MIXTRAL, "num_experts_per_tok": [2, 3]}, "experts_per_token in config.json is [2, 3]"),
        ({**LLAMA, "torch_dtype": "float7"}, "float7"),
        ({**LLAMA, "num_key_value_heads": 5}, "num_key_value_heads is 5"),
        ({**LLAMA, "num_key_value_heads": 64}, "num_key_value_heads is 64"),
        ({**MIXTRAL, "num_experts_per_tok": 9}, "chooses 9 experts per token, and has 8"),
        ({**LLAMA, "num_key_value_heads": 0}, "num_key_value_heads in config.json is 0, expected 1 or more"),
        ({**LLAMA, "intermediate_size": 0}, "intermediate_size in config.json is 0, expected 1 or more"),
        ({**LLAMA, "max_position_embeddings": 0}, "max_position_embeddings in config.json is 0, expected 1 or more"),
        ({**LLAMA, "max_position_embeddings": []}, "max_position_embeddings in config.json is [], expected a number"),
        ({**LLAMA, "quantization_config": {"quant_method": "gptq", "bits": 0}}, "quantization_config.bits in config.json is 0, expected"),
        ({**LLAMA, "quantization_config": {"quant_method": "awq", "group_size": 0}}, "quantization_config.group_size in config.json is 0, expected"),
        ({**LLAMA, "rope_scaling": {"rope_type": "yarn", "factor": -1}}, "rope_scaling.factor in config.json is -1, expected a number above 0"),
        ({**LLAMA, "rope_parameters": {"rope_type": "yarn", "factor": float("nan")}}, "rope_parameters.factor in config.json is nan, expected"),
    ],
    ids=["experts-differ", "dtype", "kv-heads-5", "kv-heads-64", "experts", "kv-heads-0", "width-0", "length-0", "length-list", "bits-0",
         "group-0", "factor-negative", "factor-nan"],
)  # fmt: skip
def test_what_cannot_be_is_not_sized(config: dict[str, Any], reason: str) -> None:
    model = read_architecture(config, name="odd")
    assert model.cannot_size is not None
    assert reason in model.cannot_size
    detail = plan(model, find_gpu("H100"), 1, EngineParameters()).problems[0].detail
    assert detail.startswith("cannot size odd, because")


def test_a_class_of_another_family_is_noted() -> None:
    odd = read_architecture({**LLAMA, "architectures": ["FooForCausalLM"]}, name="odd")
    usual = read_architecture(LLAMA, name="usual")
    assert usual.notes == ()
    assert any("FooForCausalLM" in note and "llama" in note for note in odd.notes)
    assert odd.weights_error > usual.weights_error


@pytest.mark.parametrize("name", sorted(load_models()))
def test_classes_of_the_catalogue_belong_to_their_types(name: str) -> None:
    model = read_architecture(load_models()[name]["config"], name=name)
    assert not any("does not belong" in note for note in model.notes)


@pytest.mark.parametrize(
    ("model_type", "name"),
    [("kimi_k2", "DeepseekV3ForCausalLM"), ("nemotron-nas", "DeciLMForCausalLM"),
     ("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM"), ("llama", "LlamaForSequenceClassification")],
)  # fmt: skip
def test_classes_of_another_name_belong(model_type: str, name: str) -> None:
    notes: list[str] = []
    fields = ConfigFields({**LLAMA, "model_type": model_type, "architectures": [name]})
    assert note_assumptions(fields, FAMILIES[model_type], notes) == 0.0
    assert notes == []


def test_a_missing_length_is_assumed_as_the_engine_does_and_said() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "max_position_embeddings"}
    for model_type, length in (("llama", 2048), ("mistral", 131072), ("mimo", 2048)):
        kind = {**config, "model_type": model_type, "architectures": None}
        model = read_architecture(kind, name="short")
        assert any(f"{length} tokens are assumed" in note for note in model.notes)
        result = plan(model, find_gpu("H100"), 1, EngineParameters())
        assert result.max_model_len == length
        assert model.notes[0] in result.notes


@pytest.mark.parametrize(
    "every",
    [
        pytest.param(10, id="some"),
        pytest.param(1, marks=pytest.mark.slow, id="all"),  # each class is a module to import
    ],
)
def test_assumed_lengths_are_those_of_the_config_classes(every: int) -> None:
    transformers = pytest.importorskip("transformers")
    for name, length in list(CLASS_LENGTHS.items())[::every]:
        if name in transformers.CONFIG_MAPPING:
            built = transformers.CONFIG_MAPPING[name]().get_text_config()
            assert (name, built.max_position_embeddings) == (name, length)


@pytest.mark.parametrize(
    ("flags", "windowed"),
    [
        ({"use_sliding_window": True, "max_window_layers": 20}, 8),
        ({"use_sliding_window": True, "max_window_layers": 0}, 28),
        ({"use_sliding_window": True}, 0),  # Qwen2Config: 28 layers look at everything
        ({"use_sliding_window": False, "max_window_layers": 0}, 0),
        ({}, 0),
    ],
)
def test_the_first_layers_of_qwen_look_at_everything(flags: dict[str, Any], windowed: int) -> None:
    config = {
        "model_type": "qwen2", "hidden_size": 1536, "intermediate_size": 8960, "vocab_size": 151936,
        "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2, "sliding_window": 4096,
        **flags,
    }  # fmt: skip
    assert sum(layer.is_windowed for layer in read_architecture(config).layers) == windowed


@pytest.mark.parametrize("total", [-1, 0, "many", True, float("nan")])
def test_an_index_whose_size_cannot_be_is_refused(total: object) -> None:
    model = read_architecture(LLAMA, name="odd")
    found = with_index(model, {"metadata": {"total_size": total}})
    assert found.cannot_size == (
        f"metadata.total_size in its index is {total!r}, expected a number of bytes above 0"
    )
    assert with_index(model, {"metadata": {}}) is model


def test_a_group_of_all_weights_of_a_row_is_sized() -> None:
    quantized = {"quant_method": "gptq", "bits": 4, "group_size": -1}
    model = read_architecture({**LLAMA, "quantization_config": quantized}, name="odd")
    assert model.quantization is not None
    assert model.quantization.default.bits == 4
