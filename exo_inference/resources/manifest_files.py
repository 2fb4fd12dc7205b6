"""Files and directories of manifests: which are read, and what is wrong between them.

`apply` and `diff` are the callers; what one document means is `yaml.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from exo_inference.errors import UsageError
from exo_inference.resources.model import InferenceModel
from exo_inference.resources.yaml import (
    Manifest,
    ManifestError,
    ManifestProblem,
    parse_manifests,
)

MAX_FILE_BYTES = 4 * 2**20
"""A larger file is no manifest but a mistake, such as a directory of checkpoints."""
_TOO_LARGE = f"it is larger than {MAX_FILE_BYTES} bytes"


def load_manifests(paths: Sequence[str], stdin: str | None = None) -> list[Manifest]:
    """Read files, and directories with all that is below them, in the order given.

    Args:
        paths: files, directories, or `-` for standard input.
        stdin: the text of standard input, if it was named; the caller need not read more than
            `MAX_FILE_BYTES` and one.

    Raises:
        ManifestError: anything in any of them is wrong.
        UsageError: there is nothing to read.
    """
    manifests: list[Manifest] = []
    problems: list[ManifestProblem] = []
    for name, text in _texts(paths, stdin, problems):
        found, wrong = parse_manifests(text, name)
        manifests += found
        problems += wrong
    problems += _duplicates(manifests)
    if problems:
        raise ManifestError(problems)
    if not manifests:
        raise UsageError(
            f"there is no InferenceModel and no InferenceDeployment in {', '.join(paths)}",
            hint="`exo dedicated-inference export` writes what exists in the form that is expected.",
        )
    return manifests


def _duplicates(manifests: Sequence[Manifest]) -> Iterator[ManifestProblem]:
    seen: dict[tuple[str, str, str], Manifest] = {}
    for manifest in manifests:
        resource = manifest.resource
        keys = [(resource.kind, "metadata.name", resource.metadata.name)]
        if isinstance(resource, InferenceModel):
            keys.append((resource.kind, "spec.source", resource.spec.source))
        for key in keys:
            first = seen.setdefault(key, manifest)
            if first is not manifest:
                kind, field, value = key
                yield manifest.problem(
                    f"a second {kind} with {field} {value}; "
                    f"the first is at {first.file}:{first.line}"
                )


def _texts(
    paths: Sequence[str], stdin: str | None, problems: list[ManifestProblem]
) -> Iterator[tuple[str, str]]:
    """Yield name and text of every file, each once."""
    seen: set[Path] = set()
    for name in paths:
        if name == "-":
            if len(stdin or "") > MAX_FILE_BYTES:
                problems.append(ManifestProblem("<stdin>", 1, f"cannot be read: {_TOO_LARGE}"))
            else:
                yield "<stdin>", stdin or ""
            continue
        for file in _files(Path(name)):
            if file.resolve() in seen:
                continue
            seen.add(file.resolve())
            try:
                yield str(file), _read(file)
            except (OSError, UnicodeDecodeError, UsageError) as exc:
                reason = exc.strerror if isinstance(exc, OSError) else str(exc)
                problems.append(ManifestProblem(str(file), 1, f"cannot be read: {reason}"))


def _read(file: Path) -> str:
    """Return the text of a file; of a pipe or a device, which say no size, no more than of others."""
    with file.open("rb") as opened:
        data = opened.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise UsageError(_TOO_LARGE)
    return data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = (file for pattern in ("*.yaml", "*.yml") for file in path.rglob(pattern))
    return sorted(file for file in found if file.is_file())
