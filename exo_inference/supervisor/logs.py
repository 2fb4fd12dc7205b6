"""The log files of the control plane's servers: kept within bounds, and copied to a terminal.

The servers write to their files themselves (opened for appending), so that they need no supervisor
to go on logging; therefore a file is rotated by copying and truncating it. A line that is written
between the two is lost; nothing else is. Standard library only.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from pathlib import Path

logger = logging.getLogger(__name__)

MAX_BYTES = 10_000_000
"""Size at which a log is rotated."""

MAX_FILES = 3
"""Files kept of each log, the one being written included."""


def rotate_if_large(path: Path, *, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES) -> bool:
    """Shift `NAME.log` to `NAME.log.1` and so on when it has grown too large.

    Returns:
        Whether it was rotated. A full disk leaves everything as it is.
    """
    try:
        if path.stat().st_size <= max_bytes:
            return False
        for index in range(max_files - 1, 1, -1):
            newer = path.with_name(f"{path.name}.{index - 1}")
            if newer.exists():
                newer.replace(path.with_name(f"{path.name}.{index}"))
        shutil.copyfile(path, path.with_name(f"{path.name}.1"))
        os.truncate(path, 0)
    except FileNotFoundError:
        return False
    except OSError as exc:
        logger.warning("cannot rotate %s: %s", path, exc)
        return False
    return True


class LogCopier:
    """Copies what is appended to some log files from now on to stderr, line by line."""

    def __init__(self, paths: dict[str, Path]) -> None:
        """`paths` are the files, by the name that their lines begin with."""
        self._paths = paths
        self._offsets = {name: _size(path) for name, path in paths.items()}
        self._partial = dict.fromkeys(paths, b"")

    def copy(self) -> None:
        """Copy what is new since the last call."""
        for name, path in self._paths.items():
            size = _size(path)
            if size < self._offsets[name]:
                self._offsets[name] = 0  # it was rotated
            if size == self._offsets[name]:
                continue
            with path.open("rb") as file:
                file.seek(self._offsets[name])
                data = file.read(size - self._offsets[name])
            self._offsets[name] += len(data)
            *lines, self._partial[name] = (self._partial[name] + data).split(b"\n")
            for line in lines:
                sys.stderr.buffer.write(b"%s: %s\n" % (name.encode(), line))
        sys.stderr.flush()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
