"""Names of models: which are found offline, as what, and which must not be taken for another."""

from __future__ import annotations

import pytest

from exo_inference.errors import UsageError
from exo_inference.planner import EngineParameters, find_gpu, find_model, plan
from exo_inference.planner.catalog_models import (
    _further_models,
    _unsized_models,
    load_models,
    read_entry,
)
from exo_inference.planner.model.checkpoint import stored_bytes as bytes_of_files
from exo_inference.planner.model.families import FAMILIES
from exo_inference.planner.model.name_words import read_words
from exo_inference.planner.model.requantize import stored_bytes, with_attention


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("Qwen/Qwen2.5-3B", "Qwen/Qwen2.5-3B-Instruct"),
        ("google/gemma-3-12b-pt", "google/gemma-3-12b-it"),
        ("meta-llama/Meta-Llama-3-8B", "meta-llama/Meta-Llama-3-8B-Instruct"),
        ("Qwen/Qwen3-VL-30B-A3B", "Qwen/Qwen3-VL-30B-A3B-Instruct"),
        ("NousResearch/Hermes-3-Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct"),
        ("google/gemma-4-26B-A4B-it-qat-q4_0-unquantized", "google/gemma-4-26B-A4B-it"),
        ("mistralai/Mistral-Nemo-Base-2407", "mistralai/Mistral-Nemo-Instruct-2407"),
        (
            "mistralai/Mistral-Small-3.1-24B-Base-2503",
            "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
        ),
        ("ibm-granite/granite-4.0-h-micro-base", "ibm-granite/granite-4.0-h-micro"),
    ],
)
def test_a_variant_or_fine_tune_has_the_weights_of_the_model_in_its_name(
    name: str, base: str
) -> None:
    found = find_model(name)
    assert found.num_parameters == find_model(base).num_parameters
    assert found.quantization == find_model(base).quantization
    assert found.name == name
    assert found.notes


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("nvidia/Llama-3.1-8B-Instruct-FP4", "nvfp4"),
        ("nvidia/Qwen3-14B-NVFP4", "nvfp4"),
        ("TheBloke/Mistral-7B-Instruct-v0.2-GPTQ", "gptq"),
        ("Qwen/Qwen2-7B-Instruct-AWQ", "awq"),
        ("unsloth/Mistral-Nemo-Base-2407-bnb-4bit", "bitsandbytes-nf4"),
        ("ISTA-DASLab/gemma-3-27b-it-GPTQ-4b-128g", "gptq"),
        ("huihui-ai/Huihui-gpt-oss-20b-mxfp4-abliterated-v2", "mxfp4"),
        ("AEON-7/Qwen3.6-27B-AEON-Ultimate-Uncensored-Multimodal-NVFP4-MTP", "nvfp4"),
    ],
)
def test_the_quantization_in_a_name_counts(name: str, form: str) -> None:
    quantization = find_model(name).quantization
    assert quantization is not None
    assert quantization.default.name == form


@pytest.mark.parametrize(
    "name",
    ["RedHatAI/Qwen3-8B-speculator.eagle3", "me/Qwen3-8B-tuned-MTP", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "me/Qwen3-8B-lora",
     "foo/Bar-9B", "me/8b"],
)  # fmt: skip
def test_a_part_of_a_model_is_not_taken_for_the_model(name: str) -> None:
    with pytest.raises(UsageError):
        find_model(name)


def test_attention_beside_states_in_4_bit_floats_is_in_8_bit_and_may_be_in_4_or_16() -> None:
    """22.13 GiB with a prediction layer of 0.8 were printed (github:sostrowsk/dgx-spark-local-llm)."""
    model = find_model("unsloth/Qwen3.8-27B-NVFP4")
    forms = {w.part: w.format for layer in model.layers for w in layer.weights if w.format}
    assert forms["attention"].name == "fp8"
    assert forms["mlp"].name == "nvfp4"
    assert stored_bytes(model) / 2**30 == pytest.approx(21.33, abs=0.01)
    whole = with_attention(model, None)
    assert stored_bytes(whole) == pytest.approx(stored_bytes(model) * (1 + model.weights_more))


