"""The loop that makes the world match what is stored: watches, one queue, workers, a sweep.

`local/server.py` and `cluster/server.py` run it beside the HTTP server. Level-driven: a pass over an object
needs nothing but the object's name, so a restart begins by queueing everything. What one pass does is in
`deployment.py` and `model.py`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple, Protocol

from exo_inference.controller.context import Context
from exo_inference.controller.reconcile.cluster_model import ClusterModelReconciler
from exo_inference.controller.reconcile.deployment import (
    DeploymentReconciler,
    route_key,
)
from exo_inference.controller.reconcile.key_scope_conditions import report_scopes
from exo_inference.controller.reconcile.late_admission import LateAdmission
from exo_inference.controller.reconcile.model import ModelReconciler
from exo_inference.controller.reconcile.outcome import Outcome
from exo_inference.controller.reconcile.queue import WorkQueue
from exo_inference.controller.reconcile.start_recorder import StartRecorder
from exo_inference.controller.stores.base import Change, ChangeType
from exo_inference.errors import ExoError
from exo_inference.resources import (
    PUBLIC_SCOPE,
    InferenceApiKey,
    InferenceDeployment,
    InferenceModel,
    Resource,
)

logger = logging.getLogger(__name__)

REMEMBER_REQUESTS = timedelta(hours=24)
REMEMBER_OPERATIONS = timedelta(days=30)


class Key(NamedTuple):
    """What is in the queue."""

    kind: Literal["model", "deployment", "public-keys"]
    uid: str


class Observe(Protocol):
    """Takes note of one pass over an object."""

    def __call__(self, kind: str, seconds: float, *, failed: bool) -> None:
        """Take note."""
        ...


def _ignore(kind: str, seconds: float, *, failed: bool) -> None:
    """Take note of nothing."""


class Reconciler:
    """Owns the queue and all background work of the controller.

    Args:
        context: what it works with.
        observe: told of every pass.
    """

    def __init__(self, context: Context, observe: Observe = _ignore) -> None:
        self._observe = observe
        settings = context.settings
        self._store = context.store
        self._platform = context.platform
        self._settings = settings
        self._routing = context.routing
        self._queue: WorkQueue[Key] = WorkQueue()
        self._seen: dict[str, object] = {}
        self._kinds: dict[str, Literal["model", "deployment"]] = {}
        self._key_scopes: dict[str, str] = {}
        self._is_cluster = context.models is not None
        self._starts = StartRecorder(context)
        self._deployments = DeploymentReconciler(
            context.store,
            context.platform,
            context.routing,
            context.secret_box,
            settings.gateway_url,
            self._starts,
            None if context.models is None else LateAdmission(context),
        )
        self._models = self._make_models(context)

    def _make_models(self, context: Context) -> ModelReconciler | ClusterModelReconciler:
        settings = context.settings

        def wake(uid: str) -> None:
            self._queue.add(Key("model", uid))

        if context.models is not None:
            return ClusterModelReconciler(
                context.store,
                context.models,
                context.find_source,
                context.secret_box,
                wake,
                first_retry_seconds=settings.model_retry_seconds,
            )
        return ModelReconciler(
            context.store,
            context.find_source,
            context.secret_box,
            settings.state.models_dir,
            wake,
            first_retry_seconds=settings.model_retry_seconds,
        )

    @property
    def num_waiting(self) -> int:
        """Objects that wait for a worker."""
        return len(self._queue)

    def wake(self, uid: str) -> None:
        """Look at a model or a deployment now: the platform saw something of it change."""
        if uid in self._kinds:
            self._queue.add(Key(self._kinds[uid], uid))

    def wake_held(self) -> None:
        """Look now at the deployments that were refused or could not be placed: nodes changed."""
        for uid in self._deployments.held:
            self._queue.add(Key("deployment", uid))

    async def run(self) -> None:
        """Work until cancelled. Engines and files stay as they are when it ends."""
        # Watches begin before the first listing, so that no change falls between the two.
        deployments = self._store.watch(InferenceDeployment)
        models = self._store.watch(InferenceModel)
        keys = self._store.watch(InferenceApiKey)
        try:
            await self._routing.load()
            await self._retain_routes()
            for key in await self._store.list(InferenceApiKey):
                self._key_scopes.setdefault(key.metadata.uid, key.spec.scope)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch(deployments), name="watch-deployments")
                tasks.create_task(self._watch(models), name="watch-models")
                tasks.create_task(self._watch(keys), name="watch-api-keys")
                tasks.create_task(self._sweep(), name="sweep")
                tasks.create_task(self._routing.keep_written(), name="routing-table")
                tasks.create_task(self._starts.run(), name="plan-starts")
                for number in range(self._settings.num_workers):
                    tasks.create_task(self._work(), name=f"worker-{number}")
        finally:
            self._queue.close()
            await self._models.close()

    async def _retain_routes(self) -> None:
        deployments = await self._store.list(InferenceDeployment)
        await self._routing.retain(d.metadata.uid for d in deployments)

    async def _watch(self, changes: AsyncIterator[Change]) -> None:
        async for change in changes:
            try:
                await self._notice(change)
            except ExoError as exc:
                logger.error("a change was not noticed, the next sweep will: %s", exc.message)

    async def _notice(self, change: Change) -> None:
        """Queue what a change concerns."""
        obj = change.object
        uid = obj.metadata.uid
        gone = change.type == ChangeType.DELETED
        if isinstance(obj, InferenceApiKey):
            for scope in {obj.spec.scope, self._key_scopes.get(uid, obj.spec.scope)}:
                is_public = scope == PUBLIC_SCOPE
                self._queue.add(Key("public-keys", "") if is_public else Key("deployment", scope))
            if self._is_cluster:  # keys come past the API there, with any scope
                self._queue.add(Key("public-keys", ""))
            self._key_scopes[uid] = obj.spec.scope
        elif isinstance(obj, InferenceModel):
            self._kinds[uid] = "model"
            if self._is_news(obj) or gone:
                self._queue.add(Key("model", uid))
            if gone:
                await self._wake_duplicates(obj.spec.source)
            for deployment in await self._store.list(InferenceDeployment):
                if deployment.spec.model == obj.spec.source:
                    self._queue.add(Key("deployment", deployment.metadata.uid))
        elif isinstance(obj, InferenceDeployment):
            if gone or uid not in self._kinds:
                self._wake_keys(obj)
            self._kinds[uid] = "deployment"
            if self._is_news(obj) or self._deployments.is_foreign(obj) or gone:
                self._queue.add(Key("deployment", uid))
            if gone:
                await self._wake_models(obj.spec.model)
        if gone:
            self._key_scopes.pop(uid, None)
            self._seen.pop(uid, None)
            self._kinds.pop(uid, None)

    def _wake_keys(self, deployment: InferenceDeployment) -> None:
        """Have keys looked at that a deployment which came or went gives something to open."""
        metadata = deployment.metadata
        scopes = self._key_scopes.values()
        if self._is_cluster and (metadata.uid in scopes or metadata.object_name in scopes):
            self._queue.add(Key("public-keys", ""))

    def _is_news(self, obj: Resource) -> bool:
        """Whether more than the status changed: status writes are the reconciler's own."""
        metadata = obj.metadata
        asked_again = obj.restart + obj.roll if isinstance(obj, InferenceDeployment) else ""
        wanted = (
            metadata.generation,
            metadata.name,
            metadata.deletion_timestamp,
            metadata.uid_problem,
            asked_again,
        )
        if self._seen.get(metadata.uid) == wanted:
            return False
        self._seen[metadata.uid] = wanted
        return True

    async def _wake_duplicates(self, source: str) -> None:
        """Have the other models of a source looked at: one of them is the one that is used now."""
        for model in await self._store.list(InferenceModel):
            if model.spec.source == source:
                self._queue.add(Key("model", model.metadata.uid))

    async def _wake_models(self, source: str) -> None:
        for model in await self._store.list(InferenceModel):
            if model.spec.source == source and model.metadata.deletion_timestamp is not None:
                self._queue.add(Key("model", model.metadata.uid))

    async def _sweep(self) -> None:
        """Queue everything, find what nobody knows, forget what is old; at start and regularly."""
        while True:
            try:
                await self._sweep_once()
            except ExoError as exc:
                logger.warning("the sweep failed and comes again: %s", exc.message)
            except Exception:
                logger.exception("the sweep failed and comes again")
            await asyncio.sleep(self._settings.resync_seconds)

    async def _sweep_once(self) -> None:
        # The platform first: an object recorded in between is in the store, not an orphan. One that is
        # stored and cannot be read is not in the list; its pass finds that out and leaves it alone.
        left = await self._platform.deployments()
        left_models = await self._models.remove_orphans()
        deployments = {d.metadata.uid for d in await self._store.list(InferenceDeployment)}
        models = {m.metadata.uid for m in await self._store.list(InferenceModel)}
        for orphan in left - deployments:
            logger.warning("deployment %s is stopped, unless it is stored after all", orphan)
        for uid in left | deployments:
            self._kinds[uid] = "deployment"
            self._queue.add(Key("deployment", uid))
        for uid in left_models | models:
            self._kinds[uid] = "model"
            self._queue.add(Key("model", uid))
        self._queue.add(Key("public-keys", ""))
        now = datetime.now(UTC)
        await self._store.prune(
            requests_before=now - REMEMBER_REQUESTS, operations_before=now - REMEMBER_OPERATIONS
        )

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            started = time.monotonic()
            try:
                outcome = await self._reconcile(key)
            except ExoError as exc:
                delay = self._queue.retry(key)
                text = "%s %s failed, again in %.1f s: %s"
                logger.warning(text, key.kind, key.uid, delay, exc.message)
                self._observe(key.kind, time.monotonic() - started, failed=True)
            except Exception:
                delay = self._queue.retry(key)
                text = "%s %s failed unexpectedly, again in %.1f s"
                logger.exception(text, key.kind, key.uid, delay)
                self._observe(key.kind, time.monotonic() - started, failed=True)
            else:
                self._finish_pass(key, outcome, time.monotonic() - started)

    def _finish_pass(self, key: Key, outcome: Outcome, seconds: float) -> None:
        self._observe(key.kind, seconds, failed=outcome.failed)
        if outcome.failed:
            self._queue.retry(key)
        else:
            self._queue.done(key, again_after_seconds=outcome.again_after_seconds)
        level = logging.INFO if outcome.changed else logging.DEBUG
        fields = {
            "object": f"{key.kind}/{key.uid}",
            "outcome": "failed" if outcome.failed else "ok",
            "duration_seconds": round(seconds, 4),
        }
        logger.log(
            level, "reconciled %s in %.0f ms", fields["object"], seconds * 1000, extra=fields
        )

    async def _reconcile(self, key: Key) -> Outcome:
        if key.kind == "deployment":
            return await self._deployments.reconcile(key.uid)
        if key.kind == "model":
            return await self._models.reconcile(key.uid)
        keys = await self._store.list(InferenceApiKey)
        public = [route_key(key) for key in keys if key.spec.scope == PUBLIC_SCOPE]
        await self._routing.set_public_keys(public)
        if self._is_cluster:
            await report_scopes(self._store)
        return Outcome()
