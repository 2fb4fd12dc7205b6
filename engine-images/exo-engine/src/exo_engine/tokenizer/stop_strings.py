"""Find stop strings in text that arrives in pieces, and hold back what may become one.

The answer does not depend on how the text was cut into pieces: the stop string whose end comes
first wins, and of those that end together the longest. Text that could still turn into a stop
string is kept until that is decided, so nothing of a stop string is ever shown by mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop string was found."""

    stop: str


class StopStrings:
    """Watch one growing text for stop strings."""

    def __init__(self, stops: Sequence[str], *, is_included: bool = False) -> None:
        """Watch for `stops`.

        Args:
            stops: the strings that end the text; empty ones are not allowed.
            is_included: leave the stop string that was found at the end of the text.
        """
        assert all(stops), "an empty stop string would match everywhere"
        self._stops = tuple(stops)
        self._is_included = is_included
        self._held = ""

    def feed(self, text: str) -> tuple[str, StopMatch | None]:
        """Add text; return what may be shown now, and the match if the text has ended.

        After a match nothing may be fed any more.
        """
        if not self._stops:
            return text, None
        buffer = self._held + text
        found = self._first_match(buffer)
        if found is not None:
            begin, stop = found
            self._held = ""
            return buffer[: begin + (len(stop) if self._is_included else 0)], StopMatch(stop)
        num_held = self._num_possible(buffer)
        cut = len(buffer) - num_held
        self._held = buffer[cut:]
        return buffer[:cut], None

    def skip(self, text: str) -> str:
        """Pass text on without looking for stop strings in it (while a minimum is not reached)."""
        shown, self._held = self._held + text, ""
        return shown

    def flush(self) -> str:
        """Return what is still held back, when no more text will come."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, buffer: str) -> tuple[int, str] | None:
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            begin = buffer.find(stop)
            if begin >= 0 and (best is None or (begin + len(stop), begin) < best[:2]):
                best = (begin + len(stop), begin, stop)
        return None if best is None else (best[1], best[2])

    def _num_possible(self, buffer: str) -> int:
        """Count the characters at the end that begin some stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(buffer)), longest, -1):
                if buffer.endswith(stop[:length]):
                    longest = length
                    break
        return longest
