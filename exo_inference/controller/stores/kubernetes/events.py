"""What happened to objects, as Kubernetes Events: `kubectl describe` shows them, too.

`store.py` is the only caller, after the write that an event is about. The cluster forgets them after
its own time (an hour unless its `--event-ttl` says otherwise). Whether an event repeats the one
before is known of this process's events alone: reading them back for each would be dear.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from exo_inference.controller.stores.base import NewEvent
from exo_inference.errors import StoreError
from exo_inference.kubernetes_api.client import (
    FIELD_MANAGER,
    ApiRefusal,
    KubernetesApi,
    object_path,
)
from exo_inference.kubernetes_api.deletion import delete_if_there
from exo_inference.kubernetes_api.objects import Stored
from exo_inference.resources import API_VERSION, Resource
from exo_inference.wire import Event

logger = logging.getLogger(__name__)

MAX_EVENTS_PER_OBJECT = 200
_MAX_MESSAGE = 1024
_MAX_OBJECTS = 10_000
_AT_ONCE = 20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class _Written:
    """What this process wrote about one object."""

    names: deque[str] = field(default_factory=deque)
    last: NewEvent | None = None
    count: int = 0


_Events = list[Event]  # inside the class, `list` is the method


class Events:
    """The Events of one namespace that are about our objects."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._written: dict[str, _Written] = {}
        self._last_microsecond = 0

    async def add(self, kind: type[Resource], about: Stored, events: Sequence[NewEvent]) -> None:
        """Write events. A failure is logged: what they are about has happened all the same."""
        planned: dict[str, dict[str, Any]] = {}
        for event in events:
            name, body = self._next_write(kind, about, event)
            planned[name] = {**planned.get(name, {}), **body}
        writes = list(planned.items())
        try:
            for start in range(0, len(writes), _AT_ONCE):
                part = writes[start : start + _AT_ONCE]
                await asyncio.gather(*(self._write(name, body) for name, body in part))
            await self._remove_old(about.uid)
        except StoreError as exc:
            names = ", ".join(event.reason for event in events)
            logger.warning("events of %s were lost (%s): %s", about.name, names, exc.message)

    async def list(self, about: Stored) -> _Events:
        """Return the events of an object, oldest first."""
        query = {"fieldSelector": f"involvedObject.uid={about.uid}"}
        items = (await self._api.get(self._path(), query))["items"]
        items = [item for item in items if item.get("reportingComponent") == FIELD_MANAGER]
        items.sort(key=lambda item: (item["eventTime"], item["metadata"]["name"]))
        return [_read(item) for item in items][-MAX_EVENTS_PER_OBJECT:]

    def forget(self, uid: str) -> None:
        """Forget an object that is gone; the cluster forgets its events by itself."""
        self._written.pop(uid, None)

    def _next_write(
        self, kind: type[Resource], about: Stored, event: NewEvent
    ) -> tuple[str, dict[str, Any]]:
        """Return what to write: a new event by its name, or another count of the last one."""
        written = self._written.setdefault(about.uid, _Written())
        if len(self._written) > _MAX_OBJECTS:  # other controllers delete objects, too
            self._written.pop(next(iter(self._written)))
        now = self._next_moment()
        if event == written.last:
            written.count += 1
            return written.names[-1], {"count": written.count, "lastTimestamp": _seconds(now)}
        name = f"{about.name}.{int((now - _EPOCH) / timedelta(microseconds=1)):x}"
        written.names.append(name)
        written.last, written.count = event, 1
        involved = {
            "apiVersion": API_VERSION,
            "kind": kind.KIND,
            "name": about.name,
            "namespace": self._api.namespace,
            "uid": about.uid,
        }
        return name, {
            "metadata": {"name": name},
            "involvedObject": involved,
            "type": event.type,
            "reason": event.reason,
            "message": event.message[:_MAX_MESSAGE],
            "action": event.reason,
            "eventTime": now.isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "firstTimestamp": _seconds(now),
            "lastTimestamp": _seconds(now),
            "count": 1,
            "source": {"component": FIELD_MANAGER},
            "reportingComponent": FIELD_MANAGER,
            "reportingInstance": FIELD_MANAGER,
        }

    async def _write(self, name: str, body: dict[str, Any]) -> None:
        if "metadata" not in body:
            try:
                await self._api.merge(self._path(name), body)
            except ApiRefusal as exc:
                if exc.status_code != 404:  # the cluster has forgotten it
                    raise
            return
        try:
            await self._api.create(self._path(), body)
        except ApiRefusal as exc:
            if exc.reason != "AlreadyExists":
                raise

    async def _remove_old(self, uid: str) -> None:
        names = self._written[uid].names if uid in self._written else deque[str]()
        old = [names.popleft() for _ in range(len(names) - MAX_EVENTS_PER_OBJECT)]
        await asyncio.gather(*(delete_if_there(self._api, self._path(name)) for name in old))

    def _next_moment(self) -> datetime:
        """Return now, later than every moment before, so that events have an order."""
        now = max(time.time_ns() // 1000, self._last_microsecond + 1)
        self._last_microsecond = now
        return _EPOCH + timedelta(microseconds=now)

    def _path(self, name: str = "") -> str:
        return object_path(self._api, "events", name)


def _seconds(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def _read(item: Mapping[str, Any]) -> Event:
    count = item.get("count", 1)
    return Event(
        time=datetime.fromisoformat(item["lastTimestamp"] if count > 1 else item["eventTime"]),
        type=item["type"],
        reason=item["reason"],
        message=item["message"],
        count=count,
    )
