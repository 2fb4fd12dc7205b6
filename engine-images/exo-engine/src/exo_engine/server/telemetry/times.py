"""When a sequence passed from one phase to the next, as the server and its core saw it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class Times:
    """Moments in seconds of the monotonic clock; None: it did not come so far.

    The phases are vLLM's: preemptions count to the phase in which they happen.
    """

    arrival: float
    scheduled: float | None = None
    """When the first step with it began."""
    first_token: float | None = None
    last_token: float | None = None

    @classmethod
    def of_all(cls, parts: Iterable[Times]) -> Times:
        """Return those of a request: from the first moment of any sequence to the last of any."""
        known = list(parts)

        def moments(name: str) -> list[float]:
            return [at for each in known if (at := getattr(each, name)) is not None]

        return cls(
            min(each.arrival for each in known),
            min(moments("scheduled"), default=None),
            min(moments("first_token"), default=None),
            max(moments("last_token"), default=None),
        )

    def note_tokens(self, now: float) -> None:
        """Take the moment at which tokens came."""
        if self.first_token is None:
            self.first_token = now
        self.last_token = now

    @property
    def queue(self) -> tuple[float, float] | None:
        """From the arrival to the first step."""
        return None if self.scheduled is None else (self.arrival, self.scheduled)

    @property
    def prefill(self) -> tuple[float, float] | None:
        """From the first step to the first token."""
        if self.scheduled is None or self.first_token is None:
            return None
        return self.scheduled, self.first_token

    @property
    def decode(self) -> tuple[float, float] | None:
        """From the first token to the last one."""
        if self.first_token is None or self.last_token is None:
            return None
        return self.first_token, self.last_token

    @property
    def inference(self) -> tuple[float, float] | None:
        """From the first step to the last token."""
        if self.scheduled is None or self.last_token is None:
            return None
        return self.scheduled, self.last_token
