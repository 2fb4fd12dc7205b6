"""The tensors of GGUF files: their types by the name of a file, and sizes against public files and llama.cpp's own list."""

from __future__ import annotations

import pytest

from exo_inference.planner import find_model
from exo_inference.planner.gpu_catalog import MIB
from exo_inference.planner.llama_cpp.tensor_types import BITS, KNOWN, Mix
from exo_inference.planner.llama_cpp.weights import file_bytes
from exo_inference.planner.model.checkpoint import with_gguf
from exo_inference.planner.model.quantization import GGUF_BITS
from exo_inference.planner.model.requantize import with_quantization


@pytest.mark.parametrize(
    ("model", "mix", "gpu", "host"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "Q4_K_M", 4403.49, 281.81),
        ("meta-llama/Llama-3.1-8B-Instruct", "Q4_0", 4155.99, 281.81),
        ("Qwen/Qwen3-4B", "Q4_K_M", 2375.91, 304.28),
        ("Qwen/Qwen3-14B", "Q8_0", 14177.36, 788.24),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "Q4_K_M", 4168.09, 292.36),
    ],
)
def test_tensors_are_those_of_public_files(model: str, mix: str, gpu: float, host: float) -> None:
    tensors = file_bytes(with_quantization(find_model(model), mix))
    on_gpu = sum(layer.total for layer in tensors.layers) + tensors.output
    assert on_gpu / MIB == pytest.approx(gpu, abs=0.01)
    assert tensors.embedding / MIB == pytest.approx(host, abs=0.01)


@pytest.mark.parametrize("name", sorted(KNOWN))
@pytest.mark.parametrize(
    "role", ["q", "k", "v", "o", "down", "expert", "expert-down", "embedding", "output", "other"]
)
def test_every_tensor_of_every_mix_has_a_type(name: str, role: str) -> None:
    mixes = [Mix(name, 32), Mix(name, 32, 8, 8), Mix(name, 80, 8, is_tied=True, is_70b=True)]
    for mix in mixes:
        bits = [
            BITS[mix.kind(role, layer, columns)]
            for layer in (0, 15, 31)
            for columns in (4096, 160, 7)
        ]
        assert all(1.5 < each <= 32 for each in bits)


@pytest.mark.parametrize(
    ("model", "mix", "gigabytes"),
    [
        ("Qwen/Qwen3-4B", "Q5_K_M", 2.89),
        ("Qwen/Qwen3-30B-A3B", "Q6_K", 25.10),
        ("meta-llama/Llama-3.1-70B-Instruct", "Q4_K_M", 42.52),
        ("meta-llama/Llama-3.1-70B-Instruct", "Q3_K_M", 34.27),
        ("meta-llama/Llama-3.1-70B-Instruct", "IQ3_M", 31.94),
        ("openai/gpt-oss-20b", "Q6_K", 12.04),
        ("openai/gpt-oss-20b", "Q4_K_M", 11.6),
        ("openai/gpt-oss-120b", "F16", 65.37),
    ],
)
def test_files_are_as_large_as_public_ones(model: str, mix: str, gigabytes: float) -> None:
    """Sizes are those that pages of bartowski's and unsloth's repositories list; they have metadata, too."""
    tensors = file_bytes(with_quantization(find_model(model), mix))
    total = sum(layer.total for layer in tensors.layers) + tensors.embedding
    total += 0 if tensors.is_tied else tensors.output
    assert total / 1e9 == pytest.approx(gigabytes, rel=0.003)


@pytest.mark.parametrize(
    "mix", [each for each in GGUF_BITS if each[-2:] not in ("_0", "_1") and each != "MXFP4_MOE"]
)
def test_types_add_up_to_the_bits_that_llama_cpp_lists(mix: str) -> None:
    """Those of Q4_0 to Q5_1 are of pure files; the list is of Llama-3.1-8B."""
    model = with_quantization(find_model("meta-llama/Llama-3.1-8B-Instruct"), mix)
    tensors = file_bytes(model)
    total = sum(layer.total for layer in tensors.layers) + tensors.embedding + tensors.output
    assert 8 * total / model.num_parameters == pytest.approx(GGUF_BITS[mix], abs=6e-4)


@pytest.mark.parametrize(
    "name",
    [
        "ggml-org/gpt-oss-20b-GGUF",
        "unsloth/gpt-oss-20b-GGUF",
        "me/gpt-oss-20b-MXFP4-GGUF",
        "gpt-oss-20b",
    ],
)
def test_gguf_files_of_gpt_oss_are_in_mxfp4(name: str) -> None:
    """The size is that of lmstudio-community/gpt-oss-20b-GGUF/gpt-oss-20b-MXFP4.gguf."""
    model = find_model(name)
    tensors = file_bytes(model)
    total = sum(layer.total for layer in tensors.layers) + tensors.embedding + tensors.output
    assert total / 1e9 == pytest.approx(12.1096, rel=0.002)
    assert 8 * 12_109_565_632 / model.num_parameters == pytest.approx(
        GGUF_BITS["MXFP4_MOE"], abs=6e-4
    )


def test_layers_of_one_group_have_the_same_types() -> None:
    for name in KNOWN:
        mix, known = Mix(name, 40), {}
        for layer in range(40):
            bits = [BITS[mix.kind(role, layer, 4096)] for role in ("v", "o", "down", "expert-down")]
            assert known.setdefault(mix.group(layer), bits) == bits


def test_rows_that_are_no_whole_blocks_have_another_type() -> None:
    mix = Mix("Q4_K_M", 32)
    assert [mix.kind("q", 9, columns) for columns in (4096, 2880 // 9, 100)] == [
        "Q4_K",
        "Q5_0",
        "F16",
    ]


def test_a_known_file_scales_its_tensors() -> None:
    size = 4_920_739_232
    model = with_gguf(find_model("meta-llama/Llama-3.1-8B-Instruct"), "Llama-Q4_K_M.gguf", size)
    tensors = file_bytes(model)
    total = sum(layer.total for layer in tensors.layers) + tensors.output + tensors.embedding
    assert total == pytest.approx(size, rel=1e-4)
