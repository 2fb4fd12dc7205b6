"""Why a write of an object is refused, in one form whoever finds it out: the cache or the API server. Pure."""

from __future__ import annotations

from exo_inference.controller.stores.base import NameTaken, ObjectNotFound, VersionConflict
from exo_inference.kubernetes_api.objects import Stored
from exo_inference.resources import Resource


def check_version(given: Resource, stored: Stored) -> None:
    """Refuse a write that was based on another version than the one that is known.

    Raises:
        VersionConflict
    """
    expected = given.metadata.resource_version
    if expected and expected != str(stored.version):
        raise VersionConflict(
            f"{given.KIND} {given.metadata.name!r} changed meanwhile: version {stored.version}, "
            f"expected {expected}"
        )


def name_taken(obj: Resource) -> NameTaken:
    """Return the refusal of a name that another object of its kind has."""
    return NameTaken(f"another {obj.KIND} has the name {obj.metadata.name!r}")


def gone(kind: type[Resource], name: str) -> ObjectNotFound:
    """Return the refusal of what was there a moment ago."""
    return ObjectNotFound(f"there is no {kind.KIND} {name!r} any more")
