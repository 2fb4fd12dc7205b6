"""INT8 equals the same model with its weights turned back into numbers, and is close to the plain one."""

from __future__ import annotations

import shutil

import pytest
import torch
from exo_engine.errors import ConfigurationError, ModelUnusable
from exo_engine.kernels import VARIABLE
from exo_engine.llm import LLM
from exo_engine.sampling_params import SamplingParams
from exo_engine.weight_formats import formats_made_at_load, int8, load_format
from exo_engine.weight_formats.base import NotFinite, Share
from exo_engine.weight_formats.int8 import Int8
from safetensors.torch import load_file, save_file

from ..cpu_kernels import PATHS, needs_kernels

CPU = torch.device("cpu")
OPTIONS = {"device": "cpu", "block_size": 4, "max_model_len": 128}
FAMILIES = ["llama-biases", "mistral-window", "qwen2", "qwen3", "qwen3-moe"]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def dequantized(weight: torch.Tensor, scale_dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What INT8 makes of a matrix, in float32, written out plainly."""
    rows = []
    for row in weight.float():
        scale = (row.abs().max() / 127).to(scale_dtype).float() if row.any() else torch.ones(())
        rows.append((row / scale).round().clamp(-127, 127) * scale)
    return torch.stack(rows)


def filled(weight, dtype, columns=slice(None)):
    matrix = Int8(len(weight), weight[0, columns].numel(), dtype=dtype, device=CPU)
    matrix.load("weight", weight, Share(slice(0, len(weight)), slice(0, len(weight)), columns))
    matrix.finish()
    return matrix


@torch.inference_mode()
@pytest.mark.parametrize("slab", [1, 100, 2**20], ids="slab{}".format)
@pytest.mark.parametrize("num_inputs", [1, 8, 9, 40])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_product_is_that_of_the_dequantized_matrix(dtype, num_inputs, slab, monkeypatch):
    monkeypatch.setitem(int8._SLAB_WEIGHTS, "cpu", slab)
    monkeypatch.setitem(int8._LOADING_SLAB_WEIGHTS, "cpu", slab)
    torch.manual_seed(0)
    weight = torch.randn(50, 64) * torch.logspace(-4, 1, 50).unsqueeze(1)
    weight[7] = 0.0
    inputs, bias = torch.randn(num_inputs, 64).to(dtype), torch.randn(50).to(dtype)
    matrix = filled(weight, dtype)
    exact = dequantized(weight, torch.float32 if dtype == torch.float16 else dtype)
    expected = inputs.float() @ exact.T + bias.float()
    # Of the sums' own size: in 16 bits each of them is rounded.
    tolerance = 2e-6 if dtype == torch.float32 else 0.02 if dtype == torch.bfloat16 else 0.003
    error = (matrix.multiply(inputs, bias).float() - expected).abs()
    size = inputs.float().abs() @ exact.abs().T + bias.float().abs()
    assert (error / size).max() < tolerance
    largest = weight.abs().amax(dim=1, keepdim=True)
    assert ((exact - weight).abs() <= largest * 0.0075).all(), (
        "half a step, and rounding of the scale"
    )


@torch.inference_mode()
@pytest.mark.parametrize("kernels", [*PATHS[:1], "off"])
@pytest.mark.parametrize("columns", [8, 24, 40, 72])
def test_rows_of_any_length_are_multiplied(columns, kernels, monkeypatch):
    monkeypatch.setenv(VARIABLE, kernels)
    torch.manual_seed(0)
    weight, inputs = torch.randn(16, columns), torch.randn(3, columns).bfloat16()
    expected = inputs.float() @ dequantized(weight, torch.bfloat16).T
    found = filled(weight, torch.bfloat16).multiply(inputs, None).float()
    assert (found - expected).norm() < 0.02 * expected.norm()


@torch.inference_mode()
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_a_plain_model_with_dequantized_weights(
    tiny_model, prompts, tmp_path, family
):
    from safetensors.torch import load_file, save_file

    source = tiny_model(family).path
    path = shutil.copytree(source, tmp_path / "dequantized") / "model.safetensors"
    tensors = load_file(path)
    for name, tensor in tensors.items():
        if name.endswith("_proj.weight"):
            tensors[name] = dequantized(tensor).to(tensor.dtype)
    save_file(tensors, path, metadata={"format": "pt"})
    greedy = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    reference = LLM(path.parent, dtype="float32", **OPTIONS).generate(prompts, greedy)
    for chunks in ({}, {"max_num_batched_tokens": 7, "max_num_seqs": 4}):
        found = LLM(source, dtype="float32", quantization="int8", **OPTIONS, **chunks)
        tokens = [each.token_ids for each in found.generate(prompts, greedy)]
        assert tokens == [each.token_ids for each in reference]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_log_probabilities_stay_near_the_plain_models(tiny_model, prompts, dtype):
    path = tiny_model("qwen3").path
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=3)
    plain = LLM(path, dtype="float32", **OPTIONS).generate(prompts, params)
    rough = LLM(path, dtype=dtype, quantization="int8", **OPTIONS).generate(prompts, params)
    for a, b in zip(plain, rough, strict=True):
        found = dict(b.logprobs[0].top)[a.token_ids[0]]
        assert found == pytest.approx(a.logprobs[0].logprob, abs=0.5)


def test_linear_layers_take_a_byte_per_weight_and_a_scale_per_row(tiny_model):
    path = tiny_model("llama").path
    plain = LLM(path, dtype="float32", **OPTIONS).core.measurements.weights_bytes
    small = LLM(path, dtype="float32", quantization="int8", **OPTIONS).core.measurements
    rows_and_columns = [(48 + 2 * 16, 48), (48, 48), (2 * 80, 48), (48, 80)]
    saved = 3 * sum(3 * rows * columns - 4 * rows for rows, columns in rows_and_columns)
    assert plain - small.weights_bytes == saved


def test_an_unknown_quantization_is_refused(tiny_model):
    choices = ", ".join(formats_made_at_load())
    assert {"int8", "int4"} < set(formats_made_at_load())
    with pytest.raises(ConfigurationError, match=f"must be one of {choices}, got 'int3'") as caught:
        LLM(tiny_model("llama").path, quantization="int3", **OPTIONS)
    assert caught.value.param == "quantization"


@needs_kernels
@torch.inference_mode()
@pytest.mark.parametrize("slab", [1, 64 * 64, 2**18])
@pytest.mark.parametrize("num_rows", [2, 63, 64, 200])
def test_a_matrix_of_one_tensor_is_packed_as_it_would_be_of_several(num_rows, slab, monkeypatch):
    """In one tensor no copy of the codes is made beside what is packed."""
    monkeypatch.setitem(int8._LOADING_SLAB_WEIGHTS, "cpu", slab)
    weight = torch.randn(num_rows, 64) * torch.logspace(-4, 1, num_rows).unsqueeze(1)
    weight[num_rows // 2] = 0.0
    at_once = filled(weight, torch.bfloat16)
    assert at_once.weight.is_meta
    parts = Int8(num_rows, 64, dtype=torch.bfloat16, device=CPU)
    for rows in (slice(0, num_rows // 2), slice(num_rows // 2, num_rows)):
        parts.load("weight", weight, Share(rows, rows, slice(0, 64)))
    parts.finish()
    assert at_once._packed.scale == parts._packed.scale
    assert torch.equal(at_once._packed.storage, parts._packed.storage)


@pytest.mark.parametrize("name", formats_made_at_load())
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_numbers_that_are_not_finite_are_refused(name, wrong, dtype):
    weight = torch.randn(70, 128)
    weight[3, 100] = wrong
    every = Share(slice(0, 70), slice(0, 70), slice(0, 128))
    with pytest.raises(NotFinite, match="not finite"):
        load_format(name)(70, 128, dtype=dtype, device=CPU).load("weight", weight, every)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize(
    "name",
    [
        # Without kernels it stays plain, and plain numbers are not looked at.
        pytest.param("model.embed_tokens.weight", marks=needs_kernels),
        "model.layers.0.mlp.up_proj.weight",
    ],
)
def test_a_damaged_checkpoint_is_refused_with_the_tensors_name(
    tiny_model, tmp_path, quantization, name
):
    path = shutil.copytree(tiny_model("llama3-tied").path, tmp_path / "model")
    tensors = load_file(path / "model.safetensors")
    tensors[name][1, 1] = torch.nan
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(ModelUnusable, match=rf"tensor {name} has numbers that are not finite"):
        LLM(path, dtype="bfloat16", quantization=quantization, **OPTIONS)
