"""What the files of a model say about it, for the planner: descriptions alone, never weights.

config.json, hf_quant_config.json, the index, and of each safetensors file the header. The command line
reads models on disk with it, the hub those of the control plane; both map `DescriptionError` to an
error of their own. What a model comes to is the planner's work.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exo_inference.planner import (
    MAX_HEADER_BYTES,
    Architecture,
    TensorSize,
    parse_safetensors_header,
    read_architecture,
    with_gguf,
    with_index,
    with_tensors,
)

CONFIG_NAME = "config.json"
INDEX_NAME = "model.safetensors.index.json"
QUANTIZATION_NAME = "hf_quant_config.json"

MAX_CONFIG_BYTES = 16 * 2**20
"""The largest published config.json has well below 1 MiB."""
MAX_INDEX_BYTES = 64 * 2**20


class DescriptionError(Exception):
    """A file cannot be used; the text names it and says why."""


def read_config(directory: Path) -> dict[str, Any]:
    """Return the config.json of a model.

    Raises:
        DescriptionError: it cannot be read.
    """
    return read_object(directory / CONFIG_NAME, MAX_CONFIG_BYTES)


def read_quantization(directory: Path) -> dict[str, Any] | None:
    """Return ModelOpt's hf_quant_config.json; None where a model has none.

    Raises:
        DescriptionError: it cannot be read.
    """
    file = directory / QUANTIZATION_NAME
    return read_object(file, MAX_CONFIG_BYTES) if file.is_file() else None


def describe(
    config: Mapping[str, Any], quantization: Mapping[str, Any] | None, name: str, source: str
) -> Architecture:
    """Return the model of a config.json, and of a hf_quant_config.json where it has one."""
    inner = quantization.get("quantization") if quantization is not None else None
    more = inner if isinstance(inner, dict) else None
    return read_architecture(config, name=name, hf_quant_config=more, source=source)


def with_checkpoint(model: Architecture, directory: Path) -> Architecture:
    """Lay the sizes of a checkpoint over its architecture; its files beat its index.

    Raises:
        DescriptionError: a file cannot be read, or is damaged.
    """
    if model.cannot_size is not None:
        return model
    files = weight_files(directory)
    if files:
        return with_tensors(model, [tensor for file in files for tensor in _read_tensors(file)])
    packed = sorted(directory.glob("*.gguf"))
    if packed:
        name = packed[
            0
        ].name  # of several, the engine loads the one it is told; parts belong together
        parts = [file for file in packed if _PART.sub("", file.name) == _PART.sub("", name)]
        return with_gguf(model, name, sum(file.stat().st_size for file in parts))
    index = directory / INDEX_NAME
    return with_index(model, read_object(index, MAX_INDEX_BYTES)) if index.is_file() else model


_PART = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)")


def weight_files(directory: Path) -> list[Path]:
    """Return the files that an engine would load, without the original authors' second copy."""
    found = sorted(directory.glob("*.safetensors"))
    return [file for file in found if not file.name.startswith("consolidated")] or found


def read_object(file: Path, max_bytes: int) -> dict[str, Any]:
    """Return the JSON object of a file.

    Raises:
        DescriptionError: it cannot be read, is too large, or holds none.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(max_bytes + 1)
    except OSError as error:
        raise _unreadable(file, error) from error
    if len(data) > max_bytes:
        raise DescriptionError(f"{file} is larger than {max_bytes // 2**20} MiB")
    return parse_object(data, str(file))


def parse_object(data: bytes, name: str) -> dict[str, Any]:
    """Return a JSON object.

    Args:
        data: what was read.
        name: of the file.

    Raises:
        DescriptionError: it is none.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DescriptionError(f"{name} is not JSON: {str(error)[:200]}") from error
    if not isinstance(value, dict):
        raise DescriptionError(f"{name} holds {type(value).__name__}, expected an object")
    return value


def _read_tensors(file: Path) -> list[TensorSize]:
    try:
        with file.open("rb") as stream:
            start = stream.read(8)
            length = int.from_bytes(start, "little")
            return parse_safetensors_header(start + stream.read(min(length, MAX_HEADER_BYTES)))
    except OSError as error:
        raise _unreadable(file, error) from error
    except ValueError as error:
        reason = str(error)[:200]
        raise DescriptionError(f"{file} is not a safetensors file: {reason}") from error


def _unreadable(file: Path, error: OSError) -> DescriptionError:
    return DescriptionError(f"cannot read {file}: {error.strerror or error}")
