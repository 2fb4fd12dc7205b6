"""Models on disk, as small as they can be."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
}


def write_safetensors(path: Path, tensors: dict[str, tuple[int, ...]]) -> None:
    """Write a file of BF16 zeros with these shapes."""
    header, offset = {}, 0
    for name, shape in tensors.items():
        size = 2
        for length in shape:
            size *= length
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    data = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(data)) + data + bytes(offset))


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A directory with a config.json and a checkpoint of one tensor of 3 MB."""
    directory = tmp_path / "small-llama"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    write_safetensors(directory / "model.safetensors", {"model.embed_tokens.weight": (1000, 1500)})
    return directory
