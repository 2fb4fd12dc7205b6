"""Helm's records of its releases, one Secret per revision: reading them, and clearing what is stuck.

Whose a release is, is in its newest record: the chart, and the uid among its values. A name proves nothing.

A Helm that is killed leaves a record whose state is pending, and every later Helm refuses to touch
the release. Such a record is removed: the revision before it is what Helm then begins with, and what
the dead one had changed already is brought in line by the next upgrade (docs/decisions/0008).
"""

from __future__ import annotations

import base64
import json
import logging
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from exo_inference.errors import PlatformError
from exo_inference.kubernetes_api.client import KubernetesApi, object_path
from exo_inference.kubernetes_api.deletion import delete_if_there
from exo_inference.platforms.kubernetes.names import DEPLOYMENT_CHART, MODEL_CHART

logger = logging.getLogger(__name__)

PENDING = frozenset({"pending-install", "pending-upgrade", "pending-rollback"})
_PAGE = 100
_NAMES_AT_ONCE = 50
"""In one selector, which is part of a URL."""

_MAX_RECORD_BYTES = 32 * 1024 * 1024
"""Of an unpacked record: a Secret holds one MiB, which may be packed as small as its author likes."""

_UNREADABLE = "Helm's record {} cannot be read: {}"

_UID_VALUES = {DEPLOYMENT_CHART: "deployment", MODEL_CHART: "model"}
"""Our charts, and the value of each that says in `uid` whose release it is."""


class Owner(NamedTuple):
    """Whose a release is: its chart, and the uid of the deployment or model; empty where it is not ours."""

    chart: str
    uid: str = ""


UNKNOWN_OWNER = Owner("")
"""Of a release whose record cannot be read: it is there, and not ours."""


@dataclass(frozen=True, slots=True)
class Revision:
    """One revision of a release. `secret` is the name of its record, `packed` what is in it."""

    secret: str
    release: str
    number: int
    status: str
    packed: str = field(default="", repr=False)


async def list_revisions(api: KubernetesApi, *releases: str) -> list[Revision]:
    """Return the revisions of releases; those of one follow each other, oldest first.

    Raises:
        StoreError
    """
    return await _list(api, f"owner=helm,name in ({','.join(releases)})")


def find_owner(revisions: Sequence[Revision], release: str) -> Owner | None:
    """Return whose a release is by its newest record; None where there is no such release."""
    newest = next((entry for entry in reversed(revisions) if entry.release == release), None)
    return None if newest is None else owner_of(newest)


def owner_of(revision: Revision) -> Owner:
    """Return whose a release is by one of its records; one that cannot be read is nobody's."""
    try:
        record = read_record(revision)
    except PlatformError as exc:
        logger.warning("%s", exc.message)
        return UNKNOWN_OWNER
    chart = record.get("chart")
    metadata = chart.get("metadata") if isinstance(chart, Mapping) else None
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not isinstance(name, str) or name not in _UID_VALUES:
        return Owner(name) if isinstance(name, str) else UNKNOWN_OWNER
    values = record.get("config")
    part = values.get(_UID_VALUES[name]) if isinstance(values, Mapping) else None
    uid = part.get("uid") if isinstance(part, Mapping) else None
    return Owner(name, uid if isinstance(uid, str) else "")


def read_record(revision: Revision) -> Mapping[str, Any]:
    """Return what Helm wrote down of a revision.

    Raises:
        PlatformError: it cannot be read.
    """
    try:
        found = json.loads(_unpack(revision.packed))
    except (ValueError, zlib.error, RecursionError) as exc:
        raise PlatformError(_UNREADABLE.format(revision.secret, str(exc)[:200])) from exc
    if not isinstance(found, Mapping):
        raise PlatformError(_UNREADABLE.format(revision.secret, f"a {type(found).__name__}"))
    return found


def _unpack(packed: str) -> bytes:
    """Return the text of a record, which is packed by gzip and twice by base64.

    Raises:
        ValueError, zlib.error: it is not, it ends too soon, or it is too large.
    """
    unpacking = zlib.decompressobj(wbits=31)
    text = unpacking.decompress(base64.b64decode(base64.b64decode(packed)), _MAX_RECORD_BYTES + 1)
    if len(text) > _MAX_RECORD_BYTES:
        raise ValueError(f"it has more than {_MAX_RECORD_BYTES} bytes when it is unpacked")
    if not unpacking.eof:
        raise ValueError("it ends too soon")
    return text


async def list_unfinished(api: KubernetesApi) -> list[Revision]:
    """Return the records of all releases whose Helm did not come to an end, or failed.

    Raises:
        StoreError
    """
    states = ",".join(sorted({*PENDING, "uninstalling", "failed"}))
    return await _list(api, f"owner=helm,status in ({states})")


async def find_cut_off(api: KubernetesApi) -> set[str]:
    """Return the releases whose last Helm was killed, was told to end, or failed.

    One that is told to end writes "failed", whether or not the objects were changed by then.

    Raises:
        StoreError
    """
    left = await list_unfinished(api)
    cut_off = {entry.release for entry in left if entry.status in PENDING}
    failed = sorted({entry.release for entry in left if entry.status == "failed"} - cut_off)
    for start in range(0, len(failed), _NAMES_AT_ONCE):
        names = failed[start : start + _NAMES_AT_ONCE]
        # One that failed before another did not is history.
        newest = {entry.release: entry.status for entry in await list_revisions(api, *names)}
        cut_off |= {name for name, status in newest.items() if status == "failed"}
    return cut_off


async def discard_pending(api: KubernetesApi, release: str) -> bool:
    """Remove the records of a Helm that was killed; True when there was one.

    Only for the leader, and only while it runs no Helm on that release.

    Raises:
        StoreError
    """
    stuck = [found for found in await list_revisions(api, release) if found.status in PENDING]
    for revision in stuck:
        logger.warning(
            "release %s: a Helm was killed in revision %d (%s); its record is removed",
            release,
            revision.number,
            revision.status,
        )
        await delete_if_there(api, object_path(api, "secrets", revision.secret))
    return bool(stuck)


async def _list(api: KubernetesApi, selector: str) -> list[Revision]:
    query = {"labelSelector": selector, "limit": str(_PAGE)}
    found = []
    while True:
        page = await api.get(object_path(api, "secrets"), query)
        for item in page["items"]:
            labels = item["metadata"].get("labels", {})
            if not labels.get("version", "").isdigit():
                continue
            found.append(
                Revision(
                    secret=item["metadata"]["name"],
                    release=labels.get("name", ""),
                    number=int(labels["version"]),
                    status=labels.get("status", ""),
                    packed=(item.get("data") or {}).get("release", ""),
                )
            )
        if not page["metadata"].get("continue"):
            return sorted(found, key=lambda revision: (revision.release, revision.number))
        query = {**query, "continue": page["metadata"]["continue"]}
