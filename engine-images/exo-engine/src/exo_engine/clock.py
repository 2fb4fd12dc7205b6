"""Monotonic time, and waiting for it.

Whoever needs either is given a `Clock`, so that tests need not sleep.
"""

from __future__ import annotations

import time


class Clock:
    """The machine's own clock; tests put another in its place."""

    def now(self) -> float:
        """Return seconds since some fixed moment; never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait for that long."""
        time.sleep(seconds)

    def wait_until(self, moment: float) -> None:
        """Wait until `now()` has reached `moment`."""
        while (left := moment - self.now()) > 0:
            self.sleep(left)