def test_a_file_whose_16_bit_modules_are_public_is_sized_by_them() -> None:
    """24.6 GiB with a prediction layer of 0.8 (vllm-project/recipes)."""
    model = find_model("Inferact/Qwen3.8-27B-NVFP4")
    kinds = {w.path: w.format for layer in model.layers for w in layer.weights}
    assert kinds["linear_attn.in_proj_qkv"] is None
    assert kinds["linear_attn.out_proj"] is not None
    assert stored_bytes(model) / 2**30 == pytest.approx(23.8, rel=0.01)


@pytest.mark.parametrize("name", sorted(_further_models()))
def test_a_further_model_is_sized_and_says_whether_it_was_counted(name: str) -> None:
    entry, model = _further_models()[name], read_entry(name)
    assert model.cannot_size is None
    assert ("not counted" in entry["source"]) is not entry["is_checked"]
    assert any("count was not checked" in note for note in model.notes) is not entry["is_checked"]
    if entry["is_checked"]:
        assert "instantiating" in entry["source"]
        assert model.num_parameters == entry["num_parameters"]
    if "published_parameters" in entry:
        assert model.num_parameters == pytest.approx(entry["published_parameters"], rel=0.01)
    assert name not in load_models()


def test_the_middle_of_a_name_names_the_models_that_have_all_of_it() -> None:
    with pytest.raises(UsageError) as caught:
        find_model("nvidia/Nemotron-3-Nano")
    assert "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("name", "tokens"),
    [("togethercomputer/LLaMA-2-7B-32K", 32768), ("NousResearch/Yarn-Llama-2-7b-64k", 65536),
     ("me/Llama-3.1-8B-UltraLong-4M-Instruct", 4 * 2**20), ("me/Llama-3.1-8B-128K", None),
     ("me/Llama-3.1-8B-16K", 131072)],
)  # fmt: skip
def test_a_context_in_a_name_is_said_to_be_unknown_and_may_be_asked_for(
    name: str, tokens: int | None
) -> None:
    model = find_model(name)
    assert any("is not known: give --max-model-len" in note for note in model.notes) is (
        tokens is not None
    )
    assert any("which keeps the config" in note for note in model.notes) is (tokens is None)
    assert tokens is None or model.longest_model_len == tokens


@pytest.mark.parametrize(
    ("name", "gib", "form"),
    [
        ("mistralai/Ministral-3-14B-Base-2512", 26.0, None), ("mistralai/Ministral-3-14B-Reasoning-2512", 26.0, None),
        ("mistralai/Ministral-3-3B-Reasoning-2512", 7.2, None), ("ibm-granite/granite-4.0-h-1b", 2.7, None),
        ("ibm-granite/granite-4.0-h-350m", 0.63, None), ("deepseek-ai/DeepSeek-V4-Flash-Base", 266.2, "fp8-block"),
        ("deepseek-ai/DeepSeek-V3-Base", 626.8, "fp8-block"), ("moonshotai/Kimi-K2-Base", 958.3, "fp8-block"),
    ],
)  # fmt: skip
def test_base_models_are_in_the_form_that_they_are_published_in(
    name: str, gib: float, form: str | None
) -> None:
    """Ministral 3 is in FP8 as Instruct alone, DeepSeek-V4's experts in 4 bit but for the base models."""
    model = find_model(name)
    assert stored_bytes(model) / 2**30 == pytest.approx(gib, rel=0.01)
    assert (None if model.quantization is None else model.quantization.default.name) == form


@pytest.mark.parametrize(
    ("name", "own", "most"),
    [
        ("HuggingFaceTB/SmolLM3-3B", 65536, 65536), ("meta-llama/Llama-2-70b-chat-hf", 4096, 4096),
        ("meta-llama/Llama-2-70b-hf", 4096, 4096), ("TheBloke/Llama-2-70B-Chat-AWQ", 4096, 4096),
        ("microsoft/Phi-3-mini-128k-instruct", 4096, 131072), ("microsoft/Phi-3-medium-128k-instruct", 4096, 131072),
        ("microsoft/Phi-3.5-MoE-instruct", 4096, 131072), ("microsoft/Phi-3.5-vision-instruct", 4096, 131072),
        ("microsoft/Phi-3.5-mini-instruct", 4096, 131072), ("microsoft/Phi-4-mini-instruct", 4096, 131072),
    ],
)  # fmt: skip
def test_contexts_are_the_models_own(name: str, own: int, most: int) -> None:
    model = find_model(name)
    assert (model.max_model_len, model.longest_model_len) == (own, most)
    assert not any("max_position_embeddings" in note for note in model.notes)


