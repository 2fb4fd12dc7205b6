"""Models that come with this package: `exo/tiny-chat` and its draft `exo/tiny-draft`.

They lie in `builtin_models/` and are served in place; nothing is copied or fetched.
"""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

from exo_inference.hub.base import (
    BUILTIN_PREFIX,
    InvalidModelName,
    ModelFile,
    ModelNotFound,
    ModelUnusable,
    ProgressCallback,
    ResolvedModel,
)
from exo_inference.hub.model_directory import check_own_directory

_DIRECTORY = Path(__file__).with_name("builtin_models")


def builtin_names(directory: Path = _DIRECTORY) -> list[str]:
    """Return the names of all built-in models."""
    found = (path.parent.name for path in directory.glob("*/config.json"))
    return sorted(f"{BUILTIN_PREFIX}{name}" for name in found)


def builtin_directory(name: str) -> Path:
    """Return where a built-in model lies, without checking its files."""
    return _DIRECTORY / name.removeprefix(BUILTIN_PREFIX)


class BuiltinSource:
    """Serves `exo/` names.

    Args:
        directory: where the models lie; tests put another one here.
    """

    def __init__(self, directory: Path = _DIRECTORY) -> None:
        self._directory = directory

    async def resolve(
        self, source: str, *, revision: str | None, token: str | None
    ) -> ResolvedModel:
        """Find a built-in model and pin its content.

        Raises:
            InvalidModelName, ModelNotFound, ModelUnusable
        """
        if revision is not None:
            raise InvalidModelName(
                f"a revision ({revision[:64]!r}) was given for {source!r}, "
                "and built-in models have none",
                hint="Leave the revision out.",
            )
        return await asyncio.to_thread(self._resolve, source)

    async def fetch(
        self,
        model: ResolvedModel,
        directory: Path,
        *,
        token: str | None,
        progress: ProgressCallback,
    ) -> Path:
        """Check all hashes and return the package's own directory.

        Raises:
            ModelNotFound, ModelUnusable
        """
        present = await asyncio.to_thread(self._resolve, model.source)
        if present.revision != model.revision:
            raise ModelUnusable(
                f"{model.source} changed since it was resolved",
                hint="Create the model again; the package was probably updated.",
            )
        progress(present.size_bytes)
        return self._find(model.source)

    def _find(self, source: str) -> Path:
        names = builtin_names(self._directory)
        if source not in names:
            raise ModelNotFound(
                f"there is no built-in model {source[:256]!r}",
                hint=f"Built in are: {', '.join(names)}. Names of the Hub do not begin with exo/.",
            )
        return self._directory / source.removeprefix(BUILTIN_PREFIX)

    def _resolve(self, source: str) -> ResolvedModel:
        directory = self._find(source)
        checked = check_own_directory(directory)
        files = []
        for file in checked.files:
            with (directory / file.path).open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
            files.append(ModelFile(file.path, file.size_bytes, digest))
        manifest = "".join(f"{file.path}\0{file.sha256}\n" for file in files)
        revision = hashlib.sha256(manifest.encode()).hexdigest()
        return ResolvedModel(source, revision, tuple(files))
