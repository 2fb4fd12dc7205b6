"""Chooses the GGUF file of a model's directory that is planned, by names and sizes; opens none.

The engine's image starts with one file: the only one, or the only one that comes in parts
(`engine-images/adapter/exo_adapter/engines.py`). It refuses several, of which the largest is planned.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from exo_inference.foreign_files.errors import ForeignFileError, shown
from exo_inference.model_description import (
    GGUF_ENDING,
    GGUF_PART,
    gguf_part_path,
    holds_gguf_weights,
)

HEADER_BYTES = 24
"""Magic, version and two counts, which each file has: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md."""


@dataclass(frozen=True, slots=True)
class ChosenFile:
    """The file that is planned.

    Attributes:
        path: of the file in the directory, or of its first part.
        num_bytes: of all its parts.
        note: which of several was taken; empty where there is one.
    """

    path: str
    num_bytes: int
    note: str


def choose_file(files: Mapping[str, os.DirEntry[str]]) -> ChosenFile | None:
    """Return the GGUF file that is planned, None where there is none, or an encoder of images alone.

    Args:
        files: of the directory and of the folders in it, by path.

    Raises:
        ForeignFileError: it is no regular file, too short, or a part of it is missing.
    """
    paths = [path for path in files if holds_gguf_weights(path)]
    if not paths:
        return None
    sizes: dict[str, int] = {}
    broken: dict[str, str] = {}
    for path in paths:
        size = _size_of(files[path])
        if isinstance(size, str):
            broken[path] = size
        else:
            sizes[path] = size
    groups = _group(paths)
    # A folder's files are others than the model's own, as those of a draft.
    near = _split(groups) or groups
    near = {key: parts for key, parts in near.items() if "/" not in parts[0]} or near
    whole = {key: parts for key, parts in near.items() if any(each in sizes for each in parts)}
    if not whole:
        path = min(broken.keys() & {each for parts in near.values() for each in parts})
        raise ForeignFileError(f"{shown(path)} {broken[path]}", hint="Put the file itself there.")
    totals = {key: sum(sizes.get(each, 0) for each in parts) for key, parts in whole.items()}
    chosen = max(whole, key=lambda key: (totals[key], key))
    parts = whole[chosen]
    _check_parts(chosen, parts, broken)
    others = [each for key, (each, *_) in groups.items() if key != chosen and each in sizes]
    return ChosenFile(parts[0], totals[chosen], _note(parts[0], others))


def _size_of(entry: os.DirEntry[str]) -> int | str:
    """Return a file's size, or what is wrong with it."""
    try:
        status = entry.stat()
    except OSError as error:
        return f"cannot be read: {error.strerror or type(error).__name__}"
    if not stat.S_ISREG(status.st_mode):
        return "is no regular file"
    if status.st_size < HEADER_BYTES:
        return f"has {status.st_size} bytes, fewer than the header of a GGUF file"
    return status.st_size


def _group(paths: Iterable[str]) -> dict[tuple[str, int], list[str]]:
    """Return the files by name and number of parts, 0 for one that is whole."""
    groups: dict[tuple[str, int], list[str]] = {}
    for path in sorted(paths):
        part = GGUF_PART.fullmatch(path.removesuffix(GGUF_ENDING))
        key = (path, 0) if part is None else (part["stem"], int(part["total"]))
        groups.setdefault(key, []).append(path)
    return groups


def _split(groups: Mapping[tuple[str, int], list[str]]) -> dict[tuple[str, int], list[str]]:
    """Return the files in parts of which the first is there: the engine's image prefers them."""
    return {key: parts for key, parts in groups.items() if "-00001-of-" in parts[0]}


def _check_parts(key: tuple[str, int], parts: list[str], broken: Mapping[str, str]) -> None:
    stem, total = key
    if not total:
        return
    hint = "Copy or download the missing part."
    for path in parts:
        if path in broken:
            raise ForeignFileError(f"{shown(path)} {broken[path]}", hint=hint)
    there = set(parts)
    for number in range(1, total + 1):
        path = gguf_part_path(stem, number, total)
        if path not in there:
            raise ForeignFileError(
                f"{shown(path)} is missing: {len(parts)} of {total} parts of that GGUF file are there",
                hint=hint,
            )


def _note(taken: str, others: list[str]) -> str:
    if not others:
        return ""
    names = ", ".join(shown(each, 64) for each in others[:3])
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    return (
        f"the directory holds several GGUF files: {shown(taken, 128)} is planned, not {names}{more}"
    )
