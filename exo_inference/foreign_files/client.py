"""What the rest of the control plane asks of the children, as typed functions.

The form of every answer is checked here: the child has read foreign files, and is believed no more
than they are. That takes up to half a second for one that is as large as can be, so no event loop does it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exo_inference.foreign_files.architecture_json import WrongForm, decode
from exo_inference.foreign_files.errors import ReadingFailed
from exo_inference.foreign_files.model_directory import CheckedFiles
from exo_inference.foreign_files.pool import pool
from exo_inference.planner.model.architecture import Architecture


def num_waiting(owner: str) -> int:
    """Return how many requests of somebody wait for a child."""
    return pool.num_waiting(owner)


@dataclass(frozen=True, slots=True)
class RemoteDescription:
    """A model that lies elsewhere: what is known of it, and the files whose headers would say more."""

    architecture: Architecture
    shards: tuple[str, ...]


def check_model(directory: Path) -> CheckedFiles:
    """Check configuration and weights of a model; waits, so not for an event loop.

    Raises:
        MissingFile: there is no such directory.
        ForeignFileError: something is missing or damaged; the message names the file.
        ReadingFailed: nothing is known.
    """
    return _checked(_ask_to_check(directory).result())


async def check_model_async(directory: Path) -> CheckedFiles:
    """Check a model; see `check_model`."""
    return _checked(await asyncio.wrap_future(_ask_to_check(directory)))


def describe_model(path: Path, name: str | None = None, *, is_strict: bool = False) -> Architecture:
    """Return what the planner knows of the model in a directory or of a config.json; waits.

    Args:
        path: of the directory or the file.
        name: of the model; None takes what the files say.
        is_strict: refuse damaged weights; else the configuration has to do.

    Raises:
        MissingFile, ForeignFileError: there is no config.json that can be read.
        ReadingFailed: nothing is known.
    """
    return _architecture(_ask_to_describe(path, name, is_strict).result())


async def describe_model_async(path: Path, name: str | None = None) -> Architecture:
    """Return what the planner knows of a model; see `describe_model`."""
    found = await asyncio.wrap_future(_ask_to_describe(path, name, False))
    return await asyncio.to_thread(_architecture, found)


async def describe_remote_async(
    files: Mapping[str, bytes], headers: Sequence[bytes], *, name: str, source: str, owner: str = ""
) -> RemoteDescription:
    """Return what the planner knows of a model whose small files were fetched.

    Args:
        files: content by name.
        headers: of the weight files, in JSON; empty while they were not asked for.
        name: of the model.
        source: where it is, for messages.
        owner: as whom it waits for its turn; the model itself where nothing is said.

    Raises:
        ForeignFileError: config.json cannot be used.
        ReadingFailed: nothing is known.
    """
    arguments = {"files": list(files), "name": name, "source": source}
    blobs = (*files.values(), *headers)
    found = await asyncio.wrap_future(
        pool.submit("describe_remote", arguments, blobs, owner or name)
    )
    try:
        shards = tuple(found["shards"])
        if all(isinstance(each, str) for each in shards):
            model = await asyncio.to_thread(_architecture, found["model"])
            return RemoteDescription(model, shards)
    except (KeyError, TypeError):
        pass
    raise _wrong_answer()


def _ask_to_check(directory: Path) -> Future[Any]:
    return pool.submit("check_model", {"directory": str(directory)}, owner=str(directory))


def _ask_to_describe(path: Path, name: str | None, is_strict: bool) -> Future[Any]:
    arguments: dict[str, Any] = {
        "path": str(path.absolute()),
        "name": name,
        "is_strict": is_strict,
    }
    return pool.submit("describe_model", arguments, owner=arguments["path"])


def _checked(found: Any) -> CheckedFiles:
    try:
        files = tuple((name, size) for name, size in found["files"])
        fingerprint = found["fingerprint"]
    except (KeyError, TypeError, ValueError):
        raise _wrong_answer() from None
    is_right = all(isinstance(name, str) and type(size) is int for name, size in files)
    if not is_right or not isinstance(fingerprint, str) or len(fingerprint) != 64:
        raise _wrong_answer()
    return CheckedFiles(files, fingerprint)


def _architecture(document: Any) -> Architecture:
    try:
        return decode(document)
    except WrongForm as error:
        raise _wrong_answer() from error


def _wrong_answer() -> ReadingFailed:
    return ReadingFailed("the process that reads the model's files gave an answer of another form")
