"""Log lines: answers of `GET /ai/deployment/{id}/logs`."""

from __future__ import annotations

from pydantic import Field

from exo_inference.wire.base import Timestamp, WireModel


class LogEntry(WireModel):
    """One line of one replica. `node` is where it ran."""

    time: Timestamp
    node: str
    message: str
    replica: str | None = Field(default=None, description="additive")


class LogList(WireModel):
    """Answer without `follow`; with `follow=true` the entries come one JSON object a line."""

    logs: list[LogEntry]