@pytest.mark.parametrize("form", ["ONNX", "MLX", "MLX-4bit", "OpenVINO", "int4-ov", "CoreML"])
def test_a_form_that_no_engine_loads_is_refused(form: str) -> None:
    with pytest.raises(UsageError, match="a form that no engine here loads"):
        find_model(f"somebody/Qwen3-8B-{form}")


@pytest.mark.parametrize("name", ["Llama-3.1-405B-Instruct-FP8", "Llama-3.1-405B-FP8"])
def test_attention_of_llama_405b_in_fp8_stays_in_16_bit(name: str) -> None:
    """57.75 GiB on each of eight GPUs, as vLLM 0.5.3 printed (vllm-project/vllm#6746)."""
    model = find_model(f"meta-llama/{name}")
    kinds = {w.path.rpartition(".")[2]: w.format for w in model.layers[60].weights}
    assert kinds["q_proj"] is None
    assert kinds["up_proj"] is not None


@pytest.mark.parametrize(
    "name",
    ["H20", "L20", "A16", "RTX 4060", "RTX 4060 Ti", "RTX 5070 Ti", "RTX 5080", "RX 7900 XT", "RX 7900 XTX",
     "RX 9070 XT", "MI355X", "B300", "GB300", "Jetson AGX Thor", "RTX PRO 4000 Blackwell", "RTX 4090 48GB", "H200 NVL",
     "RTX PRO 6000 Blackwell Max-Q", "H800", "A2", "MI210", "MI250X", "Tesla P100-PCIE-16GB", "RTX 4070", "RTX 4070 Ti",
     "RTX 4070 SUPER", "RTX 2080 Ti"],
)  # fmt: skip
def test_gpus_that_people_have_are_known(name: str) -> None:
    gpu = find_gpu(name)
    assert gpu.reported_bytes > 6 * 2**30
    assert gpu.source


def test_three_hundred_checkpoints_are_bundled_each_with_its_source() -> None:
    entries = {**load_models(), **_further_models()}
    assert len(entries) >= 300
    for name, entry in entries.items():
        assert entry["source"], name
        assert read_entry(name).cannot_size is None, name


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("BAAI/bge-m3", 0.568), ("BAAI/bge-reranker-v2-m3", 0.568), ("intfloat/multilingual-e5-large", 0.560),
        ("state-spaces/mamba-2.8b-hf", 2.768), ("ai21labs/AI21-Jamba-Large-1.6", 398.6), ("google/flan-t5-xxl", 11.14),
        ("OpenGVLab/InternVL3-78B-hf", 78.4), ("mistral-community/pixtral-12b", 12.68),
        ("openai/whisper-large-v3", 1.543), ("tencent/Hunyuan-A13B-Instruct", 80.39), ("baidu/ERNIE-4.5-21B-A3B-PT", 21.83),
        ("mistralai/Mistral-Large-Instruct-2411", 122.6), ("ByteDance-Seed/Seed-OSS-36B-Instruct", 36.15),
        ("google/gemma-7b-it", 8.538), ("microsoft/phi-2", 2.780), ("bigcode/starcoder2-15b", 15.96),
        ("Qwen/Qwen2-VL-72B-Instruct", 73.41), ("CohereForAI/c4ai-command-r-plus", 103.8), ("THUDM/glm-4-9b-chat", 9.400),
        ("nvidia/Llama-3.1-Nemotron-70B-Instruct-HF", 70.55), ("deepseek-ai/deepseek-moe-16b-base", 16.38),
    ],
)  # fmt: skip
def test_models_that_people_deploy_are_found_offline(name: str, billions: float) -> None:
    assert find_model(name).num_parameters / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("lama-3.1-8b-instrct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("qwen/qwen3-8c", "Qwen/Qwen3-8B"),
        ("somebody/bge-m4", "BAAI/bge-m3"),
        ("DeepSeek-V33", "deepseek-ai/DeepSeek-V3"),
    ],
)
def test_a_name_that_is_nearly_right_is_told_what_was_meant(name: str, meant: str) -> None:
    with pytest.raises(UsageError) as error:
        find_model(name)
    assert meant in (error.value.hint or "")


