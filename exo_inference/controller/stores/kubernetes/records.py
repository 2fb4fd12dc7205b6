"""Operations, idempotent creates and facts: what is remembered beside the objects.

`store.py` is the only caller. Operations and creates are `InferenceOperation` objects, facts the
entries of one ConfigMap. The name of a create's memory is made of its idempotency key, so that the
API server lets only one of two controllers begin it.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from exo_inference.controller.stores.base import (
    ChangeSuperseded,
    ObjectNotFound,
    RecordedRequest,
    RequestRepeated,
)
from exo_inference.errors import StoreError
from exo_inference.kubernetes_api.client import ApiRefusal, KubernetesApi, get_if_there, object_path
from exo_inference.kubernetes_api.deletion import delete_if_there
from exo_inference.kubernetes_api.objects import UID_LABEL, dump_part, read_object
from exo_inference.resources import (
    API_GROUP,
    API_VERSION,
    ROLL_ANNOTATION,
    IdempotentRequest,
    InferenceApiKey,
    InferenceDeployment,
    InferenceModel,
    InferenceOperation,
    OperationResult,
    OperationSpec,
    OperationSubject,
    Resource,
)
from exo_inference.wire import Operation

KINDS: dict[str, type[Resource]] = {
    kind.KIND: kind for kind in (InferenceModel, InferenceDeployment, InferenceApiKey)
}
"""The kinds of objects that operations are about."""

RECORD_LABEL = f"{API_GROUP}/record"
_CHANGE = f"{API_GROUP}/change"
"""Annotation of the memory of what is no create: its `Effect`, or `REFUSED`."""

_BASIS = f"{API_GROUP}/changes-version"
"""Annotation of the memory of a change: the version of its object that it was made on."""

REFUSED = "refused"
"""Instead of an `Effect`: the write had none. `resultId` is then until when it is judged again."""

REFUSALS_KEPT = timedelta(seconds=1080)
"""A signature is accepted for 960 s at most; clocks may differ."""

DEPARTED_KEPT = timedelta(days=90)
"""How long an id of what was deleted is for no object of another name."""

ABANDONED_AFTER = timedelta(seconds=60)
"""A create that has not made its object by then was cut off: no request lives so long."""

_FACTS = "exo-inference-facts"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DELETIONS_AT_ONCE = 20


class Effect(StrEnum):
    """What a write does to its object."""

    CREATE = "create"
    CHANGE = "true"  # as it has always been written
    DELETION = "deletion"


@dataclass(frozen=True, slots=True)
class Basis:
    """What a change is made on.

    Attributes:
        version: of what was wanted of the object; it never comes again.
        is_left: the change makes it another one; no, where what is asked for is so already.
    """

    version: str
    is_left: bool

    @classmethod
    def of(cls, present: Resource, wanted: Resource) -> Basis:
        """Return that of a change of an object as it is."""
        # A new name is no new specification, and so no new generation; nor is a restart.
        version = f"{present.metadata.generation} {present.metadata.name}"
        is_renamed = present.metadata.name != wanted.metadata.name
        before, after = (
            each.metadata.annotations.get(ROLL_ANNOTATION) for each in (present, wanted)
        )
        if before != after:
            version += f" {before}"
        is_other = is_renamed or dump_part(present, "spec") != dump_part(wanted, "spec")
        return cls(version, is_other or before != after)


class Records:
    """What is remembered in one namespace."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api

    async def add_operation(self, operation: Operation, subject: OperationSubject) -> bool:
        """Store an operation; return False if this very one was stored before.

        Raises:
            StoreError: there is another operation with the id.
        """
        answer = operation.model_dump_json(by_alias=True, exclude_none=True)
        result = OperationResult(state=operation.state.value, answer=answer)
        spec = OperationSpec(subject=subject, result=result)
        try:
            await self._api.create(self._path(), _record(operation.id, "operation", spec))
        except ApiRefusal as exc:
            if exc.reason != "AlreadyExists":
                raise
            if await self._load(operation.id) == spec:
                return False
            raise StoreError(f"there is an operation {operation.id!r} already") from exc
        return True

    async def get_operation(self, uid: str) -> Operation:
        """Return one operation.

        Raises:
            ObjectNotFound
        """
        spec = await self._load(uid)
        if spec is None or spec.result is None:
            raise ObjectNotFound(f"there is no operation {uid[:64]!r}")
        return Operation.model_validate_json(spec.result.answer)

    async def claim(
        self,
        key: str,
        request: RecordedRequest,
        subject: OperationSubject,
        effect: Effect,
        basis: Basis | None = None,
    ) -> bool:
        """Begin an idempotent write; return False if it was begun before, for the same uid.

        Args:
            key: one of the request's.
            request: the write.
            subject: the object that it makes, changes or removes.
            effect: which of these.
            basis: what a change is made on.

        Raises:
            RequestRepeated: it was recorded, or someone else is recording it.
            ChangeSuperseded: it was cut off, and another change was made since.
        """
        wanted = IdempotentRequest(fingerprint=request.fingerprint, result_id=request.result_id)
        spec = OperationSpec(subject=subject, request=wanted)
        body = _record(_request_name(key), "request", spec)
        if effect is not Effect.CREATE:
            body["metadata"]["annotations"] = {_CHANGE: effect.value}
        if basis is not None:
            body["metadata"]["annotations"][_BASIS] = basis.version
        try:
            await self._api.create(self._path(), body)
        except ApiRefusal as exc:
            if exc.reason != "AlreadyExists":
                raise
        else:
            return True
        return await self._take_over(key, body, subject, basis)

    async def find_request(self, key: str) -> RecordedRequest | None:
        """Return the write that is known under this key, if it was made, or refused for good."""
        raw = await self._get(_request_name(key))
        if raw is None:
            return None
        spec = _read(raw).spec
        if _effect_of(raw) == REFUSED:
            is_settled = spec.request is None or _seconds(spec.request.result_id) <= time.time()
            return RecordedRequest(key, "", "", is_refused=True) if is_settled else None
        if spec.request is None or not await self._is_recorded(raw):
            return None
        return RecordedRequest(key, spec.request.fingerprint, spec.request.result_id)

    async def add_refusal(self, key: str, judged_again_until: float) -> None:
        """Note that a write was refused, unless something is known of it already.

        Args:
            key: that it is known under.
            judged_again_until: seconds since the epoch, from when on it stays refused.
        """
        request = IdempotentRequest(fingerprint="", result_id=str(judged_again_until))
        nothing = OperationSubject(kind="", name="", uid="")
        spec = OperationSpec(subject=nothing, request=request)
        body = _record(_request_name(key), "refusal", spec)
        body["metadata"]["annotations"] = {_CHANGE: REFUSED}
        await self._try(self._api.create(self._path(), body))

    async def add_departed(self, subject: OperationSubject) -> None:
        """Record whose id this was, as the object is deleted now. This replaces an earlier record of that object."""
        nothing = IdempotentRequest(fingerprint="", result_id="")
        spec = OperationSpec(subject=subject, request=nothing)
        body = _record(f"departed-{subject.uid}", "departed", spec)
        # Anew, not changed: how long it is kept counts from its creation.
        await delete_if_there(self._api, self._path(body["metadata"]["name"]))
        await self._try(self._api.create(self._path(), body))

    async def list_departed(self) -> list[OperationSubject]:
        """Return whose the ids were of what was deleted."""
        query = {"labelSelector": f"{RECORD_LABEL}=departed", "limit": "500"}
        found: list[OperationSubject] = []
        while True:
            page = await self._api.get(self._path(), query)
            # Items of a list do not say what they are.
            kind = {"apiVersion": API_VERSION}
            found += [_read({**kind, **item}).spec.subject for item in page["items"]]
            if not page["metadata"].get("continue"):
                return found
            query = {**query, "continue": page["metadata"]["continue"]}

    async def confirm(self, key: str) -> None:
        """Note that a write was made, so that its object need not be looked for."""
        path = f"{self._path(_request_name(key))}/status"
        await self._api.merge(path, {"status": {"recorded": True}})

    async def remove_operation(self, uid: str) -> None:
        """Forget an operation whose write was refused."""
        await delete_if_there(self._api, self._path(uid))

    async def remove_request(self, key: str) -> None:
        """Forget a create that was refused."""
        await delete_if_there(self._api, self._path(_request_name(key)))

    async def ensure_fact(self, name: str, value: str) -> str:
        """Return the stored fact; store `value` if there is none."""
        path = object_path(self._api, "configmaps", _FACTS)
        while True:
            found = await get_if_there(self._api, path)
            if found is None:
                body = {"metadata": {"name": _FACTS}, "data": {name: value}}
                await self._try(self._api.create(object_path(self._api, "configmaps"), body))
                continue
            facts: dict[str, str] = found.get("data", {})
            if name in facts:
                return facts[name]
            version = {"resourceVersion": found["metadata"]["resourceVersion"]}
            await self._try(self._api.merge(path, {"metadata": version, "data": {name: value}}))

    async def prune_all(self, requests_before: datetime, operations_before: datetime) -> None:
        """Remove what is old of all sorts."""
        now = datetime.now(UTC)
        await self.prune("request", requests_before)
        await self.prune("operation", operations_before)
        await self.prune("refusal", now - REFUSALS_KEPT)
        await self.prune("departed", now - DEPARTED_KEPT)

    async def prune(self, record: str, before: datetime) -> None:
        """Remove the records of one sort (`operation`, `request`, `refusal`, `departed`) that are older."""
        query = {"labelSelector": f"{RECORD_LABEL}={record}", "limit": "500"}
        while True:
            page = await self._api.get(self._path(), query)
            old = [
                item["metadata"]["name"]
                for item in page["items"]
                if _created(item["metadata"]) < before
            ]
            for start in range(0, len(old), _DELETIONS_AT_ONCE):
                part = old[start : start + _DELETIONS_AT_ONCE]
                await asyncio.gather(
                    *(delete_if_there(self._api, self._path(name)) for name in part)
                )
            if not page["metadata"].get("continue"):
                return
            query = {**query, "continue": page["metadata"]["continue"]}

    async def _take_over(
        self, key: str, body: dict[str, Any], subject: OperationSubject, basis: Basis | None
    ) -> bool:
        """Go on with a write that was begun before and cut off."""
        raw = await self._get(_request_name(key))
        if raw is None:  # pruned in this moment
            raise RequestRepeated("the same create was forgotten meanwhile", hint="Repeat it.")
        if await self._is_recorded(raw):
            raise RequestRepeated(
                "another controller recorded the same create meanwhile",
                hint="Repeat the request: it is answered with what was created.",
            )
        is_ours = _read(raw).spec.subject.uid == subject.uid
        if basis is not None and basis.is_left and _basis_of(raw) not in (None, basis.version):
            raise ChangeSuperseded(
                f"this very change of {subject.kind} {subject.name!r} was begun before and cut off, and "
                "another one was made since",
                hint="Look at what is there, and sign a new request if the change is still wanted.",
            )
        is_free = is_ours or _effect_of(raw) == REFUSED
        if not is_free and datetime.now(UTC) - _created(raw["metadata"]) < ABANDONED_AFTER:
            raise RequestRepeated(
                "the same create is being recorded by another controller",
                hint="Repeat the request in a minute.",
            )
        version = {"resourceVersion": raw["metadata"]["resourceVersion"]}
        body = {**body, "metadata": {**body["metadata"], **version}}
        try:
            await self._api.replace(self._path(_request_name(key)), body)
        except ApiRefusal as exc:
            raise RequestRepeated("the same create was begun twice", hint="Repeat it.") from exc
        return not is_ours

    async def _is_recorded(self, raw: Mapping[str, Any]) -> bool:
        """Whether a write was made. What a create made may be gone again since."""
        record, effect = _read(raw), _effect_of(raw)
        if record.status.recorded:
            return True
        if effect in (Effect.CHANGE, REFUSED):
            return False  # not confirmed: a repeat finishes the change
        subject = record.spec.subject
        found = await self._find_object(subject)
        if effect == Effect.DELETION:
            return found is None or "deletionTimestamp" in found["metadata"]
        return found is not None

    async def _find_object(self, subject: OperationSubject) -> dict[str, Any] | None:
        """Return an object, past all caches; None if it is gone."""
        kind = KINDS[subject.kind]
        path = object_path(self._api, kind.PLURAL, subject.name, group=API_VERSION)
        found = await get_if_there(self._api, path)
        is_same = found is not None and read_object(kind, found).resource_uid == subject.uid
        return found if is_same else None

    async def _load(self, name: str) -> OperationSpec | None:
        raw = await self._get(name)
        return None if raw is None else _read(raw).spec

    async def _get(self, name: str) -> dict[str, Any] | None:
        if not _NAME.fullmatch(name):
            return None
        return await get_if_there(self._api, self._path(name))

    async def _try(self, write: Any) -> None:
        """Make a write that someone else may have made first; the caller looks again."""
        try:
            await write
        except ApiRefusal as exc:
            if exc.status_code != 409:
                raise

    def _path(self, name: str = "") -> str:
        return object_path(self._api, InferenceOperation.PLURAL, name, group=API_VERSION)


def _request_name(key: str) -> str:
    return f"request-{hashlib.sha256(key.encode()).hexdigest()[:40]}"


def _record(name: str, record: str, spec: OperationSpec) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": InferenceOperation.KIND,
        "metadata": {
            "name": name,
            "labels": {RECORD_LABEL: record, UID_LABEL: spec.subject.uid},
        },
        "spec": spec.model_dump(mode="json", by_alias=True, exclude_none=True),
    }


def _read(raw: Mapping[str, Any]) -> InferenceOperation:
    stored = read_object(InferenceOperation, raw).resource
    if not isinstance(stored, InferenceOperation):
        raise StoreError(f"the operation {raw['metadata']['name']!r} cannot be read")
    return stored


def _effect_of(raw: Mapping[str, Any]) -> str:
    return str(raw["metadata"].get("annotations", {}).get(_CHANGE, Effect.CREATE))


def _basis_of(raw: Mapping[str, Any]) -> str | None:
    found = raw["metadata"].get("annotations", {}).get(_BASIS)
    return None if found is None else str(found)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _created(metadata: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(metadata["creationTimestamp"])
