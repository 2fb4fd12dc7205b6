"""Under which uid an object is known, and why not under the one it asks for. Pure.

An object may ask for a uid in an annotation that is bound to its name. Whoever may create objects may
write one, and names, labels and Helm releases are made of it. So it counts only if it is a canonical uuid
that no other object has, and what the first adoption wrote into the status counts for ever. Asking in
vain changes nothing: the object goes by the uid that it had, or by the one that the cluster gave it. That one
is written down, too: nobody gets a uid by waiting for the end of the object that has it.

Whoever may write a status could write another's uid into it. So controllers seal what they take over, in an
annotation that nobody else can make: a sealed uid outranks one that merely stands in a status, and that is put
right. A seal is of one object name; an object that is made anew under the name may carry it on, unless the uid
went to another name meanwhile: seals can be read, and outlive the object.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from exo_inference.resources import API_GROUP, UidProblem

UID_ANNOTATION = f"{API_GROUP}/uid"
"""`<object name>/<uid>`: the uid that is asked for. With another name in front it came with a copy."""

SEAL_ANNOTATION = f"{API_GROUP}/uid-seal"
"""`<uid>.<seal>`: a controller took the object of this kind and name over under this uid."""

SUCCESSOR_ANNOTATION = f"{API_GROUP}/successor"
"""Name of the object of the same kind that may ask for the uid once this one is gone."""

Seal = Callable[[str, str], str]
"""Returns what only a controller can write of an object, by its kind and name, and its uid."""

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")

_OF_URL = re.compile(r".*/([^/]+)/v1")
_OF_PATH = re.compile(r"pvc:(?:exo-model-|[^/]+/)([^/]+)")
"""Where a version that wrote no uid into the status shows the one it had adopted."""

MAX_DEPARTED = 100_000
"""Uids of objects that are gone which are remembered; the first are forgotten first."""

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
        is_sealed: a controller's seal says that it has the uid; a status alone anybody may have written.
        is_carried: the seal may be of an object before it: the status does not say that this one was taken over.
    """

    uid: str
    is_fixed: bool = False
    problem: UidProblem | None = None
    is_sealed: bool = False
    is_carried: bool = False


def identify(raw: Mapping[str, Any], kind: str = "", seal: Seal | None = None) -> Identity:
    """Return what an object, as the API server gives it, says of its uid.

    Args:
        raw: the object.
        kind: of the object.
        seal: of the controllers; None where there are no seals, or they cannot be checked.
    """
    meta, status = raw["metadata"], raw.get("status") or {}
    annotations = meta.get("annotations") or {}
    text = annotations.get(UID_ANNOTATION)
    asked = _asked_uid(meta["name"], text)
    sealed = _sealed_uid(annotations.get(SEAL_ANNOTATION, ""), f"{kind} {meta['name']}", seal)
    if fixed := sealed or _fixed_uid(status):
        is_sealed = bool(sealed)
        is_carried = is_sealed and _fixed_uid(status) != sealed
        refused = (
            None if asked in (None, fixed) else _refused_before(status) or _changed(fixed, text)
        )
        return Identity(fixed, True, refused, is_sealed, is_carried)
    if asked is None or not _UUID.fullmatch(asked):
        problem = None if asked is None else _invalid(meta["name"], text)
        return Identity(str(meta["uid"]), problem=problem)
    return Identity(asked)


def is_uuid(text: str) -> bool:
    """Whether this is a UUID as we write them."""
    return _UUID.fullmatch(text) is not None


def sealed_annotation(kind: str, name: str, uid: str, seal: Seal) -> str:
    """Return what says that an object was taken over under a uid."""
    return f"{uid}.{seal(f'{kind} {name}', uid)}"


def _sealed_uid(text: str, what: str, seal: Seal | None) -> str:
    """Return the uid that a seal is of; empty where there is none, or it is not the controllers'."""
    uid, _, found = text.rpartition(".")
    if seal is None or not _LABEL_VALUE.fullmatch(uid):
        return ""
    return uid if hmac.compare_digest(found.encode(), seal(what, uid).encode()) else ""


