"""Zones: the public answer of `GET /zone`, from which clients take the address of all the rest."""

from __future__ import annotations

from exo_inference.wire.base import WireModel


class Zone(WireModel):
    """One zone and its absolute endpoint, as the client reaches it."""

    name: str
    api_endpoint: str


class ZoneList(WireModel):
    """Answer of `GET /zone`."""

    zones: list[Zone]
