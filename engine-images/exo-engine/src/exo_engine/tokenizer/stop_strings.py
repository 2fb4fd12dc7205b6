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
        self._watches = tuple(_Watch(stop) for stop in dict.fromkeys(stops))
        self._is_included = is_included
        self._held = ""

    def feed(self, text: str) -> tuple[str, StopMatch | None]:
        """Add text; return what may be shown now, and the match if the text has ended.

        After a match nothing may be fed any more.
        """
        if not self._watches:
            return text, None
        num_held = len(self._held)
        buffer = self._held + text
        for position, character in enumerate(text):
            ended = [watch.stop for watch in self._watches if watch.advance(character)]
            if ended:
                stop = max(ended, key=len)
                end = num_held + position + 1
                self._held = ""
                return buffer[: end if self._is_included else end - len(stop)], StopMatch(stop)
        cut = len(buffer) - max(watch.num_matched for watch in self._watches)
        self._held = buffer[cut:]
        return buffer[:cut], None

    def skip(self, text: str) -> str:
        """Pass text on without looking for stop strings in it (while a minimum is not reached)."""
        for watch in self._watches:
            watch.num_matched = 0
        shown, self._held = self._held + text, ""
        return shown

    def flush(self) -> str:
        """Return what is still held back, when no more text will come."""
        held, self._held = self._held, ""
        return held


class _Watch:
    """How much of one stop string the text ends with, by Knuth, Morris and Pratt (1977).

    A character costs the same however long the string is and however much the two look alike. The
    table of borders grows with what was matched, so a string that never comes near costs nothing.
    """

    __slots__ = ("_borders", "num_matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.num_matched = 0
        self._borders = [0]
        """Per length, less one: the longest proper prefix of that part which also ends it."""

    def advance(self, character: str) -> bool:
        """Take one character; say whether the text now ends with the whole string."""
        stop, matched = self.stop, self.num_matched
        while matched and stop[matched] != character:
            matched = self._borders[matched - 1]
        if stop[matched] == character:
            matched += 1
            if matched > len(self._borders):
                self._borders.append(self._next_border())
        self.num_matched = matched
        return matched == len(stop)

    def _next_border(self) -> int:
        character = self.stop[len(self._borders)]
        border = self._borders[-1]
        while border and self.stop[border] != character:
            border = self._borders[border - 1]
        return border + 1 if self.stop[border] == character else 0