def test_qwens_own_files_in_8_bit_are_in_blocks_as_all_that_are_bundled() -> None:
    """28.51 GiB were printed (github:Grigoriy-V/local-multimodal-agent)."""
    model = find_model("Qwen/Qwen3.8-27B-FP8")
    assert model.quantization is not None
    assert model.quantization.default.name == "fp8-block"
    assert stored_bytes(model) / 2**30 == pytest.approx(28.51, rel=0.01)
    own = [
        entry["config"]["quantization_config"]
        for name, entry in load_models().items()
        if name.startswith("Qwen/") and name.endswith("-FP8")
    ]
    assert len(own) == 3
    assert all(each["weight_block_size"] == [128, 128] for each in own)


@pytest.mark.parametrize(
    ("name", "gib", "form"),
    [
        ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int8", 71.57, "gptq"), ("Qwen/Qwen2.5-32B-Instruct-GPTQ-Int8", 32.65, "gptq"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", 8.25, "gptq"), ("unsloth/gpt-oss-20b-BF16", 38.96, None),
        ("unsloth/gpt-oss-120b-BF16", 217.6, None), ("me/Qwen3-8B-8bit", 8.79, "bitsandbytes"),
        ("me/Qwen3-8B-bnb-8bit", 8.79, "bitsandbytes"), ("me/Qwen3-8B-tuned-GPTQ-Int8", 8.94, "gptq"),
        ("me/Qwen3-8B-int8", 8.79, "int8"), ("me/Qwen3-8B-W8A16", 8.79, "int8-weight-only"),
        ("me/Qwen3-8B-MXFP8", 8.99, "mxfp8"), ("Qwen/Qwen3-8B-Q8_0-GGUF", 8.11, "gguf"), ("Qwen/Qwen3-8B-Q3_K_M-GGUF", 3.81, "gguf"),
        ("me/Qwen3-8B-BF16-GGUF", 15.26, "gguf"), ("me/Qwen3-8B-fp16.gguf", 15.26, "gguf"), ("me/Qwen3-8B-tuned-F16-GGUF", 15.26, "gguf"),
        ("me/Qwen3-8B-GPTQ-Int4", 5.68, "gptq"), ("me/DeepSeek-V3-BF16", 1249.9, None),
    ],
)  # fmt: skip
def test_the_bits_in_a_name_are_those_that_are_sized(
    name: str, gib: float, form: str | None
) -> None:
    model = find_model(name)
    assert stored_bytes(model) / 2**30 == pytest.approx(gib, rel=0.002)
    assert (None if model.quantization is None else model.quantization.method) == form
    assert any("is assumed" in note or "is a fine-tune" in note for note in model.notes)


@pytest.mark.parametrize(
    "ending",
    ["2bit", "3bit", "1.58bit", "6-bit", "EXL2", "4.0bpw", "HQQ", "W4A4", "SmoothQuant", "AutoRound",
     "quantized", "GPTQ-3bit", "AWQ-8bit", "GPTQ-Int4-g32", "UD-Q4_K_XL", "tuned-HQQ", "compressed-tensors"],
)  # fmt: skip
def test_a_quantization_whose_size_the_name_does_not_tell_is_refused(ending: str) -> None:
    with pytest.raises(UsageError, match="says a quantization that is not sized offline") as error:
        find_model(f"me/Qwen3-8B-{ending}")
    assert "without --offline" in (error.value.hint or "")


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("me/Qwen3-8B-GGUF:Q4_K_M", "me/Qwen3-8B-Q4_K_M-GGUF"), ("Qwen/Qwen3-8B-GGUF:bf16", "Qwen/Qwen3-8B-BF16-GGUF"),
        ("ggml-org/gpt-oss-20b-GGUF:gpt-oss-20b-MXFP4", "ggml-org/gpt-oss-20b-MXFP4-GGUF"),
    ],
)  # fmt: skip
def test_a_type_behind_a_colon_is_that_of_the_gguf_file(name: str, same: str) -> None:
    found, other = find_model(name), find_model(same)
    assert found.name == name
    assert found.quantization == other.quantization
    assert any(f"the checkpoint {name} itself is not known" in note for note in found.notes)


