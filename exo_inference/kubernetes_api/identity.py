"""Under which uid an object is known, and why not under the one it asks for. Pure.

An object may ask for a uid in an annotation that is bound to its name. Whoever may create objects may
write one, and names, labels and Helm releases are made of it. So it counts only if it is a canonical uuid
that no other object has, and what the first adoption wrote into the status counts for ever. Asking in
vain changes nothing: the object goes by the uid that it had, or by the one that the cluster gave it. That one
is written down, too: nobody gets a uid by waiting for the end of the object that has it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from exo_inference.resources import API_GROUP, UidProblem

UID_ANNOTATION = f"{API_GROUP}/uid"
"""`<object name>/<uid>`: the uid that is asked for. With another name in front it came with a copy."""

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")

_OF_URL = re.compile(r".*/([^/]+)/v1")
_OF_PATH = re.compile(r"pvc:(?:exo-model-|[^/]+/)([^/]+)")
"""Where a version that wrote no uid into the status shows the one it had adopted."""

DUPLICATE_REASON = "DuplicateUid"
_MAX_KEPT = 1000
"""Characters of a condition's message that are kept."""


class Age(NamedTuple):
    """What objects are ordered by."""

    second: str
    moment: str
    name: str


class Identity(NamedTuple):
    """What an object by itself says of its uid.

    Attributes:
        uid: the one it has, or asks for.
        is_fixed: an adoption wrote it down.
        problem: why what the annotation asks for does not count.
    """

    uid: str
    is_fixed: bool = False
    problem: UidProblem | None = None


def identify(raw: Mapping[str, Any]) -> Identity:
    """Return what an object, as the API server gives it, says of its uid."""
    meta = raw["metadata"]
    text = (meta.get("annotations") or {}).get(UID_ANNOTATION)
    asked = _asked_uid(meta["name"], text)
    fixed = _fixed_uid(raw.get("status") or {})
    if fixed:
        if asked in (None, fixed):
            return Identity(fixed, is_fixed=True)
        refused = _refused_before(raw["status"])
        return Identity(fixed, is_fixed=True, problem=refused or _changed(fixed, text))
    if asked is None or not _UUID.fullmatch(asked):
        problem = None if asked is None else _invalid(meta["name"], text)
        return Identity(str(meta["uid"]), problem=problem)
    return Identity(asked)


def is_uuid(text: str) -> bool:
    """Whether this is a UUID as we write them."""
    return _UUID.fullmatch(text) is not None


def _asked_uid(name: str, text: str | None) -> str | None:
    """Return the uid that an annotation asks for, empty where it is none; None if it asks for nothing."""
    if text is None:
        return None
    owner, slash, uid = text.partition("/")
    return uid if owner == name else None if slash else ""


def _fixed_uid(status: Mapping[str, Any]) -> str:
    """Return the uid of the first adoption; only the controller may write a status."""
    written = status.get("uid")
    if not written:
        of_url = _OF_URL.fullmatch(str(status.get("url") or ""))
        found = of_url or _OF_PATH.fullmatch(str(status.get("path") or ""))
        written = found[1] if found else ""
    return written if isinstance(written, str) and _LABEL_VALUE.fullmatch(written) else ""


def _invalid(name: str, text: str | None) -> UidProblem:
    return UidProblem(
        "InvalidUid",
        f"the annotation {UID_ANNOTATION} is {(text or '')[:80]!r}, expected {name[:63]}/UUID with a UUID in lower "
        "case. Nothing is done before you correct it or take it away",
    )


def _refused_before(status: Mapping[str, Any]) -> UidProblem | None:
    """Return what was said when another object had the uid that was asked for; None if none had it."""
    conditions = status.get("conditions")
    for item in conditions if isinstance(conditions, list) else ():
        if isinstance(item, Mapping) and item.get("reason") == DUPLICATE_REASON:
            return UidProblem(DUPLICATE_REASON, str(item.get("message", ""))[:_MAX_KEPT])
    return None


def _changed(fixed: str, text: str | None) -> UidProblem:
    return UidProblem(
        "UidChanged",
        f"the annotation {UID_ANNOTATION} is {(text or '')[:80]!r}, but the id has been {fixed} since the "
        "object was taken over, and its URL and key hang on that. Everything is left as it is. Take the "
        "annotation away; for another id, create another object",
    )


class Claim(NamedTuple):
    """An object that has a uid or asks for it, for `Claims`.

    Attributes:
        own: the uid that the cluster gave it.
        what: kind and name, for people.
        is_idle: nothing can be made of it: it cannot be read, or it is being deleted.
    """

    own: str
    identity: Identity
    age: Age
    what: str
    is_idle: bool = False

    def rank(self, uid: str) -> tuple[int, Age]:
        """Return what claims on a uid are ordered by: the first has it."""
        if uid == self.own:
            return 0, self.age
        if self.identity.is_fixed:
            return 1, self.age
        return (3 if self.is_idle else 2), self.age


class Claims:
    """Who has which uid, of all objects that are noted, whatever their kinds."""

    def __init__(self) -> None:
        self._known: dict[str, Claim] = {}
        self._by_uid: dict[str, set[str]] = {}

    def note(self, claim: Claim) -> None:
        """Take note of an object as it is now."""
        self.drop(claim.own)
        self._known[claim.own] = claim
        for uid in {claim.own, claim.identity.uid}:
            self._by_uid.setdefault(uid, set()).add(claim.own)

    def drop(self, own: str) -> None:
        """Take note that an object is gone."""
        claim = self._known.pop(own, None)
        for uid in () if claim is None else {own, claim.identity.uid}:
            owners = self._by_uid[uid]
            owners.discard(own)
            if not owners:
                del self._by_uid[uid]

    def holder(self, uid: str) -> Claim | None:
        """Return the object that has a uid."""
        owners = self._by_uid.get(uid, ())
        if len(owners) == 1:
            return self._known[next(iter(owners))]
        claims = (self._known[own] for own in owners)
        return min(claims, key=lambda claim: claim.rank(uid), default=None)

    def rivals(self, own: str) -> list[str]:
        """Return the other objects that ask for what an object has or asks for."""
        uids = {own, self._known[own].identity.uid} if own in self._known else set()
        return [other for uid in uids for other in self._by_uid[uid] if other != own]

    def resolve(self, own: str) -> tuple[str, UidProblem | None]:
        """Return the uid that a noted object is known under, and why it is not the one it asks for."""
        identity = self._known[own].identity
        holder = self.holder(identity.uid)
        assert holder is not None, "the object claims it itself"
        if holder.own == own:
            return identity.uid, identity.problem
        text = (
            f"{holder.what} had the id {identity.uid} when this object asked for it by the annotation "
            f"{UID_ANNOTATION}. Waiting for it does not help, and nothing is done: take the annotation away, and this "
            f"object goes by {own}; or delete this object, and create it anew when the id is free"
        )
        return own, UidProblem(DUPLICATE_REASON, text)
