"""Flags that take a length of time or a moment: `15s`, `1h30m`, `-1s`, `2026-01-31T12:00:00Z`.

The syntax of durations is that of `exo_inference.settings`, the same for flags and environment.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from exo_inference.errors import UsageError

if TYPE_CHECKING:
    _Seconds = click.ParamType[float]
    _DateTime = click.ParamType[datetime]
else:  # older releases of click have no type argument here
    _Seconds = _DateTime = click.ParamType


def format_duration(seconds: float) -> str:
    """Format a length of time for people: `0s`, `42s`, `3m 5s`, `1h 2m`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60}s"
    return f"{whole // 3600}h {whole % 3600 // 60}m"


class Limit(_Seconds):
    """How long something may take, as seconds; infinity where the limit is switched off."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse the text of the flag."""
        from exo_inference.settings import parse_duration

        if isinstance(value, float):
            return value
        try:
            return parse_duration(str(value), "the value")
        except UsageError:
            message = f"{value!r} is not a positive duration (e.g. 15s), or -1s to disable."
            self.fail(message, param, ctx)


class Moment(_DateTime):
    """A point in time: a duration back from now, or RFC 3339 with its zone."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """Resolve the text against the current time."""
        if isinstance(value, datetime):
            return value
        moment = parse_moment(str(value), now=datetime.now(UTC))
        if moment is None:
            self.fail(
                f"{value!r} is neither a duration such as 10m or 2h "
                "nor a time with its zone such as 2026-01-31T12:00:00Z.",
                param,
                ctx,
            )
        return moment


def parse_moment(text: str, *, now: datetime) -> datetime | None:
    """Return the moment that `text` means when it is `now`; None when it means none."""
    from exo_inference.settings import parse_duration

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        pass
    else:
        return moment if moment.tzinfo is not None else None
    try:
        seconds = parse_duration(text, "the value")
        return None if math.isinf(seconds) else now - timedelta(seconds=seconds)
    except (UsageError, OverflowError):
        return None