@pytest.mark.parametrize(
    "repository", ["Qwen/Qwen3-14B", "Qwen/Qwen3-14B-AWQ", "Qwen/Qwen3-14B-FP8"]
)
def test_a_type_behind_a_repository_that_has_no_gguf_files_by_its_name_is_refused(
    repository: str,
) -> None:
    with pytest.raises(UsageError, match=f"by its name {repository} has no GGUF files") as refused:
        find_model(f"{repository}:Q4_K_M")
    assert f"{repository}-GGUF:Q4_K_M" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Qwen/Qwen3-8B:latest", "'latest' is no type of GGUF files"),
        ("unsloth/Qwen3-8B-GGUF:UD-Q4_K_XL", "'UD-Q4_K_XL' is no type of GGUF files"),
        ("unsloth/Qwen3-8B-GGUF:UD-Q4_K_M", "'UD-Q4_K_M' is no type of GGUF files"),
        ("Qwen/Qwen3-8B:", "a name of the Hub has no ':'"),
        (":Q4_K_M", "a name of the Hub has no ':'"),
    ],
)
def test_what_is_no_type_behind_a_colon_is_refused(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as error:
        find_model(name)
    assert error.value.hint


def test_files_for_apple_silicon_are_not_sized_by_another_method() -> None:
    with pytest.raises(UsageError, match="not sized offline"):
        find_model("mlx-community/Qwen3-8B-4bit")
    assert find_model("mlx-community/Qwen3-8B-bf16").quantization is None


@pytest.mark.parametrize(
    ("name", "reason", "meant"),
    [
        ("meta-llama/Llama-3.1-8B-Instrct", "nearly 'instruct'", "meta-llama/Llama-3.1-8B-Instruct"),
        ("me/Llama-3.1-8B-Instrct", "nearly 'instruct'", "meta-llama/Llama-3.1-8B-Instruct"),
        ("meta-llama/Llama-3.1-8B-Instruct-70B", "another size", "meta-llama/Llama-3.1-70B-Instruct"),
        ("foo/Qwen3-8B-4x8B", "another size", "Qwen/Qwen3-8B"), ("foo/Qwen3-8B-MoE-4x8B", "another kind", "Qwen/Qwen3-8B"),
        ("foo/Qwen3-8B-vision", "another kind", "Qwen/Qwen3-8B"), ("Qwen/Qwen3-8B-cooking", "names none", "Qwen/Qwen3-8B"),
        ("Qwen3-8B-cooking", "names none", "Qwen/Qwen3-8B"), ("gogle/gemma-3-27b-it", "nearly 'google'", "google/gemma-3-27b-it"),
        ("gogle/gemma-3-27b-it-AWQ", "nearly 'google'", "google/gemma-3-27b-it"),
    ],
)  # fmt: skip
def test_a_name_that_is_misspelt_or_of_another_model_is_no_fine_tune(
    name: str, reason: str, meant: str
) -> None:
    with pytest.raises(UsageError, match=reason) as error:
        find_model(name)
    assert meant in (error.value.hint or "")


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B\x07", "Qwen/Qwen3-8B-\x1b[31mtuned"])
def test_a_name_with_control_characters_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="control characters") as error:
        find_model(name)
    assert error.value.message.isprintable()


@pytest.mark.parametrize(
    "name",
    [
        "unsloth/gemma-3-27b-it",
        "me/Qwen3-8B-cooking",
        "Qwen/Qwen3-8B-2507",
        "me/Qwen3.6-27B-vision-tuned",
    ],
)
def test_another_owners_words_and_an_owners_dates_are_taken(name: str) -> None:
    assert find_model(name).cannot_size is None


@pytest.mark.parametrize("name", ["openai/shap-e", "acme/bar-v2", "acme/foo-large-v2"])
def test_a_name_of_another_kind_is_not_suggested(name: str) -> None:
    with pytest.raises(UsageError) as error:
        find_model(name)
    assert "Did you mean" not in (error.value.hint or "")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("Qwen/Qwen3-8B-fp32", "float32"), ("me/Qwen3-8B-Float32", "float32"), ("me/Qwen3-8B-tuned-fp32", "float32"),
        ("somebody/gpt-oss-20b-f32", "float32"), ("me/Qwen3-8B-F32-GGUF", "float32"), ("bigcode/starcoder2-3b", "float32"), ("me/starcoder2-3b-bf16", "bfloat16"),
        ("me/Qwen3-8B-float16", "bfloat16"),
    ],
)  # fmt: skip
def test_the_type_in_a_name_is_that_of_the_stored_weights(name: str, dtype: str) -> None:
    model = find_model(name)
    assert (model.dtype, model.quantization) == (dtype, None)
    assert bytes_of_files(model) == model.num_parameters * (4 if dtype == "float32" else 2)
    loaded = plan(model, find_gpu("h100-sxm"), 1, EngineParameters()).weights_bytes_per_gpu
    assert loaded == pytest.approx(model.num_parameters * 2, rel=0.01)  # vLLM halves float32


