"""The base of every message: kebab-case aliases, frozen, unknown fields ignored."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, PlainSerializer, StrictInt


def _kebab(name: str) -> str:
    return name.replace("_", "-")


def format_time(moment: datetime) -> str:
    """Format as RFC 3339 in UTC with `T` and `Z`, the only form every client parses.

    Whole seconds stay whole; fractions keep milliseconds.
    """
    moment = moment.astimezone(UTC)
    spec = "milliseconds" if moment.microsecond else "seconds"
    return moment.replace(tzinfo=None).isoformat(timespec=spec) + "Z"


Timestamp = Annotated[datetime, PlainSerializer(format_time, return_type=str)]
"""A moment with its zone; see `format_time`."""

Count = StrictInt
"""A JSON integer: `2.0`, `"2"` and `true` are refused, as the Go client cannot read them either."""


class WireModel(BaseModel):
    """One JSON object of the API.

    Clients newer than this server may send fields it does not know, so those are ignored.
    """

    model_config = ConfigDict(
        alias_generator=_kebab,
        populate_by_name=True,
        extra="ignore",
        frozen=True,
        serialize_by_alias=True,
    )

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON-ready object, without the fields that are None."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
