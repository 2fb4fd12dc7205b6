"""Checks that a directory looks like a model an engine can load: configuration and weights.

Runs in the child, for every source, before a model counts as usable. Does not judge whether an engine
supports the architecture, and loads no tensor.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from exo_inference.foreign_files.bounded_reads import (
    list_files,
    open_regular,
    parse_object,
    read_regular,
)
from exo_inference.foreign_files.config_bounds import check_counts
from exo_inference.foreign_files.errors import ForeignFileError, MissingFile, shown
from exo_inference.foreign_files.safetensors import Header, read_header
from exo_inference.model_description import (
    CONFIG_NAME,
    INDEX_NAME,
    MAX_CONFIG_BYTES,
    MAX_INDEX_BYTES,
)

_SMALL_BYTES = 10_000_000
"""Files up to this size count with their content in the fingerprint."""


@dataclass(frozen=True, slots=True)
class CheckedFiles:
    """What was found.

    Attributes:
        files: name and size of all regular files, without hidden ones.
        fingerprint: changes when a file changes: names, sizes, small files whole, weights by
            header and time of change.
    """

    files: tuple[tuple[str, int], ...]
    fingerprint: str


def check_model_directory(directory: Path) -> CheckedFiles:
    """Check configuration and weights of a model.

    Raises:
        MissingFile: there is no such directory.
        ForeignFileError: something is missing or damaged; the message names the file.
    """
    entries = list_files(directory)
    try:
        data = read_regular(directory / CONFIG_NAME, MAX_CONFIG_BYTES)
    except MissingFile as error:
        raise ForeignFileError(
            f"{shown(str(directory))} holds no {CONFIG_NAME}",
            hint="A model's directory holds config.json, a tokenizer and .safetensors files.",
        ) from error
    check_counts(parse_object(data, CONFIG_NAME), CONFIG_NAME)
    weights = [each.name for each in entries if each.name.endswith(".safetensors")]
    if not weights:
        raise ForeignFileError(
            f"{shown(str(directory))} holds no .safetensors file",
            hint="Convert the model to safetensors, or choose one that is published so.",
        )
    headers = {name: read_header(directory / name) for name in weights}
    if any(each.name == INDEX_NAME for each in entries):
        _check_index(directory / INDEX_NAME, headers)
    return _describe(directory, entries, headers)


def _check_index(index: Path, headers: Mapping[str, Header]) -> None:
    weight_map = parse_object(read_regular(index, MAX_INDEX_BYTES), index.name).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ForeignFileError(f"{index.name} has no weight_map")
    tensors = {name: {each.name for each in header.tensors} for name, header in headers.items()}
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or shard not in tensors:
            raise ForeignFileError(
                f"{index.name} names {shown(shard, 128)}, which is missing",
                hint="Copy or download the missing file.",
            )
        if tensor not in tensors[shard]:
            raise ForeignFileError(
                f"{index.name} says that tensor {shown(tensor, 128)!r} is in {shown(shard, 128)}, "
                "and it is not",
                hint="The files are of different models or versions: fetch them all again.",
            )


def _describe(
    directory: Path, entries: Sequence[os.DirEntry[str]], headers: Mapping[str, Header]
) -> CheckedFiles:
    digest = hashlib.sha256()
    files = []
    for entry in entries:
        if not entry.is_file():
            continue
        with open_regular(directory / entry.name) as (file, status):
            files.append((entry.name, status.st_size))
            digest.update(f"{entry.name}\0{status.st_size}\0".encode(errors="surrogateescape"))
            if entry.name in headers:
                digest.update(f"{status.st_mtime_ns}\0".encode() + headers[entry.name].raw)
            elif status.st_size <= _SMALL_BYTES:
                digest.update(file.read(_SMALL_BYTES))
    return CheckedFiles(tuple(files), digest.hexdigest())