def test_weights_that_a_name_says_are_in_float32_stay_so_where_the_engine_keeps_them() -> None:
    flags = EngineParameters(engine="exo")
    full, half = (
        plan(find_model(name), find_gpu("h100-sxm"), 1, flags).weights_bytes_per_gpu
        for name in ("me/Qwen3-8B-fp32", "Qwen/Qwen3-8B")
    )
    assert full == pytest.approx(2 * half, rel=0.01)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("meta-llama/Llama-3.2-11B-Vision-Instruct", "mllama"), ("RedHatAI/Llama-3.2-90B-Vision-Instruct-FP8-dynamic", "mllama"),
        ("Qwen/Qwen-7B-Chat", "qwen"), ("MiniMaxAI/MiniMax-M1-80k-FP8", "minimax_m1"),
        ("microsoft/Florence-2-large", "florence2"),
    ],
)  # fmt: skip
def test_a_known_model_that_cannot_be_sized_is_not_taken_for_another(
    name: str, architecture: str
) -> None:
    with pytest.raises(
        UsageError, match=f"cannot be sized: its architecture '{architecture}'"
    ) as e:
        find_model(name)
    assert "Did you mean" not in (e.value.hint or "")


def test_what_is_refused_by_name_has_no_family_and_is_not_bundled() -> None:
    kinds = _unsized_models()
    assert len(kinds) > 20
    assert not FAMILIES.keys() & set(kinds.values())
    bundled = {read_words(name.rpartition("/")[2].lower()).rest for name in _further_models()}
    assert not kinds.keys() & bundled


@pytest.mark.parametrize("end", ["a-", "1.", "int", "-4bit"])
def test_a_name_without_end_is_refused_and_not_told_whole(end: str) -> None:
    with pytest.raises(UsageError, match="a model has no name of 400,0") as error:
        find_model("o/Qwen3-8B-" + end * (400_000 // len(end)))
    assert len(str(error.value)) < 300


def test_names_that_anybody_asks_for_are_not_kept_for_ever() -> None:
    for number in range(3000):
        find_model(f"someone/Qwen3-8B-tuned{'x' * (number % 7)}-v{number}")
    for asked in (find_model, read_words):
        assert asked.cache_info().currsize <= 1024


def test_a_base_model_of_unknown_form_is_told_which_names_are_known() -> None:
    with pytest.raises(UsageError) as caught:
        find_model("deepseek-ai/DeepSeek-V3.9-Base")
    assert "deepseek-ai/DeepSeek-V3-Base" in (caught.value.hint or "")
