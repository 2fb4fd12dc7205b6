"""Finding one object among those a list returned: by exact name or id, as every client does. Pure.

Used by both clients, and by the command line, which looks up several names in one list.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

from exo_inference.errors import Conflict, InvalidAnswer, NotFound, UsageError
from exo_inference.settings import DEFAULT_ZONE
from exo_inference.wire import Zone


class Named(Protocol):
    """What can be found."""

    @property
    def id(self) -> str:
        """The lower-case UUID."""
        ...

    @property
    def name(self) -> str:
        """The name."""
        ...


N = TypeVar("N", bound=Named)


def find(objects: Sequence[N], name_or_id: str, kind: str) -> N:
    """Return the one object of that name or id.

    Raises:
        NotFound: there is none; the hint names the closest ones.
        Conflict: several have the name.
    """
    found = [obj for obj in objects if name_or_id in (obj.name, obj.id)]
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(obj.id for obj in found)
        raise Conflict(
            f"several {kind}s are named {name_or_id!r}: {ids}",
            status_code=409,
            hint="Name the one that is meant by its id.",
        )
    close = difflib.get_close_matches(name_or_id, [obj.name for obj in objects], n=3)
    raise NotFound(
        f"there is no {kind} {name_or_id!r}",
        status_code=404,
        hint=f"Did you mean {' or '.join(close)}?"
        if close
        else f"Run `exo dedicated-inference {kind} list` to see what there is.",
    )


def zone_endpoint(zones: Sequence[Zone], wanted: str | None, endpoint: str) -> str:
    """Return the endpoint of a zone; where nobody chose a zone and there is one only, of that one.

    Raises:
        UsageError: there is no such zone.
        InvalidAnswer: its endpoint cannot be used.
    """
    if wanted is None and len(zones) == 1:
        chosen: Zone | None = zones[0]
    else:
        wanted = wanted or DEFAULT_ZONE
        chosen = next((zone for zone in zones if wanted in (zone.name, zone.api_endpoint)), None)
    if chosen is None:
        known = ", ".join(sorted(zone.name for zone in zones)) or "none"
        raise UsageError(
            f"there is no zone {wanted!r} at {endpoint}; it has: {known}",
            hint="Name one of them with --zone, or set EXOSCALE_ZONE.",
        )
    return _check_zone(chosen, endpoint)


def _check_zone(zone: Zone, endpoint: str) -> str:
    address = urlsplit(zone.api_endpoint)
    if address.scheme not in ("http", "https") or not address.netloc:
        raise InvalidAnswer(
            f"zone {zone.name!r} has no usable api-endpoint: {zone.api_endpoint!r}",
            hint=f"Look at {endpoint}/zone.",
        )
    if address.scheme == "http" and urlsplit(endpoint).scheme == "https":
        # The list of zones is not signed, and what follows carries tokens.
        raise InvalidAnswer(
            f"zone {zone.name!r} of {endpoint} would be reached without encryption "
            f"({zone.api_endpoint}); nothing was sent there",
            hint="Correct the server's public address, or name its https:// endpoint.",
        )
    return zone.api_endpoint.rstrip("/")


class Versioned(Protocol):
    """A deployment as it was read."""

    @property
    def id(self) -> str:
        """The lower-case UUID."""
        ...

    @property
    def version(self) -> str | None:
        """What a change of it is based on; None where the API knows no versions."""
        ...


def target(deployment: str | Versioned) -> tuple[str, str | None]:
    """Return the id of a deployment and, of one that was read, the version that a change is based on."""
    if isinstance(deployment, str):
        return deployment, None
    return deployment.id, deployment.version
