"""Where a followed log stands, so that a broken connection neither loses nor repeats lines. Pure."""

from __future__ import annotations

from collections import deque
from datetime import datetime, timedelta

from exo_inference.wire import LogEntry

OVERLAP = timedelta(seconds=2)
"""How far a reconnect looks back: replicas write side by side, so times are only nearly in order."""


class LogCursor:
    """Remembers the entries of the last moments and drops those that come again."""

    def __init__(self, since: datetime | None) -> None:
        self._start = since
        self._latest: datetime | None = None
        self._recent: deque[LogEntry] = deque()
        self._replayed: list[LogEntry] = []
        self.num_connections = 0
        self.is_polled = False

    @property
    def since(self) -> datetime | None:
        """Where the next connection begins."""
        if self._latest is None:
            return self._start
        back = self._latest - OVERLAP
        return max(back, self._start) if self._start else back

    def connected(self) -> None:
        """Note a new connection: it will send the recent entries once more."""
        self.num_connections += 1
        self._replayed = list(self._recent)

    def is_new(self, entry: LogEntry) -> bool:
        """Whether the entry was not seen before; remembers it."""
        if entry in self._replayed:
            self._replayed.remove(entry)  # two equal lines are two lines: drop one for one
            return False
        if self._replayed and self.since is not None and entry.time < self.since:
            return False  # a server that ignores `since`
        self._remember(entry)
        return True

    def _remember(self, entry: LogEntry) -> None:
        self._latest = entry.time if self._latest is None else max(self._latest, entry.time)
        self._recent.append(entry)
        horizon = self._latest - OVERLAP
        while self._recent and self._recent[0].time < horizon:
            self._recent.popleft()
