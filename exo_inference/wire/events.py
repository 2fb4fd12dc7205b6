"""Events: what happened to an object, newest last (additive: `GET /ai/{kind}/{id}/events`)."""

from __future__ import annotations

from typing import Literal

from exo_inference.wire.base import Timestamp, WireModel


class Event(WireModel):
    """One thing that happened. Equal events in a row are counted, not repeated."""

    time: Timestamp
    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    count: int = 1


class EventList(WireModel):
    """Answer of the events routes."""

    events: list[Event]
