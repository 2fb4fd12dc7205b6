"""Follows a start through its phases: tells others where it stands, and times each phase.

The core process makes one and hands it to `EngineCore`; loading calls `begin` as it goes along. What
was timed ends up in the measurements.
"""

from __future__ import annotations

from collections.abc import Callable

from exo_engine.clock import Clock


def _ignore(message: str) -> None:
    del message


class StartUp:
    """One start.

    Args:
        progress: told in words what loading is at, such as `loading weights 43 %`.
        clock: what phases are timed with.
    """

    def __init__(
        self, progress: Callable[[str], None] = _ignore, *, clock: Clock | None = None
    ) -> None:
        self.report = progress
        """Says how far the phase has come."""
        self.clock = clock or Clock()
        self._seconds: dict[str, float] = {}
        self._current: tuple[str, float] | None = None

    def begin(self, phase: str, detail: str | None = None, *, since: float | None = None) -> None:
        """End the phase before and begin another.

        Args:
            phase: its name.
            detail: what to report, if it is not just the name.
            since: when it began by the clock, if that was earlier.
        """
        self._end_phase()
        self._current = (phase, self.clock.now() if since is None else since)
        self.report(detail or phase)

    def finish(self) -> dict[str, float]:
        """End the last phase; return the seconds of each, in order."""
        self._end_phase()
        return dict(self._seconds)

    def _end_phase(self) -> None:
        if self._current is not None:
            name, begin = self._current
            self._seconds[name] = self._seconds.get(name, 0.0) + self.clock.now() - begin
            self._current = None
