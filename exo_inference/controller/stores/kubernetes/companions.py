"""What is written beside an object, before its write and after it; taken back if it is refused.

`store.py` is the only caller. The order, and why it may be cut off anywhere, is in
docs/decisions/0007-kubernetes-store.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from exo_inference.controller.stores.base import Recording, StoreUnreachable
from exo_inference.controller.stores.kubernetes.events import Events
from exo_inference.controller.stores.kubernetes.records import Basis, Effect, Records
from exo_inference.controller.stores.kubernetes.secrets import Secrets
from exo_inference.errors import StoreError
from exo_inference.kubernetes_api.identity import is_uuid
from exo_inference.kubernetes_api.objects import Stored
from exo_inference.resources import OperationSubject, Resource
from exo_inference.wire import Operation

logger = logging.getLogger(__name__)

_Undo = list[Callable[[], Awaitable[None]]]


class Companions:
    """Operations, claims, Secrets and Events of writes."""

    def __init__(self, records: Records, secrets: Secrets, events: Events) -> None:
        self._records = records
        self._secrets = secrets
        self._events = events

    @contextlib.asynccontextmanager
    async def before(
        self,
        recording: Recording | None,
        subject: OperationSubject,
        effect: Effect,
        basis: Basis | None = None,
    ) -> AsyncIterator[None]:
        """Write what must not be missing once the object is written, which is done inside.

        Args:
            recording: what belongs to the write.
            subject: the object.
            effect: a create keeps the secrets of an attempt before.
            basis: what a change is made on.
        """
        undo: _Undo = []
        try:
            if recording is not None:
                await self._write(recording, subject, undo, effect, basis)
            yield
        except StoreError as exc:
            if not isinstance(exc, StoreUnreachable):  # then the outcome is not known
                await _take_back(undo)
            raise

    async def after(
        self, recording: Recording | None, kind: type[Resource], stored: Stored
    ) -> None:
        """Write what may be missing: the memory of a create finds its object without it."""
        if recording is None:
            return
        # Both log their failures; neither needs the other, and somebody waits for the answer.
        writes = self._confirm_all(recording)
        if recording.events:
            writes.append(self._events.add(kind, stored, recording.events))
        await asyncio.gather(*writes)

    async def before_the_end(self, kind: type[Resource], stored: Stored, uid: str) -> None:
        """Write down whose an id was, and remove what nobody looks for soon once the object is gone."""
        if is_uuid(uid):  # an id of another form nobody can ask for
            heir = stored.heir or stored.name
            subject = OperationSubject(kind=kind.KIND, name=heir, uid=uid)
            await self._records.add_departed(subject)
        await self._secrets.forget(uid)

    async def after_the_end(self, recording: Recording | None, stored: Stored, uid: str) -> None:
        """Remove what belonged to an object that is gone, and was known by this uid."""
        self._events.forget(stored.uid)
        if recording is not None:
            await asyncio.gather(*self._confirm_all(recording))
        try:
            await self._secrets.forget(uid)
        except StoreError as exc:
            logger.warning("secrets of %s are removed later: %s", stored.name, exc.message)

    def _confirm_all(self, recording: Recording) -> list[Awaitable[None]]:
        request = recording.request
        return [] if request is None else [self._confirm(key) for key in request.keys]

    async def _confirm(self, key: str) -> None:
        try:
            await self._records.confirm(key)
        except StoreError as exc:
            logger.warning("a write is remembered by its object alone: %s", exc.message)

    async def _write(
        self,
        recording: Recording,
        subject: OperationSubject,
        undo: _Undo,
        effect: Effect,
        basis: Basis | None,
    ) -> None:
        operation, request = recording.operation, recording.request
        is_new = effect is Effect.CREATE
        if request is not None:
            for key in request.keys:
                if await self._records.claim(key, request, subject, effect, basis):
                    undo.append(functools.partial(self._records.remove_request, key))

        async def write_operation(operation: Operation) -> None:
            if await self._records.add_operation(operation, subject):
                undo.append(functools.partial(self._records.remove_operation, operation.id))

        async def write_secret(name: str, value: bytes) -> None:
            before = None if is_new else await self._secrets.get(subject.uid, name)
            store = self._secrets.add if is_new else self._secrets.put
            if await store(subject.uid, name, value):
                undo.append(functools.partial(self._secrets.remove, subject.uid, name))
            elif before is not None:
                undo.append(functools.partial(put_back, name, value, before))

        async def put_back(name: str, value: bytes, before: bytes) -> None:
            if await self._secrets.get(subject.uid, name) == value:  # else it is another write's
                await self._secrets.put(subject.uid, name, before)

        writes = [write_secret(name, value) for name, value in recording.secrets.items()]
        if operation is not None:
            writes.append(write_operation(operation))
        # All have ended before an error is raised: what was written by then is taken back.
        for result in await asyncio.gather(*writes, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result


async def _take_back(undo: _Undo) -> None:
    for action in reversed(undo):
        try:
            await action()
        except StoreError as failure:
            logger.warning("something of a refused write is left: %s", failure.message)
