"""Checks that a directory looks like a model an engine can load, and says what is in it.

Called by every source before a model counts as usable. `foreign_files` reads the files, in a child
process; here its words become those of the hub.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from exo_inference import foreign_files
from exo_inference.foreign_files import (
    CheckedFiles,
    ForeignFileError,
    MissingFile,
    ReadingFailed,
)
from exo_inference.foreign_files.model_directory import check_model_directory as check_here
from exo_inference.hub.base import ModelFile, ModelNotFound, ModelUnusable, SourceUnreachable

_GGUF_MAGIC = b"GGUF"
"""https://github.com/ggml-org/ggml/blob/master/docs/gguf.md"""


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
    """Check configuration and weights of a model; waits, so not for an event loop.

    Raises:
        ModelUnusable: something is missing or damaged; the message names the file.
        SourceUnreachable: the files could not be read in time.
    """
    with explained():
        return _named(foreign_files.check_model(directory))


def check_gguf_files(directory: Path, files: Sequence[ModelFile]) -> None:
    """Check that files begin as GGUF files do; what is in them, the engine reads.

    Raises:
        ModelUnusable: one does not.
    """
    for file in files:
        if not file.path.lower().endswith(".gguf"):
            continue
        with (directory / file.path).open("rb") as opened:
            if opened.read(len(_GGUF_MAGIC)) != _GGUF_MAGIC:
                raise ModelUnusable(
                    f"{file.path} is no GGUF file",
                    hint="Choose another type, or another repository.",
                )


async def check_user_directory(directory: Path) -> CheckedModel:
    """Check a directory that somebody named.

    Raises:
        ModelNotFound: there is none.
        ModelUnusable, SourceUnreachable
    """
    try:
        with explained():
            return _named(await foreign_files.check_model_async(directory))
    except ModelUnusable as error:
        if not isinstance(error.__cause__, MissingFile):
            raise
        raise ModelNotFound(
            f"there is no directory {directory} on the machine of the control plane",
            hint="Check the path; it is looked up where the controller runs.",
        ) from error


def check_own_directory(directory: Path) -> CheckedModel:
    """Check a model that comes with this package: no stranger's, so it is read in this process.

    Raises:
        ModelUnusable: the package is damaged.
    """
    with explained():
        return _named(check_here(directory))


@contextmanager
def explained() -> Iterator[None]:
    """Turn the errors of reading into those of the hub."""
    try:
        yield
    except ForeignFileError as error:
        raise ModelUnusable(error.message, hint=error.hint) from error
    except ReadingFailed as error:
        raise SourceUnreachable(error.message, hint=error.hint) from error


def _named(found: CheckedFiles) -> CheckedModel:
    files = tuple(ModelFile(name, size) for name, size in found.files)
    return CheckedModel(files, found.fingerprint)
