"""Reads text files that an option names; what cannot be read is said with option and file."""

from __future__ import annotations

from pathlib import Path

from exo_inference.errors import UsageError


def read_text_file(option: str, path: Path, *, max_mib: int) -> str:
    """Return the text of a file.

    Args:
        option: that names the file, as `--cases`.
        path: of the file.
        max_mib: the largest size that makes sense.

    Raises:
        UsageError: it cannot be read, is larger, or is not UTF-8.
    """
    max_bytes = max_mib * 2**20
    try:
        with path.open("rb") as stream:
            data = stream.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise UsageError(f"{option}: {path} is larger than {max_mib} MiB")
        return data.decode("utf-8")
    except OSError as exc:
        raise UsageError(f"{option}: cannot read {path}: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise UsageError(f"{option}: {path} is not text in UTF-8") from exc
