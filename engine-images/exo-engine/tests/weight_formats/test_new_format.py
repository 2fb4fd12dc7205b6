"""A format that this file brings reads checkpoints in its own form, with no edit of a model or layer."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from exo_engine.errors import ConfigurationError, ModelUnusable
from exo_engine.llm import LLM
from exo_engine.models.config_file import read_spec
from exo_engine.models.weights import check_checkpoint
from exo_engine.sampling_params import SamplingParams
from exo_engine.weight_formats import FORMATS, FormatEntry
from exo_engine.weight_formats.base import Stored, WeightFormat
from safetensors.torch import load_file, save_file

OPTIONS = {"dtype": "float32", "device": "cpu", "block_size": 4, "max_model_len": 128}


class Nibbles(WeightFormat):
    """Two weights in a byte, stored transposed; packed anew once all parts of a matrix are there."""

    def __init__(self, rows, columns, *, dtype, device):
        self.shape = (rows, columns)
        self.parts, self.packed = [], None
        self.scale = torch.empty(rows, dtype=dtype, device=device)

    @classmethod
    def stored(cls, rows, columns):
        return {
            "packed": Stored((columns // 2, rows), ("U8",)),
            "scale": Stored((rows,), ("F32",)),
        }

    def load(self, suffix, tensor, share):
        if suffix == "scale":
            self.scale[share.target].copy_(tensor[share.rows])
        else:
            half = slice(share.columns.start // 2, share.columns.stop // 2)
            self.parts.append(tensor[half, share.rows].t())

    def finish(self):
        self.packed = torch.cat(self.parts)
        self.parts.clear()

    def multiply(self, inputs, bias):
        pairs = torch.stack([self.packed % 16, self.packed // 16], dim=-1).flatten(1)
        return F.linear(inputs, (pairs.float() - 8) * self.scale.unsqueeze(1), bias)

    @property
    def num_bytes(self):
        return self.shape[0] * self.shape[1] // 2 + self.scale.nbytes


@pytest.fixture
def nibble_model(tiny_model, tmp_path, monkeypatch):
    """Return a model in the new form, and the same one in plain numbers."""
    entry = FormatEntry(f"{__name__}:Nibbles", quant_methods=("nibbles",))
    monkeypatch.setitem(FORMATS, "nibbles", entry)
    source = tiny_model("qwen2").path
    packed, plain = (shutil.copytree(source, tmp_path / name) for name in ("packed", "plain"))
    tensors = load_file(source / "model.safetensors")
    ours, numbers = {}, dict(tensors)
    for name, tensor in tensors.items():
        stem = name.removesuffix(".weight")
        if not name.endswith("_proj.weight"):
            ours[name] = tensor
            continue
        scale = tensor.abs().amax(dim=1) / 7
        codes = ((tensor / scale.unsqueeze(1)).round() + 8).to(torch.uint8)
        ours[f"{stem}.packed"] = (codes[:, ::2] + 16 * codes[:, 1::2]).t().contiguous()
        ours[f"{stem}.scale"] = scale
        numbers[name] = (codes.float() - 8) * scale.unsqueeze(1)
    save_file(ours, packed / "model.safetensors")
    save_file(numbers, plain / "model.safetensors")
    config = json.loads((packed / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "nibbles"}
    (packed / "config.json").write_text(json.dumps(config))
    return packed, plain


def test_packed_checkpoint_gives_the_tokens_of_its_numbers(nibble_model, prompts):
    packed, plain = nibble_model
    greedy = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    found, expected = (LLM(path, **OPTIONS) for path in (packed, plain))
    tokens = [each.token_ids for each in expected.generate(prompts, greedy)]
    assert [each.token_ids for each in found.generate(prompts, greedy)] == tokens
    sizes = [each.core.measurements.weights_bytes for each in (found, expected)]
    assert sizes[0] < 0.6 * sizes[1]


def test_what_a_packed_checkpoint_lacks_is_named(nibble_model):
    path = nibble_model[0] / "model.safetensors"
    tensors = load_file(path)
    tensors.pop("model.layers.1.mlp.up_proj.scale")
    save_file(tensors, path)
    spec = read_spec(path.parent)
    with pytest.raises(ModelUnusable, match=r"lacks model.layers.1.mlp.up_proj.scale"):
        check_checkpoint(path.parent, spec, spec.checkpoint_format)


def test_what_is_packed_already_is_not_quantized_again(nibble_model):
    with pytest.raises(ConfigurationError, match="but the checkpoint is nibbles") as caught:
        LLM(nibble_model[0], quantization="int8", **OPTIONS)
    assert caught.value.hint == "Leave --quantization out."
