"""What the files of a model are called, how large they may be, and which of them an engine would load.

Data and pure functions alone. The files are opened by `foreign_files`, because strangers wrote them;
what a model comes to is the planner's work.
"""

from __future__ import annotations

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
