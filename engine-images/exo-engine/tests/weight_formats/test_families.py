"""Every format, in every kind of layer: the same tokens as a plain model with the weights turned back."""

from __future__ import annotations

import itertools
import re
import shutil

import pytest
import torch
from exo_engine.llm import LLM
from exo_engine.sampling_params import SamplingParams
from exo_engine.weight_formats import formats_made_at_load, load_format
from exo_engine.weight_formats.base import Share

OPTIONS = {"device": "cpu", "block_size": 4, "max_model_len": 128}
GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
# The rest is plain: routers, gates of shared experts, and what latents are expanded with.
QUANTIZED = re.compile(
    r"(?<!\.kv_b)(_proj|_projection|_input_gate|in_proj_\w+|kv_a_proj_with_mqa)(\.weight)?$"
)
FAMILIES = (
    *("deepseek-v2-groups", "deepseek-v3", "gemma2", "gemma3", "gemma4", "gpt-oss"),
    *("qwen3.5", "qwen3-next", "qwen3-moe-some-layers"),
)
QUICK = [("deepseek-v3", "int8"), ("gemma4", "int8"), ("gpt-oss", "int4")]


def turned_back(name: str, weight: torch.Tensor) -> torch.Tensor:
    """Return the numbers (outputs, inputs) that a format makes of such numbers."""
    whole = slice(0, len(weight))
    matrix = load_format(name)(*weight.shape, dtype=torch.float32, device=torch.device("cpu"))
    matrix.load("weight", weight, Share(whole, whole, slice(0, weight.shape[1])))
    matrix.finish()
    return matrix.multiply(torch.eye(weight.shape[1]), None).T.contiguous()


def turn_back_experts(name: str, tensor: torch.Tensor) -> torch.Tensor:
    return torch.stack([turned_back(name, each.T.contiguous()).T for each in tensor])


def turn_back_all(name: str, key: str, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.ndim == 2:
        return turned_back(name, tensor)
    if "gate_up" in key:  # experts as gpt-oss has them: inputs by outputs, two matrices' in turns
        turned = torch.empty_like(tensor)
        for place in range(2):
            turned[:, :, place::2] = turn_back_experts(name, tensor[:, :, place::2])
        return turned
    if "down" in key:
        return turn_back_experts(name, tensor)
    raise AssertionError(f"{key} has {tensor.ndim} dimensions")


@torch.inference_mode()
@pytest.mark.parametrize(
    ("family", "name"),
    [
        pytest.param(*pair, marks=[] if pair in QUICK else pytest.mark.slow)
        for pair in itertools.product(FAMILIES, formats_made_at_load())
    ],
)
def test_tokens_are_those_of_the_weights_turned_back(tiny_model, prompts, tmp_path, family, name):
    from safetensors.torch import load_file, save_file

    source = tiny_model(family).path
    path = shutil.copytree(source, tmp_path / "turned-back") / "model.safetensors"
    tensors = load_file(path)
    changed = [key for key in tensors if QUANTIZED.search(key)]
    for key in changed:
        tensors[key] = turn_back_all(name, key, tensors[key]).contiguous()
    save_file(tensors, path, metadata={"format": "pt"})
    plain, packed = (
        LLM(each, dtype="float32", **OPTIONS, **options)
        for each, options in ((path.parent, {}), (source, {"quantization": name}))
    )
    wanted = [each.token_ids for each in plain.generate(prompts, GREEDY)]
    assert [each.token_ids for each in packed.generate(prompts, GREEDY)] == wanted
    assert packed.core.measurements.weights_bytes < plain.core.measurements.weights_bytes
    exact = LLM(source, dtype="float32", **OPTIONS).generate(prompts, GREEDY)
    assert wanted != [each.token_ids for each in exact], (
        "a format that changes nothing proves nothing"
    )
