"""Checks that a directory looks like a model an engine can load: configuration and weights.

Called by every source before a model counts as usable. Does not judge whether an engine supports
the architecture, and loads no tensor.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exo_inference.hub.base import ModelFile, ModelUnusable
from exo_inference.hub.safetensors_files import SafetensorsHeader, read_header
from exo_inference.model_description import CONFIG_NAME, INDEX_NAME

_MAX_CONFIG_BYTES = 10_000_000


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """What was found.

    Attributes:
        files: all regular files, without hidden ones.
        fingerprint: changes when a file changes: names, sizes, small files whole, weights by
            header and time of change.
    """

    files: tuple[ModelFile, ...]
    fingerprint: str


def check_model_directory(directory: Path) -> CheckedModel:
    """Check configuration and weights of a model.

    Raises:
        ModelUnusable: something is missing or damaged; the message names the file.
    """
    _read_object(directory / CONFIG_NAME)
    weights = sorted(directory.glob("*.safetensors"))
    if not weights:
        raise ModelUnusable(
            f"{directory} holds no .safetensors file",
            hint="Convert the model to safetensors, or choose one that is published so.",
        )
    headers = {path.name: read_header(path) for path in weights}
    index = directory / INDEX_NAME
    if index.exists():
        _check_index(index, headers)
    return _describe(directory, headers)


def _check_index(index: Path, headers: Mapping[str, SafetensorsHeader]) -> None:
    weight_map = _read_object(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ModelUnusable(f"{index.name} has no weight_map")
    for shard in sorted({str(name) for name in weight_map.values()}):
        if shard not in headers:
            raise ModelUnusable(
                f"{index.name} names {shard[:128]}, which is missing",
                hint="Copy or download the missing file.",
            )
    for tensor, shard in weight_map.items():
        if tensor not in headers[str(shard)].tensors:
            raise ModelUnusable(
                f"{index.name} says that tensor {tensor[:128]!r} is in {shard}, and it is not",
                hint="The files are of different models or versions: fetch them all again.",
            )


def _read_object(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES and path.name == CONFIG_NAME:
            raise ModelUnusable(f"{path} is too large for a configuration")
        document = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ModelUnusable(
            f"{path.parent} holds no {path.name}",
            hint="A model's directory holds config.json, a tokenizer and .safetensors files.",
        ) from error
    except OSError as error:
        raise ModelUnusable(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelUnusable(f"{path.name} is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise ModelUnusable(f"{path.name} is not a JSON object")
    return document


def _describe(directory: Path, headers: Mapping[str, SafetensorsHeader]) -> CheckedModel:
    digest = hashlib.sha256()
    files = []
    try:
        for path in sorted(directory.iterdir()):
            if path.name.startswith(".") or not path.is_file():
                continue
            status = path.stat()
            files.append(ModelFile(path.name, status.st_size))
            digest.update(f"{path.name}\0{status.st_size}\0".encode())
            if path.name in headers:
                digest.update(f"{status.st_mtime_ns}\0".encode() + headers[path.name].raw)
            elif status.st_size <= _MAX_CONFIG_BYTES:
                digest.update(path.read_bytes())
    except OSError as error:
        raise ModelUnusable(f"cannot read {directory}: {error.strerror}") from error
    return CheckedModel(tuple(files), digest.hexdigest())
