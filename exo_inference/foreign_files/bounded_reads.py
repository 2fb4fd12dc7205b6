"""Opens and parses foreign files within bounds that are checked before anything is computed.

Runs in the child (`worker.py`). Only regular files are opened, and never in a way that waits: a named
pipe would hold its reader for good.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from exo_inference.foreign_files.errors import ForeignFileError, MissingFile, shown

MAX_DEPTH = 64
"""Of nested lists and objects; configurations in use have fewer than 10."""
MAX_ITEMS = 4_000_000
"""Opening brackets and commas of one document, counted before it is parsed."""
MAX_DIGITS = 40
"""Of one number. Some tokenizers write 10^30 for "no limit"."""
MAX_FILES = 4096
"""In one folder, and in all that are looked through together."""
MAX_FOLDERS = 256
"""That are looked through in a model's directory."""
MAX_FOLDER_DEPTH = 4
"""Of folders in a model's directory; those of GGUF files in use are one deep."""


@contextmanager
def open_regular(path: Path) -> Iterator[tuple[BinaryIO, os.stat_result]]:
    """Open a regular file for reading; yield it with its status.

    Raises:
        MissingFile: it does not exist.
        ForeignFileError: it is something else, or cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingFile(f"cannot read {shown(str(path))}: {error.strerror}") from error
    except OSError as error:
        raise _unreadable(path, error) from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise ForeignFileError(
            f"{shown(path.name)} is {_kind(status.st_mode)}, expected a regular file",
            hint="Put the file itself there.",
        )
    with os.fdopen(descriptor, "rb") as file:
        try:
            yield file, status
        except OSError as error:
            raise _unreadable(path, error) from error


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Return the content of a regular file.

    Raises:
        MissingFile, ForeignFileError: it is not there, not a file, too large or unreadable.
    """
    with open_regular(path) as (file, _):
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ForeignFileError(f"{shown(str(path))} is larger than {max_bytes >> 20} MiB")
    return data


def list_files(directory: Path) -> list[os.DirEntry[str]]:
    """Return what lies in a folder, sorted by name, without hidden entries.

    Raises:
        MissingFile, ForeignFileError: it is not there, no folder, unreadable, or holds too much.
    """
    try:
        with os.scandir(directory) as entries:
            found = list(islice(entries, MAX_FILES + 1))
    except FileNotFoundError as error:
        raise MissingFile(f"there is no directory {shown(str(directory))}") from error
    except NotADirectoryError as error:
        raise ForeignFileError(
            f"{shown(str(directory))} is not a directory",
            hint="Name the directory that holds config.json.",
        ) from error
    except OSError as error:
        raise _unreadable(directory, error) from error
    if len(found) > MAX_FILES:
        raise ForeignFileError(
            f"{shown(str(directory))} holds more than {MAX_FILES} files, which no model has",
            hint="Name the directory that holds config.json.",
        )
    visible = (each for each in found if not each.name.startswith("."))
    return sorted(visible, key=lambda each: each.name)


def list_tree(directory: Path) -> dict[str, os.DirEntry[str]]:
    """Return what lies in a folder and in the folders in it, by path, without hidden entries.

    Returns `MAX_FILES` at most, of `MAX_FOLDERS` folders to `MAX_FOLDER_DEPTH`, follows no links to folders, and passes over
    those it cannot read or that hold more than `MAX_FILES`.
    """
    found: dict[str, os.DirEntry[str]] = {}
    folders = [("", directory)]
    for prefix, folder in folders:
        try:
            entries = list_files(folder)
        except ForeignFileError:
            continue
        for each in entries[: MAX_FILES - len(found)]:
            if not each.is_dir(follow_symlinks=False):
                found[prefix + each.name] = each
            elif prefix.count("/") < MAX_FOLDER_DEPTH and len(folders) < MAX_FOLDERS:
                folders.append((f"{prefix}{each.name}/", folder / each.name))
    return found


def parse_object(data: bytes, name: str, *, allows_constants: bool = True) -> dict[str, Any]:
    """Return the JSON object in `data`.

    Args:
        data: what was read.
        name: of the file, for messages.
        allows_constants: take Infinity and NaN, which configurations in use hold.

    Raises:
        ForeignFileError: it is not JSON, not an object, or beyond the bounds.
    """
    where = shown(name)
    num_items = data.count(b",") + data.count(b"[") + data.count(b"{")
    if num_items > MAX_ITEMS:
        raise ForeignFileError(f"{where} holds more than {MAX_ITEMS} values")

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} stands where a number belongs")

    try:
        value = json.loads(
            data, parse_int=_integer, parse_constant=None if allows_constants else refuse
        )
    except RecursionError as error:
        raise ForeignFileError(f"{where} is nested deeper than {MAX_DEPTH} levels") from error
    except ValueError as error:
        raise ForeignFileError(f"{where} is not JSON: {shown(str(error))}") from error
    if not isinstance(value, dict):
        raise ForeignFileError(f"{where} holds {shown(value, 40)}, expected a JSON object")
    _check_depth(value, where)
    return value


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} digits, expected at most {MAX_DIGITS}")
    return int(text)


def _check_depth(value: object, where: str) -> None:
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for each in level:
            if isinstance(each, dict):
                below += [v for v in each.values() if isinstance(v, dict | list)]
            elif isinstance(each, list):
                below += [v for v in each if isinstance(v, dict | list)]
        if not below:
            return
        level = below
    raise ForeignFileError(f"{where} is nested deeper than {MAX_DEPTH} levels")


def _unreadable(path: Path, error: OSError) -> ForeignFileError:
    return ForeignFileError(
        f"cannot read {shown(str(path))}: {error.strerror or type(error).__name__}",
        hint="Let the user that runs the control plane read it.",
    )


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFIFO: "a named pipe",
        stat.S_IFDIR: "a directory",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "no regular file")
