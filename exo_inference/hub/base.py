"""What a model source is: it can resolve a name and bring the files into a directory.

The controller calls it, and in a pod the Job that fills a volume (`volume.py`). Implementations:
`huggingface.py`, `file.py`, `builtin.py`, `simulated.py`; the factory in `__init__` picks one by the form
of the name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from exo_inference.errors import HubError

BUILTIN_PREFIX = "exo/"
FILE_PREFIX = "file:"
PRIVATE_DIR = ".exo"
"""In a model's directory, what is no file of the model: parts of downloads, and what was checked."""


class InvalidModelName(HubError):
    """The name has no form that any source knows."""


class ModelNotFound(HubError):
    """There is no such model or revision at the source (or it is private and no token was given)."""


class ModelGated(HubError):
    """The model exists, but its licence has not been accepted by the token's account."""


class TokenRejected(HubError):
    """The source does not accept the token."""


class ModelUnusable(HubError):
    """The model was found, but it holds nothing an engine could load, or its files are damaged."""


class SourceUnreachable(HubError):
    """The source could not be reached, or failed; trying again may help."""


class NoSpace(HubError):
    """The disk is full; what was fetched so far is kept and resumed."""


class FetchCancelled(HubError):
    """The fetch was stopped by its caller; what was fetched so far is kept and resumed."""


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a model.

    Attributes:
        path: relative to the model's directory.
        sha256: None where the source does not publish it.
        git_sha1: of the git blob, which the Hub publishes for the files that have no SHA-256.
    """

    path: str
    size_bytes: int
    sha256: str | None = None
    git_sha1: str | None = None


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model pinned to one content: what will be fetched, and how much of it."""

    source: str
    revision: str
    files: tuple[ModelFile, ...]

    @property
    def size_bytes(self) -> int:
        """Sum of all files."""
        return sum(file.size_bytes for file in self.files)


ProgressCallback = Callable[[int], None]
"""Called with the bytes present so far, from any thread; raises FetchCancelled to stop."""


class ModelSource(Protocol):
    """Where models come from. Both methods are coroutines that never block the event loop."""

    async def resolve(
        self, source: str, *, revision: str | None, token: str | None
    ) -> ResolvedModel:
        """Find the model and pin it, without fetching its weights.

        Raises:
            ModelNotFound, ModelGated, TokenRejected, ModelUnusable, SourceUnreachable
        """
        ...

    async def fetch(
        self,
        model: ResolvedModel,
        directory: Path,
        *,
        token: str | None,
        progress: ProgressCallback,
    ) -> Path:
        """Bring all files and check sizes and hashes; resume what is there.

        Returns:
            The directory an engine can load from: `directory`, or the source's own place.

        Raises:
            the errors of `resolve`, NoSpace, FetchCancelled
        """
        ...
