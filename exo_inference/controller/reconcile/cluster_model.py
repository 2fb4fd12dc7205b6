"""Bringing one model onto a volume of the cluster: resolve it, then let the platform download it.

In place of `model.py`. This process resolves a name to one content and its size, in a task of each model's
own: a source that is silent holds no worker of the reconciler. The files are brought by a Job that the
platform installs. What runs is on the cluster, so a new leader goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from exo_inference.controller.admission.model import (
    LONGEST_RESOLVE_SECONDS,
    FindSource,
    no_directory_error,
    resolve_in_time,
)
from exo_inference.controller.conditions import condition
from exo_inference.controller.hub_tokens import read_hub_token
from exo_inference.controller.reconcile.adoption import adopt_model
from exo_inference.controller.reconcile.model_fetch import (
    FINAL_REASON,
    failure_of,
    format_size,
    ready_conditions,
)
from exo_inference.controller.reconcile.model_status import (
    refuse_duplicate,
    refuse_uid,
    release,
    wait_for_users,
    write_status,
)
from exo_inference.controller.reconcile.outcome import TEARDOWN_CHECK_SECONDS, Outcome
from exo_inference.controller.secret_box import SecretBox
from exo_inference.controller.stores.base import ObjectNotFound, Store, VersionConflict
from exo_inference.errors import ExoError, HubError, PlatformError
from exo_inference.hub import FILE_PREFIX, is_in_place
from exo_inference.hub.base import NoSpace, ResolvedModel, SourceUnreachable
from exo_inference.platforms.base import (
    DesiredModel,
    ModelPhase,
    ModelPlatform,
    ObservedModel,
    TokenSecretUnusable,
)
from exo_inference.resources import Condition, InferenceModel, find_condition, is_true

logger = logging.getLogger(__name__)

LOST_REASON = "VolumeGone"
"""Of a model that was ready and whose files are not there any more."""

LOOK_SECONDS = 2.0
"""How often a download is looked at; what changes on the cluster wakes it besides."""

MAX_RETRY_SECONDS = 300.0

SECRET_RETRY_SECONDS = 30.0
"""How long the retry of a Secret that is not there may wait: another controller may make it soon."""


class ClusterModelReconciler:
    """Reconciles models of a cluster.

    Args:
        store: of the objects.
        models: brings the files.
        find_source: resolves names.
        secret_box: of the Hub's tokens.
        wake: called with a model's uid when it should be looked at now.
        first_retry_seconds: how long the first retry waits; it doubles up to `MAX_RETRY_SECONDS`.
    """

    def __init__(
        self,
        store: Store,
        models: ModelPlatform,
        find_source: FindSource,
        secret_box: SecretBox,
        wake: Callable[[str], None],
        *,
        first_retry_seconds: float,
    ) -> None:
        self._store = store
        self._models = models
        self._find_source = find_source
        self._secret_box = secret_box
        self._wake = wake
        self._first_retry = first_retry_seconds
        self._attempts: dict[str, int] = {}
        self._not_before: dict[str, float] = {}
        self._resolving: dict[str, tuple[int, asyncio.Task[ResolvedModel]]] = {}
        """Of which generation of a model the source is asked."""

    async def reconcile(self, uid: str) -> Outcome:
        """Take the next step for one model, or for what is left of one nobody knows."""
        try:
            model = await self._store.get(InferenceModel, uid)
        except ObjectNotFound:
            return await self._tear_down(uid)
        if model.metadata.deletion_timestamp is not None:
            return await self._finish(model)
        if (refused := await refuse_uid(self._store, model)) is not None:
            return refused
        try:
            model = await adopt_model(self._store, model)
        except (VersionConflict, ObjectNotFound):
            return Outcome(again_after_seconds=0.0)
        if (refused := await refuse_duplicate(self._store, model)) is not None:
            return refused
        is_final = _is_final(model.status.conditions)
        if is_true(model.status.conditions, "Ready"):  # another token changes nothing about it
            path = model.status.path
            loss = "" if path is None else await self._models.find_loss(path)
            if not loss:
                return await write_status(self._store, model, model.status.conditions, {})
            found = _waiting(LOST_REASON, loss)
            outcome = await write_status(self._store, model, found, {"downloaded_bytes": 0})
            return replace(outcome, again_after_seconds=0.0)
        is_changed = model.status.observed_generation < model.metadata.generation
        if is_final and not is_changed:
            return Outcome()
        wait = self._not_before.get(uid, 0.0) - asyncio.get_running_loop().time()
        if wait > 0 and not is_changed:
            return Outcome(again_after_seconds=wait)
        try:
            return await self._bring(model)
        except HubError as exc:
            is_final = not isinstance(exc, SourceUnreachable | NoSpace | TokenSecretUnusable)
            return await self._write_failure(model, exc, is_final=is_final)

    async def close(self) -> None:
        """Ask no source any more; the files are brought elsewhere."""
        for uid in list(self._resolving):
            self._stop_resolving(uid)

    async def remove_orphans(self) -> set[str]:
        """Return the uids of models of which something is left; `reconcile` removes what is nobody's."""
        return await self._models.models()

    async def _bring(self, model: InferenceModel) -> Outcome:
        if not is_true(model.status.conditions, "Resolved"):
            return await self._resolve(model)
        uid, status = model.metadata.uid, model.status
        desired = DesiredModel(
            uid=uid,
            name=model.metadata.name,
            source=model.spec.source,
            revision=status.revision or "",
            size_bytes=status.size_bytes,
            token=None if model.spec.token_secret else await self._read_token(model),
            attempt=self._attempts.get(uid, 0),
            token_secret=model.spec.token_secret,
            release=status.release,
        )
        try:
            observed = await self._models.apply_model(desired)
        except PlatformError as exc:
            found = _waiting("PlatformBusy", exc.text)
            outcome = await write_status(self._store, model, found, {})
            return replace(outcome, failed=True)
        return await self._write_observed(model, observed)

    async def _resolve(self, model: InferenceModel) -> Outcome:
        uid, generation = model.metadata.uid, model.metadata.generation
        if model.spec.source.startswith(FILE_PREFIX):
            raise no_directory_error(model.spec.source)
        asked, task = self._resolving.get(uid, (None, None))
        if task is None or asked != generation:
            self._stop_resolving(uid)
            self._start_resolving(model)
            return Outcome(again_after_seconds=LOOK_SECONDS)
        if not task.done():
            return await self._write_resolving(model)
        del self._resolving[uid]
        resolved = task.result()
        fields: dict[str, object] = {
            "revision": resolved.revision,
            "size_bytes": resolved.size_bytes,
        }
        found = _waiting("Preparing", "its download is being set up")
        outcome = await write_status(self._store, model, found, fields)
        return replace(outcome, again_after_seconds=0.0)

    def _start_resolving(self, model: InferenceModel) -> None:
        uid = model.metadata.uid
        self._not_before.pop(uid, None)  # its time has come, or it was changed
        task = asyncio.create_task(self._ask_source(model), name=f"resolve-{uid}")
        self._resolving[uid] = (model.metadata.generation, task)

        def note(done: asyncio.Task[ResolvedModel]) -> None:
            if not done.cancelled():
                done.exception()  # it is raised where the result is read, if it is
                self._wake(uid)

        task.add_done_callback(note)

    def _stop_resolving(self, uid: str) -> None:
        _, task = self._resolving.pop(uid, (0, None))
        if task is not None:
            task.cancel()

    async def _ask_source(self, model: InferenceModel) -> ResolvedModel:
        spec = model.spec
        source = self._find_source(spec.source)
        revision = spec.revision if is_in_place(spec.source) else model.status.revision
        token = await self._read_token(model)
        return await resolve_in_time(
            source,
            spec.source,
            revision=revision or spec.revision,
            token=token,
            seconds=LONGEST_RESOLVE_SECONDS,
        )

    async def _write_resolving(self, model: InferenceModel) -> Outcome:
        """Say that its source is asked, unless why it could not be had before is said already.

        A final failure of what the model was before its change does not stay: with the new generation beside it,
        it would end the model.
        """
        found: Sequence[Condition] = model.status.conditions
        if find_condition(found, "Resolved") is None or _is_final(found):
            found = [
                condition("Resolved", False, "Resolving", "asking its source"),
                condition("Ready", False, "NotFetched"),
            ]
        outcome = await write_status(self._store, model, found, {})
        return replace(outcome, again_after_seconds=outcome.again_after_seconds or LOOK_SECONDS)

    async def _write_observed(self, model: InferenceModel, observed: ObservedModel) -> Outcome:
        uid, size = model.metadata.uid, model.status.size_bytes
        fields: dict[str, object] = {"release": observed.release or model.status.release}
        if observed.phase is ModelPhase.FAILED:
            error = HubError(observed.details)
            return await self._write_failure(model, error, is_final=observed.final)
        if observed.phase is ModelPhase.READY:
            present = {**fields, "path": observed.path, "downloaded_bytes": size}
            outcome = await write_status(self._store, model, ready_conditions(), present)
            if outcome.again_after_seconds is None:
                self._forget(uid)
            return outcome
        found = _waiting("Preparing", observed.details)
        if observed.phase is ModelPhase.DOWNLOADING:
            fields["downloaded_bytes"] = present_bytes = min(observed.downloaded_bytes, size)
            details = f"downloading {format_size(present_bytes, size)}"
            found = _waiting("Downloading", details)
        outcome = await write_status(self._store, model, found, fields)
        return replace(outcome, again_after_seconds=outcome.again_after_seconds or LOOK_SECONDS)

    async def _write_failure(
        self, model: InferenceModel, error: ExoError, *, is_final: bool
    ) -> Outcome:
        uid, attempts = model.metadata.uid, self._attempts.get(model.metadata.uid, 0)
        longest = MAX_RETRY_SECONDS
        if isinstance(error, TokenSecretUnusable):
            longest = SECRET_RETRY_SECONDS
        delay = min(longest, self._first_retry * 2 ** min(attempts, 10))
        is_resolved = is_true(model.status.conditions, "Resolved")
        found = failure_of(error, is_resolved=is_resolved, delay=None if is_final else delay)
        outcome = await write_status(self._store, model, found, {})
        if outcome.again_after_seconds is not None:
            return outcome
        if is_final:
            self._forget(uid)
            return outcome
        self._attempts[uid] = attempts + 1
        self._not_before[uid] = asyncio.get_running_loop().time() + delay
        return replace(outcome, again_after_seconds=delay)

    async def _read_token(self, model: InferenceModel) -> str | None:
        return await read_hub_token(self._store, self._secret_box, self._models, model)

    async def _finish(self, model: InferenceModel) -> Outcome:
        """Take the next step of a deletion: wait for users, remove the release, then the object."""
        waiting = await wait_for_users(self._store, model)
        if waiting is not None:
            return waiting
        outcome = await self._tear_down(model.metadata.uid)
        if outcome.again_after_seconds is not None:
            return outcome
        return await release(self._store, model)

    async def _tear_down(self, uid: str) -> Outcome:
        if not await self._models.delete_model(uid):
            return Outcome(again_after_seconds=TEARDOWN_CHECK_SECONDS)
        self._forget(uid)
        return Outcome()

    def _forget(self, uid: str) -> None:
        self._stop_resolving(uid)
        self._attempts.pop(uid, None)
        self._not_before.pop(uid, None)


def _is_final(found: Sequence[Condition]) -> bool:
    """Whether they say that the model, as it was then, can never be had."""
    failed = find_condition(found, "Failed")
    return failed is not None and failed.reason == FINAL_REASON


def _waiting(reason: str, details: str) -> Sequence[Condition]:
    """Return the conditions of a model that is resolved and on its way."""
    return [
        condition("Resolved", True, "Resolved"),
        condition("Downloaded", False, reason, details),
        condition("Ready", False, reason, details),
    ]
