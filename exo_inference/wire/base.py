"""The base of every message: kebab-case aliases, frozen, unknown fields ignored."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Self

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


class OpenEnum(StrEnum):
    """An enumeration of answers: a value that this version does not know passes through as it is.

    The other side may be newer; a client must not fail because a state was added there.
    """

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, str):
            return None
        member = str.__new__(cls, value)
        member._name_ = value.upper().replace("-", "_")
        member._value_ = value
        return member


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
