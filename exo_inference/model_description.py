"""What the files of a model are called, how large they may be, and which of them an engine would load.

Data and pure functions alone. The files are opened by `foreign_files`, because strangers wrote them;
what a model comes to is the planner's work.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from exo_inference.planner.model.architecture import Architecture, read_architecture

CONFIG_NAME = "config.json"
INDEX_NAME = "model.safetensors.index.json"
QUANTIZATION_NAME = "hf_quant_config.json"

MAX_CONFIG_BYTES = 16 * 2**20
"""The largest published config.json has well below 1 MiB."""
MAX_INDEX_BYTES = 64 * 2**20

TOKENIZER_NAME = "tokenizer.json"

GGUF_ENDING = ".gguf"
"""As the adapter in llama.cpp's image looks for it: in small letters."""
GGUF_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})", re.DOTALL)
"""What stands before the ending of a part of a large file."""


def describe(
    config: Mapping[str, Any], quantization: Mapping[str, Any] | None, name: str, source: str
) -> Architecture:
    """Return the model of a config.json, and of a hf_quant_config.json where it has one."""
    inner = quantization.get("quantization") if quantization is not None else None
    more = inner if isinstance(inner, dict) else None
    return read_architecture(config, name=name, hf_quant_config=more, source=source)


def weight_names(names: Iterable[str]) -> list[str]:
    """Return the files that an engine would load, without the original authors' second copy."""
    found = sorted(name for name in names if name.endswith(".safetensors"))
    return [name for name in found if not name.startswith("consolidated")] or found


def holds_gguf_weights(path: str) -> bool:
    """Whether a file is one of weights in GGUF by its name: an encoder of images (`mmproj`) is a file of its own."""
    return path.endswith(GGUF_ENDING) and "mmproj" not in path.rpartition("/")[2].lower()


def gguf_part_path(stem: str, number: int, total: int) -> str:
    """Return the path of a part, of which the first has the number 1."""
    return f"{stem}-{number:05}-of-{total:05}{GGUF_ENDING}"
