"""Reads a model from disk for a plan: a config.json, or a directory with its checkpoint.

Only descriptions are read, never weights: of a safetensors file the header alone. Damaged files
are refused with their names, so that no plan is made of half a model.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from exo_inference.errors import UsageError
from exo_inference.planner import (
    Architecture,
    TensorSize,
    parse_safetensors_header,
    read_architecture,
    with_index,
    with_tensors,
)

MAX_CONFIG_BYTES = 16 * 2**20
"""The largest published config.json has well below 1 MiB."""
MAX_INDEX_BYTES = 64 * 2**20
MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors format itself."""

_INDEX = "model.safetensors.index.json"


def read_model(path: Path) -> Architecture:
    """Return the model in a directory, or the one that a config.json describes.

    Raises:
        UsageError: there is nothing, or something in it cannot be read.
    """
    if not path.exists():
        raise UsageError(
            f"--model: {path} does not exist, expected a directory or a config.json",
            hint="To plan a model by its name, use --model-name.",
        )
    directory = path if path.is_dir() else None
    config_file = path if directory is None else path / "config.json"
    if directory is not None and not config_file.is_file():
        raise UsageError(
            f"--model: there is no config.json in {path}",
            hint="Give the directory that the model was saved in, or its config.json.",
        )
    config = _read_object(config_file, MAX_CONFIG_BYTES)
    model = read_architecture(
        config,
        name=_name(config, path),
        hf_quant_config=_quantization(directory) if directory is not None else None,
        source=str(config_file),
    )
    if directory is None or model.cannot_size is not None:
        return model
    return _with_checkpoint(model, directory)


def _name(config: dict[str, Any], path: Path) -> str:
    own = config.get("_name_or_path")
    if isinstance(own, str) and own and not Path(own).is_absolute():
        return own
    resolved = path.resolve()
    return resolved.name if path.is_dir() else resolved.parent.name


def _quantization(directory: Path) -> dict[str, Any] | None:
    """Return ModelOpt's description of a quantized checkpoint, where there is one."""
    file = directory / "hf_quant_config.json"
    if not file.is_file():
        return None
    found = _read_object(file, MAX_CONFIG_BYTES).get("quantization")
    return found if isinstance(found, dict) else None


def _with_checkpoint(model: Architecture, directory: Path) -> Architecture:
    """Lay the sizes of the checkpoint over the architecture; its files beat its index."""
    found = sorted(directory.glob("*.safetensors"))
    # Mistral's own copy of the same weights, which engines do not load.
    files = [file for file in found if not file.name.startswith("consolidated")] or found
    if files:
        return with_tensors(model, _tensors(files))
    index = directory / _INDEX
    return with_index(model, _read_object(index, MAX_INDEX_BYTES)) if index.is_file() else model


def _tensors(files: list[Path]) -> Iterator[TensorSize]:
    for file in files:
        try:
            yield from parse_safetensors_header(_header(file))
        except OSError as exc:
            raise _unreadable(file, exc) from exc
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
            raise UsageError(
                f"--model: {file} is not a safetensors file: {str(exc)[:200]}",
                hint="Fetch the file again, or give the config.json alone.",
            ) from exc


def _header(file: Path) -> bytes:
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        return start + stream.read(min(length, MAX_HEADER_BYTES))


def _read_object(file: Path, max_bytes: int) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            data = stream.read(max_bytes + 1)
    except OSError as exc:
        raise _unreadable(file, exc) from exc
    if len(data) > max_bytes:
        raise UsageError(
            f"--model: {file} is larger than {max_bytes // 2**20} MiB, so it is not a config.json",
            hint="Give the directory of the model, or its config.json.",
        )
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as exc:
        reason = str(exc)[:200]
        raise UsageError(
            f"--model: {file} is not JSON: {reason}",
            hint="Give the directory of the model, or its config.json.",
        ) from exc
    if not isinstance(value, dict):
        raise UsageError(
            f"--model: {file} holds {type(value).__name__}, expected an object of a model's config",
            hint="Give the directory of the model, or its config.json.",
        )
    return value


def _unreadable(file: Path, exc: OSError) -> UsageError:
    return UsageError(f"--model: cannot read {file}: {exc.strerror or exc}")
