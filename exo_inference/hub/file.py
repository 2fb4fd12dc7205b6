"""Models in a directory of this machine: `file:///abs/path`. Served in place, never copied.

The path is the user's and stays the user's: it is checked, read, and nothing is written to it.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from exo_inference.hub.base import (
    InvalidModelName,
    ModelUnusable,
    ProgressCallback,
    ResolvedModel,
)
from exo_inference.hub.model_directory import check_user_directory

_FORM_HINT = "Write file:// and an absolute path, for example file:///srv/models/my-model."


class FileSource:
    """Serves `file://` names."""

    async def resolve(
        self, source: str, *, revision: str | None, token: str | None
    ) -> ResolvedModel:
        """Check the directory and pin its present content.

        Raises:
            InvalidModelName, ModelNotFound, ModelUnusable
        """
        if revision is not None:
            raise InvalidModelName(
                f"a revision ({revision[:64]!r}) was given for {source[:256]!r}, "
                "and a directory has none",
                hint="Leave the revision out.",
            )
        return await _resolve(source)

    async def fetch(
        self,
        model: ResolvedModel,
        directory: Path,
        *,
        token: str | None,
        progress: ProgressCallback,
    ) -> Path:
        """Check that the directory is as it was, and return it.

        Raises:
            ModelNotFound, ModelUnusable
        """
        present = await _resolve(model.source)
        if present.revision != model.revision:
            raise ModelUnusable(
                f"the files of {model.source} changed while the model was being prepared",
                hint="Create the model again when the files are complete.",
            )
        progress(present.size_bytes)
        return parse_file_name(model.source)


def parse_file_name(source: str) -> Path:
    """Return the directory that a `file://` name means.

    Raises:
        InvalidModelName: it is not an absolute path of this machine.
    """
    parts = urlsplit(source)
    path = unquote(parts.path)
    plain = "/" + "/".join(part for part in parts.path.split("/") if part not in ("", "."))
    problem, hint = None, _FORM_HINT
    if parts.scheme != "file" or not source.startswith("file://"):
        problem = "it does not begin with file://"
    elif parts.netloc not in ("", "localhost"):
        problem = f"{parts.netloc[:64]!r} stands where the absolute path should begin"
    elif parts.query or parts.fragment:
        problem = "it holds '?' or '#'; write them as %3F and %23"
    elif not path.startswith("/"):
        problem = "its path is not absolute"
    elif ".." in path.split("/"):
        problem = "its path holds '..'"
    elif "\0" in path:
        problem = "its path holds a zero byte"
    elif parts.path != plain:  # one directory must not become two models
        problem = "its path has a slash or a dot too many"
        hint = f"Write file://{plain[:256]}."
    if problem:
        raise InvalidModelName(f"{source[:256]!r} does not name a directory: {problem}", hint=hint)
    return Path(path)


async def _resolve(source: str) -> ResolvedModel:
    checked = await check_user_directory(parse_file_name(source))
    return ResolvedModel(source, checked.fingerprint, checked.files)
