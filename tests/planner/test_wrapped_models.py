"""Models whose text is sized by a family and whose encoder or cache is of another kind than the family's.

Parameter counts of bundled ones are compared in `test_names.py`; here is what a count does not show.
"""

from __future__ import annotations

from typing import Any

import pytest

from exo_inference.planner import EngineParameters, find_gpu, find_model, plan, read_architecture
from exo_inference.planner.model.shapes import KvKind

LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip


def _kv_bytes(name: str) -> float:
    return plan(find_model(name), find_gpu("H200"), 1, EngineParameters()).kv_bytes_per_token


def test_minicpm3_caches_each_heads_keys_and_values_as_long_as_keys() -> None:
    """Values are padded to the length of keys, and no latent is kept (vLLM 0.32.0, minicpm3.py)."""
    assert _kv_bytes("openbmb/MiniCPM3-4B") == 62 * 40 * (96 + 96) * 2


def test_longcat_caches_two_latents_a_layer() -> None:
    model = find_model("meituan-longcat/LongCat-Flash-Chat")
    assert len(model.layers) == 56
    assert sum(layer.uses_moe for layer in model.layers) == 28
    assert model.kv_elements_per_token == 56 * (512 + 64)
    routers = {
        w.out_features for layer in model.layers for w in layer.weights if w.part == "router"
    }
    assert routers == {512 + 256}  # those that do nothing are chosen, too


def test_ling_3_keeps_states_and_every_sixth_layer_latents() -> None:
    kinds = [layer.kv.kind for layer in find_model("inclusionAI/Ling-3.0-flash").layers if layer.kv]
    assert [index for index, kind in enumerate(kinds) if kind is KvKind.LATENT] == [
        5, 11, 17, 23, 29, 35, 41,
    ]  # fmt: skip
    assert kinds.count(KvKind.STATE) == 35


@pytest.mark.parametrize("name", ["allenai/Molmo-7B-D-0924", "microsoft/Phi-4-multimodal-instruct"])
def test_an_encoder_that_no_config_describes_is_sized(name: str) -> None:
    model = find_model(name)
    assert model.vision is not None
    encoder = sum(w.num_elements for w in model.outer_weights if w.part in ("vision", "projector"))
    assert 0.3e9 < encoder < 0.9e9


@pytest.mark.parametrize(
    ("architecture", "labels"),
    [("LlamaForTokenClassification", 9), ("LlamaForCausalLM", None)],
)
def test_a_class_that_labels_tokens_has_labels_for_an_output_table(
    architecture: str, labels: int | None
) -> None:
    config = {**LLAMA, "architectures": [architecture], "num_labels": 9}
    model = read_architecture(config, name="x")
    heads = {w.path: w.out_features for w in model.outer_weights}
    assert ("lm_head" in heads) is (labels is None)
    assert heads.get("score") == labels
    assert model.is_embedding is (labels is not None)


@pytest.mark.parametrize("name", ["zai-org/chatglm3-6b", "thu-coai/ShieldLM-6B-chatglm3"])
def test_chatglm_writes_though_its_class_is_called_a_model(name: str) -> None:
    config = dict(LLAMA, model_type="chatglm", architectures=["ChatGLMModel"])
    assert not read_architecture(config, name=name).is_embedding
    assert not find_model(name).is_embedding


def test_a_model_for_embedded_devices_generates_and_one_for_embeddings_does_not() -> None:
    assert not find_model("FreedomIntelligence/openPangu-Embedded-7B-V1.1").is_embedding
    for name in ("Qwen/Qwen3-Embedding-0.6B", "nvidia/llama-3.2-nv-embedqa-1b-v2"):
        assert find_model(name).is_embedding


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("zai-org/GLM-4.5V-FP8", "zai-org/GLM-4.5V"),
        ("mistralai/Mistral-Large-3-675B-Instruct-2512-NVFP4", "mistralai/Mistral-Large-3-675B-Instruct-2512"),
        ("RedHatAI/Voxtral-Mini-3B-2507-FP8-dynamic", "mistralai/Voxtral-Mini-3B-2507"),
        ("meituan-longcat/LongCat-Flash-Chat-FP8", "meituan-longcat/LongCat-Flash-Chat"),
    ],
)  # fmt: skip
def test_a_quantization_of_one_is_derived_from_it(name: str, base: str) -> None:
    model = find_model(name)
    assert model.quantization is not None
    assert any(note.startswith(f"derived from {base}") for note in model.notes)


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [("Instruct-2512", 681), ("Instruct-2512-BF16", 1352), ("Base-2512", 1352)],
)
def test_a_name_without_a_form_is_planned_in_the_form_of_its_own_files(
    name: str, gigabytes: int
) -> None:
    model = find_model(f"mistralai/Mistral-Large-3-675B-{name}")
    found = plan(model, find_gpu("B300"), 8, EngineParameters(pipeline_parallel_size=8))
    size = sum(stage.weights_bytes for stage in found.stages) / 1e9
    assert size == pytest.approx(gigabytes, rel=0.01)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("openvla/openvla-7b", 7_541_237_184), ("nvidia/Cosmos3-Edge", 2_435_616_496),
        ("FunAudioLLM/Fun-ASR-Nano-2512-vllm", 829_791_840), ("nvidia/Llama-3_1-Nemotron-Ultra-253B-v1", 253_401_268_224),
    ],
)  # fmt: skip
def test_an_encoder_counted_as_a_whole_makes_up_what_is_published(
    name: str, parameters: int
) -> None:
    model = find_model(name)
    assert model.num_parameters == parameters
    assert (
        plan(
            model, find_gpu("H200"), 8, EngineParameters(tensor_parallel_size=8, max_model_len=1024)
        ).verdict
        != "unknown"
    )