def _asked_uid(name: str, text: str | None) -> str | None:
    """Return the uid that an annotation asks for, empty where it is none; None if it asks for nothing."""
    if text is None:
        return None
    owner, slash, uid = text.partition("/")
    return uid if owner == name else None if slash else ""


def _fixed_uid(status: Mapping[str, Any]) -> str:
    """Return the uid that the first adoption, or who else may write a status, has written down."""
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
        heir: kind and name of what may have its uid when it is gone; empty is its own.
    """

    own: str
    identity: Identity
    age: Age
    what: str
    is_idle: bool = False
    heir: str = ""

    def rank(self, uid: str) -> tuple[int, Age]:
        """Return what claims on a uid are ordered by: the first has it."""
        if uid == self.own:
            return 0, self.age
        if self.identity.is_fixed:
            is_sealed, is_carried = self.identity.is_sealed, self.identity.is_carried
            return (1 + is_carried if is_sealed else 3), self.age
        return (5 if self.is_idle else 4), self.age


class Claims:
    """Who has which uid, of all objects that are noted, whatever their kinds."""

    def __init__(self) -> None:
        self._known: dict[str, Claim] = {}
        self._by_uid: dict[str, set[str]] = {}
        self._departed: dict[str, str] = {}

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

    def depart(self, own: str) -> None:
        """Take note that a noted object goes for good: its uid is for no object of another name."""
        claim = self._known[own]
        self.remember(self.resolve(own)[0], claim.heir or claim.what)

    def remember(self, uid: str, what: str) -> None:
        """Take note of whose a uid was, by kind and name."""
        self._departed[uid] = what
        if len(self._departed) > MAX_DEPARTED:
            self._departed.pop(next(iter(self._departed)))

    def holder(self, uid: str) -> Claim | None:
        """Return the object that has a uid."""
        owners = self._by_uid.get(uid, ())
        if len(owners) == 1:
            return self._known[next(iter(owners))]
        claims = (self._known[own] for own in owners)
        return min(
            claims,
            key=lambda claim: (self._was_anothers(claim.own), claim.rank(uid)),
            default=None,
        )

    def rivals(self, own: str) -> list[str]:
        """Return the other objects that ask for what an object has or asks for."""
        uids = {own, self._known[own].identity.uid} if own in self._known else set()
        return [other for uid in uids for other in self._by_uid[uid] if other != own]

    def has_lost(self, own: str) -> bool:
        """Whether a noted object's status has a uid that is, as a seal says, or was another's."""
        identity = self._known[own].identity
        if not identity.is_fixed or (identity.is_sealed and not identity.is_carried):
            return False
        if self._was_anothers(own):
            return True
        holder = self.holder(identity.uid)
        return holder is not None and holder.own != own and holder.identity.is_sealed

    def resolve(self, own: str) -> tuple[str, UidProblem | None]:
        """Return the uid that a noted object is known under, and why it is not the one it asks for."""
        identity = self._known[own].identity
        holder = self.holder(identity.uid)
        assert holder is not None, "the object claims it itself"
        if holder.own == own:
            if self._was_anothers(own):
                text = _WAS_ANOTHERS.format(self._departed[identity.uid], identity.uid)
                return own, UidProblem(DUPLICATE_REASON, text)
            return identity.uid, identity.problem
        text = (
            f"{holder.what} had the id {identity.uid} when this object asked for it by the annotation "
            f"{UID_ANNOTATION}. Waiting for it does not help, and nothing is done: take the annotation away, and this "
            f"object goes by {own}; or delete this object, and create it anew when the id is free"
        )
        return own, UidProblem(DUPLICATE_REASON, text)

    def _was_anothers(self, own: str) -> bool:
        """Whether a uid was that of an object of another kind or name, and its URL may be in use still."""
        claim = self._known[own]
        is_its = claim.identity.is_sealed and not claim.identity.is_carried
        if is_its or claim.identity.uid == own:
            return False
        return self._departed.get(claim.identity.uid, claim.what) != claim.what


_WAS_ANOTHERS = (
    "the id {1} is kept for {0}, after an object with it was deleted: clients may use its URL and keys still. "
    f"Nothing is done: choose another UUID for the annotation {UID_ANNOTATION}, or take it away"
)
