"""Stands in for prometheus-client where that is not installed: counts nothing, shows nothing."""

from __future__ import annotations

from typing import Any, NoReturn

from exo_engine.server.api_errors import ApiError

CONTENT_TYPE_LATEST = "text/plain"


class Nothing:
    """A metric, or a registry, that takes everything and keeps nothing."""

    def __init__(self, *args: Any, **options: Any) -> None:
        pass

    def labels(self, *values: str, **named: str) -> Nothing:
        """Return itself, as there is nothing to tell apart."""
        return self

    def inc(self, amount: float = 1) -> None:
        """Count nothing."""

    def set(self, value: float) -> None:
        """Keep nothing."""

    def observe(self, value: float) -> None:
        """Keep nothing."""


CollectorRegistry = Counter = Gauge = Histogram = PlatformCollector = ProcessCollector = Nothing


def generate_latest(registry: Nothing) -> NoReturn:
    """Refuse to show a page, with what is missing.

    Raises:
        ApiError: always.
    """
    raise ApiError(501, "metrics need prometheus-client, which is not installed beside this engine")
