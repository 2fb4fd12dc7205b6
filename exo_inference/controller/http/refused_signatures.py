"""The signatures of writes that were refused, in a file, so that a restart forgets none of them.

Somebody who has captured a refused write could else wait for a restart and send it at a better moment.
`replays.py` asks and adds. On one machine alone; controllers of a cluster have `cluster/refused_signatures.py`.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path

from exo_inference.state_dir import read_file, write_atomically

logger = logging.getLogger(__name__)

MAX_LINES = 100_000
"""With more, those that have ended are left out; should that not do, the oldest."""

_LINE = re.compile(r"([0-9a-f]{64}) ([0-9]{1,12})")


class RefusalLog:
    """Signatures and when each ends to be accepted.

    Nothing is flushed to the disk: a killed process loses no line, a machine that loses its power may.

    Args:
        path: of the file; made with the first line.
        clock: seconds since the epoch, as for the signatures.
    """

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._num_lines = 0
        self._ends: dict[str, int] = {}
        self._load()

    def __contains__(self, signature: str) -> bool:
        return self._ends.get(_digest(signature), 0) > self._clock()

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, signature: str, until: float) -> None:
        """Remember one until it ends; a file that cannot be written is said, and no error."""
        digest, ends = _digest(signature), int(until)
        if digest in self._ends:
            return
        self._ends[digest] = ends
        try:
            if max(self._num_lines, len(self._ends)) > MAX_LINES:
                self._rewrite()
                return
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK  # a pipe would wait
            descriptor = os.open(self._path, flags, 0o600)
            try:
                os.write(descriptor, f"{digest} {ends}\n".encode())
            finally:
                os.close(descriptor)
            self._num_lines += 1
        except OSError as exc:
            logger.warning("a refused write is not remembered over a restart: %s", exc)

    def _load(self) -> None:
        try:
            lines = read_file(self._path).decode(errors="replace").splitlines()
        except FileNotFoundError:
            return
        except OSError as exc:
            logger.warning("what was refused before is not known: %s", exc)
            return
        self._num_lines = len(lines)
        for line in lines[-MAX_LINES:]:  # ended ones as well: the clock may be set back
            if (found := _LINE.fullmatch(line)) is not None:
                self._ends[found[1]] = int(found[2])

    def _rewrite(self) -> None:
        now = self._clock()
        kept = [(digest, ends) for digest, ends in self._ends.items() if ends > now]
        self._ends = dict(kept[-MAX_LINES // 2 :])
        text = "".join(f"{digest} {ends}\n" for digest, ends in self._ends.items())
        write_atomically(self._path, text)
        self._num_lines = len(self._ends)


def _digest(signature: str) -> str:
    return hashlib.sha256(signature.encode()).hexdigest()
