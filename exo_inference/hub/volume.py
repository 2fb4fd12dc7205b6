"""Fills a directory with a model: what the download Job of the chart inference-model does.

Unlike a `ModelSource` it always ends with the files in that directory, so that a pod that has only
the volume can load them: a built-in model is copied there. `__main__.py` is the only caller.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from exo_inference.hub import BUILTIN_PREFIX, FILE_PREFIX, source_for
from exo_inference.hub.base import (
    PRIVATE_DIR,
    InvalidModelName,
    ModelFile,
    ModelUnusable,
    ProgressCallback,
    ResolvedModel,
)
from exo_inference.hub.download import map_write_error


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a volume is to hold.

    Attributes:
        source: the model's name.
        revision: of the source; None is its default. For a built-in model the hash of its content.
        checksum: `sha256:` and what `checksum_of` must give; None compares nothing.
        directory: where the files go.
        token: of the Hub.
    """

    source: str
    revision: str | None
    checksum: str | None
    directory: Path
    token: str | None = None


async def resolve(wanted: Wanted) -> ResolvedModel:
    """Find the model and pin it.

    Raises:
        HubError
    """
    if wanted.source.startswith(FILE_PREFIX):
        raise InvalidModelName(
            f"{wanted.source[:256]!r} is a directory of one machine, which a pod does not have",
            hint="Put the files on a volume claim, and name it in storage.existingClaim.",
        )
    is_builtin = wanted.source.startswith(BUILTIN_PREFIX)
    model = await source_for(wanted.source).resolve(
        wanted.source, revision=None if is_builtin else wanted.revision, token=wanted.token
    )
    if is_builtin and wanted.revision not in (None, model.revision):
        raise ModelUnusable(
            f"{wanted.source} is revision {model.revision} in this image, "
            f"and {wanted.revision} is wanted",
            hint="Create the model again; the control plane was probably updated.",
        )
    return model


async def fill(wanted: Wanted, model: ResolvedModel, progress: ProgressCallback) -> str:
    """Bring all files of a resolved model into the directory; return their checksum.

    Raises:
        ModelUnusable: the files are not those that the checksum is of.
        HubError
    """
    path = await source_for(wanted.source).fetch(
        model, wanted.directory, token=wanted.token, progress=progress
    )
    if path != wanted.directory:
        await asyncio.to_thread(_copy, model, path, wanted.directory)
    found = await asyncio.to_thread(checksum_of, model.files, wanted.directory)
    if wanted.checksum not in (None, found):
        raise ModelUnusable(
            f"the files of {wanted.source} have the checksum {found}, expected {wanted.checksum}",
            hint="Pin the revision that the checksum is of, or correct the checksum.",
        )
    return found


def checksum_of(files: tuple[ModelFile, ...], directory: Path) -> str:
    """Return `sha256:` and the hash of the list of files, as `sha256sum` prints it, sorted by path.

    A hash that the source published was compared when the file came, and is not computed again.
    """
    lines = []
    for file in sorted(files, key=lambda file: file.path):
        digest = file.sha256
        if digest is None:
            with (directory / file.path).open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
        lines.append(f"{digest}  {file.path}\n")
    return f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"


def _copy(model: ResolvedModel, origin: Path, directory: Path) -> None:
    """Copy a model's files, each put in place only when it is whole."""
    partial = directory / PRIVATE_DIR / "partial"
    try:
        for file in model.files:
            target, copy = directory / file.path, partial / f"{file.sha256}.part"
            copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(origin / file.path, copy)
            copy.replace(target)
    except OSError as error:
        raise map_write_error(error, partial.parent) from error
