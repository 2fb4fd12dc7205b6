"""Which files of a repository are fetched: one copy of the weights, and what goes with them."""

from __future__ import annotations

import pytest

from exo_inference.hub.base import ModelFile
from exo_inference.hub.huggingface_files import choose_files

ALWAYS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
SHARDS = tuple(f"model-{n:05}-of-00003.safetensors" for n in (1, 2, 3))
INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("weights", "others", "chosen"),
    [
        pytest.param(("model.safetensors",), (), ("model.safetensors",), id="single"),
        pytest.param((*SHARDS, INDEX), (), (*SHARDS, INDEX), id="sharded"),
        pytest.param(
            (*SHARDS, INDEX, "consolidated.safetensors"),
            ("params.json",),
            (*SHARDS, INDEX, "params.json"),
            id="sharded rather than consolidated",
        ),
        pytest.param(
            (*SHARDS, INDEX, "model.safetensors"), (), (*SHARDS, INDEX), id="not both of them"
        ),
        pytest.param(
            ("model.safetensors", "model.fp16.safetensors"),
            (),
            ("model.safetensors",),
            id="not the variant",
        ),
        pytest.param(
            ("consolidated.safetensors",),
            (),
            ("consolidated.safetensors",),
            id="consolidated alone",
        ),
        pytest.param(
            ("model.safetensors",),
            (
                "pytorch_model.bin",
                "model.gguf",
                "onnx/model.onnx",
                "original/consolidated.00.pth",
                "tf_model.h5",
                "README.md",
                ".gitattributes",
                "modeling_custom.py",
                "sub/model.safetensors",
                "training_args.bin",
            ),
            ("model.safetensors",),
            id="no copies for other programs",
        ),
        pytest.param(
            ("model.safetensors",),
            ("chat_template.jinja", "additional_chat_templates/tools.jinja", "tokenizer.model"),
            (
                "model.safetensors",
                "chat_template.jinja",
                "additional_chat_templates/tools.jinja",
                "tokenizer.model",
            ),
            id="chat templates and tokenizers",
        ),
        pytest.param(
            ("model.safetensors",),
            (
                "modules.json",
                "sentence_bert_config.json",
                "sentence_xlm-roberta_config.json",
                "config_sentence_transformers.json",
                "1_Pooling/config.json",
                "2_Dense/model.safetensors",
                "onnx/config.json",
            ),
            (
                "model.safetensors",
                "modules.json",
                "sentence_bert_config.json",
                "sentence_xlm-roberta_config.json",
                "config_sentence_transformers.json",
                "1_Pooling/config.json",
            ),
            id="how a text becomes a vector",
        ),
    ],
)
def test_one_copy_of_the_weights_is_chosen(
    weights: tuple[str, ...], others: tuple[str, ...], chosen: tuple[str, ...]
) -> None:
    files = [ModelFile(name, 10 + i) for i, name in enumerate((*weights, *others, *ALWAYS))]
    assert {file.path for file in choose_files("a/b", files)} == {*chosen, *ALWAYS}


def test_small_files_come_first() -> None:
    files = [ModelFile("model.safetensors", 10**9), ModelFile("config.json", 100)]
    assert [f.path for f in choose_files("a/b", files)] == ["config.json", "model.safetensors"]
