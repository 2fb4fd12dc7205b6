"""Reads what the files of a model say about it, for the planner: descriptions alone, never weights.

config.json, hf_quant_config.json, the index, and of each safetensors file the header; of a GGUF file
its name and size, also in a folder of the directory. Runs in the child.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from exo_inference.foreign_files.bounded_reads import (
    list_files,
    list_tree,
    parse_object,
    read_regular,
)
from exo_inference.foreign_files.config_bounds import check_counts
from exo_inference.foreign_files.errors import ForeignFileError, MissingFile
from exo_inference.foreign_files.gguf import choose_file
from exo_inference.foreign_files.safetensors import parse_header, read_tensors
from exo_inference.model_description import (
    CONFIG_NAME,
    INDEX_NAME,
    MAX_CONFIG_BYTES,
    MAX_INDEX_BYTES,
    QUANTIZATION_NAME,
    describe,
    weight_names,
)
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.model.checkpoint import TensorSize, with_gguf, with_index, with_tensors

SINGLE_FILE = "model.safetensors"
MAX_SHARDS = 64
"""Of a model elsewhere. Above it the index's total is taken: so many headers take too long to ask for."""


def describe_model(path: Path, name: str | None, *, is_strict: bool) -> Architecture:
    """Return the model in a directory, or the one that a config.json describes.

    Args:
        path: of the directory or the file.
        name: of the model; None takes what the configuration or the path says.
        is_strict: refuse damaged weights; else the configuration has to do.

    Raises:
        ForeignFileError: there is no config.json that can be read, or the weights are damaged.
    """
    is_directory = path.is_dir()
    config_file = path / CONFIG_NAME if is_directory else path
    config = _read_object(config_file, MAX_CONFIG_BYTES)
    quantization = _try_object(path / QUANTIZATION_NAME) if is_directory else None
    model = describe(config, quantization, name or _own_name(config, path), str(config_file))
    if not is_directory or model.cannot_size is not None:
        return model
    try:
        return _with_weights(model, path)
    except ForeignFileError:
        if is_strict:
            raise
        return model


def describe_remote(
    files: Mapping[str, bytes], headers: Sequence[bytes], name: str, source: str
) -> tuple[Architecture, list[str]]:
    """Return a model of which the small files were fetched, and the weight files whose headers count.

    Args:
        files: config.json, and the other descriptions that there are.
        headers: of the weight files; empty while they were not asked for.
        name: of the model.
        source: where it is, for messages.

    Raises:
        ForeignFileError: config.json cannot be used.
    """
    config, quantization, index = (
        parse_object(files[each], each) if each in files else None
        for each in (CONFIG_NAME, QUANTIZATION_NAME, INDEX_NAME)
    )
    check_counts(config or {}, CONFIG_NAME)
    model = describe(config or {}, quantization, name, source)
    if model.cannot_size is not None:
        return model, []
    tensors = _try_tensors(headers)
    if tensors:
        return with_tensors(model, tensors), []
    found = model if index is None else with_index(model, index)
    return found, [] if headers else _shards(index)


def _try_tensors(headers: Sequence[bytes]) -> list[TensorSize]:
    """Return what all headers hold, nothing where one of them is damaged."""
    try:
        parsed = [parse_header(each, "a weight file") for each in headers]
    except ForeignFileError:
        return []
    return [tensor for header in parsed for tensor in header.tensors]


def _shards(index: Mapping[str, Any] | None) -> list[str]:
    if index is None:
        return [SINGLE_FILE]
    weight_map = index.get("weight_map")
    names = weight_map.values() if isinstance(weight_map, dict) else ()
    shards = sorted({name for name in names if isinstance(name, str)})
    return shards if len(shards) <= MAX_SHARDS else []


def _with_weights(model: Architecture, directory: Path) -> Architecture:
    """Lay the sizes of a checkpoint over its architecture; its files beat its index."""
    if weights := weight_names(each.name for each in list_files(directory)):
        tensors = (tensor for name in weights for tensor in read_tensors(directory / name))
        return with_tensors(model, tensors)
    files = list_tree(directory)  # types of GGUF often have folders of their own
    if (packed := choose_file(files)) is not None:
        found = with_gguf(model, packed.path, packed.num_bytes)
        return replace(found, notes=(*found.notes, packed.note)) if packed.note else found
    index = _try_object(directory / INDEX_NAME)
    return model if index is None else with_index(model, index)


def _read_object(file: Path, max_bytes: int) -> dict[str, Any]:
    found = parse_object(read_regular(file, max_bytes), str(file))
    check_counts(found, str(file))
    return found


def _try_object(file: Path) -> dict[str, Any] | None:
    try:
        return _read_object(file, MAX_INDEX_BYTES)
    except MissingFile:
        return None


def _own_name(config: Mapping[str, Any], path: Path) -> str:
    own = config.get("_name_or_path")
    if isinstance(own, str) and own and not Path(own).is_absolute():
        return own[:256]
    resolved = path.resolve()
    return resolved.name if path.is_dir() else resolved.parent.name
