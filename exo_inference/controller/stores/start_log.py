"""`plan-starts.jsonl`: the last real starts of this control plane, one JSON object on each line.

The recorder appends, the API reads, both through `Starts`: this file on one machine, a ConfigMap on a
cluster (`cluster/recorded_starts.py`). The file is replaced whole, so a reader or a kill finds the old one or the
new one; a line that cannot be read (of a newer version, or torn by hand) is passed over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from exo_inference.errors import StoreError
from exo_inference.state_dir import write_atomically
from exo_inference.wire import PlanStart

logger = logging.getLogger(__name__)

MAX_STARTS = 1000


class Starts(Protocol):
    """Where real starts are kept; one process at a time appends."""

    async def read(self) -> list[PlanStart]:
        """Return what is recorded, oldest first.

        Raises:
            StoreError: it cannot be read.
        """
        ...

    async def append(self, start: PlanStart) -> None:
        """Add a start; the oldest ones go when there are too many.

        Raises:
            StoreError: it cannot be written; it is as it was.
        """
        ...


class FileStarts:
    """The file of one machine's control plane, of which one process at a time is the writer.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def read(self) -> list[PlanStart]:
        """Return what is recorded, oldest first.

        Raises:
            StoreError: the file cannot be read.
        """
        return await asyncio.to_thread(self._read)

    async def append(self, start: PlanStart) -> None:
        """Add a start; the oldest ones beyond `MAX_STARTS` go.

        Raises:
            StoreError: the file cannot be written; it is as it was.
        """
        await asyncio.to_thread(self._append, format_line(start))

    def _read(self) -> list[PlanStart]:
        return parse_lines(self._lines(), str(self._path))

    def _append(self, line: str) -> None:
        lines = [*self._lines()[1 - MAX_STARTS :], line]
        try:
            write_atomically(self._path, "".join(f"{line}\n" for line in lines))
        except OSError as exc:
            raise StoreError(f"cannot write {self._path}: {exc.strerror or exc}") from exc

    def _lines(self) -> list[str]:
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return []
        except OSError as exc:
            raise StoreError(f"cannot read {self._path}: {exc.strerror or exc}") from exc
        return [line for line in text.split("\n") if line.strip()]


def parse_lines(lines: Iterable[str], where: str) -> list[PlanStart]:
    """Return the starts of lines; those that are none are counted in the log."""
    starts, num_broken = [], 0
    for line in lines:
        try:
            starts.append(PlanStart.model_validate_json(line))
        except ValidationError:
            num_broken += 1
    if num_broken:
        logger.warning("%d lines of %s are not starts", num_broken, where)
    return starts


def format_line(start: PlanStart) -> str:
    """Return a start as one line."""
    return start.model_dump_json(exclude_none=True)
