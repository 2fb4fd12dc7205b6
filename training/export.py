"""Write a model folder: bfloat16 weights, configuration, tokenizer, chat template.

Used by `train.py`. The model card (README.md) is written by `card.py`, once the figures are known.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from training.shapes import CHAT_TEMPLATE, GENERATION_CONFIG, TOKENIZER_CONFIG, Shape


def write_model(
    folder: Path, shape: Shape, weights: dict[str, torch.Tensor], tokenizer: Tokenizer
) -> None:
    """Write everything but the card; `weights` is a float32 state dict with tied embeddings."""
    folder.mkdir(parents=True, exist_ok=True)
    rounded = {
        name: tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in weights.items()
        if name != "lm_head.weight"
    }
    save_file(rounded, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    _write_json(folder / "config.json", shape.config())
    _write_json(folder / "generation_config.json", GENERATION_CONFIG)
    _write_json(folder / "tokenizer_config.json", TOKENIZER_CONFIG)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")


def folder_size_bytes(folder: Path) -> int:
    """Add up all files of a model folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
