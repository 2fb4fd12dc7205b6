"""Bringing one model from its name to files an engine can load: resolve, fetch, ready.

A fetch takes long, so it runs as a task of its own; passes of the reconciler start it, write its
progress (at most once a second) and its outcome. A restart finds the files that are there and
goes on with them.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from exo_inference.controller.admission.model import (
    LONGEST_RESOLVE_SECONDS,
    FindSource,
    resolve_in_time,
)
from exo_inference.controller.hub_tokens import read_hub_token
from exo_inference.controller.reconcile.adoption import adopt_model
from exo_inference.controller.reconcile.model_fetch import (
    FINAL_REASON,
    Fetch,
    failure_conditions,
    progress_conditions,
    ready_conditions,
    status_fields,
)
from exo_inference.controller.reconcile.model_status import release, wait_for_users, write_status
from exo_inference.controller.reconcile.outcome import Outcome
from exo_inference.controller.secret_box import SecretBox
from exo_inference.controller.stores.base import (
    ObjectNotFound,
    Store,
    VersionConflict,
)
from exo_inference.errors import ExoError, HubError
from exo_inference.hub import is_in_place
from exo_inference.hub.base import NoSpace, SourceUnreachable
from exo_inference.resources import (
    InferenceModel,
    find_condition,
    is_true,
)

logger = logging.getLogger(__name__)

PROGRESS_SECONDS = 1.0
"""How often progress is written while files are fetched."""


class ModelReconciler:
    """Reconciles models.

    Args:
        models_dir: one folder per model is kept below it.
        wake: called with a model's uid when it should be looked at now.
        first_retry_seconds: how long the first retry of a failed fetch waits; it doubles up to 60 s.
    """

    def __init__(
        self,
        store: Store,
        find_source: FindSource,
        secret_box: SecretBox,
        models_dir: Path,
        wake: Callable[[str], None],
        *,
        first_retry_seconds: float,
    ) -> None:
        self._store = store
        self._find_source = find_source
        self._secret_box = secret_box
        self._models_dir = models_dir
        self._wake = wake
        self._first_retry = first_retry_seconds
        self._fetches: dict[str, Fetch] = {}
        self._failures: dict[str, int] = {}
        self._not_before: dict[str, float] = {}
        self._verified: set[str] = set()

    async def reconcile(self, uid: str) -> Outcome:
        """Take the next step for one model."""
        try:
            model = await self._store.get(InferenceModel, uid)
        except ObjectNotFound:
            await self._stop_fetch(uid)
            return Outcome()
        if model.metadata.deletion_timestamp is not None:
            return await self._finish(model)
        try:
            model = await adopt_model(self._store, model)
        except (VersionConflict, ObjectNotFound):
            return Outcome(again_after_seconds=0.0)
        failed = find_condition(model.status.conditions, "Failed")
        is_final = failed is not None and failed.reason == FINAL_REASON
        if is_final or await self._is_ready(model):
            return Outcome()
        fetch = self._fetches.get(uid)
        if fetch is None:
            wait = self._not_before.get(uid, 0.0) - asyncio.get_running_loop().time()
            if wait > 0:
                return Outcome(again_after_seconds=wait)
            fetch = self._start_fetch(model)
        if fetch.task is not None and not fetch.task.done():
            outcome = await write_status(
                self._store, model, progress_conditions(model.status, fetch), status_fields(fetch)
            )
            return Outcome(
                again_after_seconds=outcome.again_after_seconds or PROGRESS_SECONDS,
                changed=outcome.changed,
            )
        return await self._write_result(model, fetch)

    async def close(self) -> None:
        """Stop all fetches; what they fetched stays and is resumed."""
        for uid in list(self._fetches):
            await self._stop_fetch(uid)

    async def remove_orphans(self) -> set[str]:
        """Remove folders of models that nobody knows; nothing else of them can be left."""
        names = await asyncio.to_thread(_list_names, self._models_dir)
        known = {model.metadata.uid for model in await self._store.list(InferenceModel)}
        for name in names - known:
            logger.info("removing the files of model %s, which no longer exists", name)
            await self._remove_files(name)
        return set()

    async def _is_ready(self, model: InferenceModel) -> bool:
        """Whether the model is ready, and its files are where they were; checked once per start.

        They are elsewhere after an upgrade that moved the built-in models, for example.
        """
        uid, path = model.metadata.uid, model.status.path
        if not is_true(model.status.conditions, "Ready"):
            return False
        if uid in self._verified:
            return True
        if path is not None and await asyncio.to_thread(Path(path).is_dir):
            self._verified.add(uid)
            return True
        logger.warning("the files of model %s are gone from %s; fetching them again", uid, path)
        return False

    def _start_fetch(self, model: InferenceModel) -> Fetch:
        uid = model.metadata.uid
        fetch = Fetch(in_place=is_in_place(model.spec.source))
        self._fetches[uid] = fetch
        fetch.task = asyncio.create_task(self._run_fetch(model, fetch), name=f"fetch-{uid}")
        fetch.task.add_done_callback(lambda _: self._wake(uid))
        return fetch

    async def _run_fetch(self, model: InferenceModel, fetch: Fetch) -> None:
        """Resolve and fetch one model; the outcome, good or bad, is left in `fetch`."""
        uid, spec = model.metadata.uid, model.spec
        try:
            token = await read_hub_token(self._store, self._secret_box, None, model)
            source = self._find_source(spec.source)
            revision = spec.revision
            if not fetch.in_place:  # those have none
                revision = model.status.revision or spec.revision
            fetch.resolved = await resolve_in_time(
                source, spec.source, revision=revision, token=token, seconds=LONGEST_RESOLVE_SECONDS
            )
            self._wake(uid)
            directory = self._models_dir / uid
            await asyncio.to_thread(directory.mkdir, mode=0o700, parents=True, exist_ok=True)
            fetch.path = await source.fetch(
                fetch.resolved, directory, token=token, progress=fetch.report
            )
        except ExoError as exc:
            fetch.error = exc
        except OSError as exc:
            fetch.error = NoSpace(f"cannot write the files of {spec.source}: {exc.strerror or exc}")
        except Exception as exc:  # a bug, here or in a library: it is retried, and must be seen
            logger.exception("fetching %s failed unexpectedly", spec.source)
            fetch.error = HubError(f"fetching {spec.source} failed unexpectedly: {exc!r}"[:300])

    async def _write_result(self, model: InferenceModel, fetch: Fetch) -> Outcome:
        uid = model.metadata.uid
        if fetch.path is not None and fetch.resolved is not None:
            present = {"path": str(fetch.path), "downloaded_bytes": fetch.resolved.size_bytes}
            outcome = await write_status(
                self._store, model, ready_conditions(), {**status_fields(fetch), **present}
            )
            if outcome.again_after_seconds is None:
                self._forget(uid)
                self._verified.add(uid)
            return outcome
        assert fetch.error is not None, "a fetch ends with a path or an error"
        is_final = not isinstance(fetch.error, SourceUnreachable | NoSpace) and isinstance(
            fetch.error, HubError
        )
        delay = min(60.0, self._first_retry * 2 ** min(self._failures.get(uid, 0), 10))
        found = failure_conditions(model.status, fetch, delay=None if is_final else delay)
        outcome = await write_status(self._store, model, found, status_fields(fetch))
        if outcome.again_after_seconds is not None:
            return outcome
        failures = self._failures.get(uid, 0)
        self._forget(uid)
        if is_final:
            return outcome
        self._failures[uid] = failures + 1
        self._not_before[uid] = asyncio.get_running_loop().time() + delay
        return Outcome(again_after_seconds=delay, changed=outcome.changed)

    async def _finish(self, model: InferenceModel) -> Outcome:
        """Take the next step of a deletion: stop the fetch, wait for users, remove the files."""
        uid = model.metadata.uid
        await self._stop_fetch(uid)
        waiting = await wait_for_users(self._store, model)
        if waiting is not None:
            return waiting
        await self._remove_files(uid)
        return await release(self._store, model)

    async def _stop_fetch(self, uid: str) -> None:
        fetch = self._fetches.pop(uid, None)
        if fetch is None or fetch.task is None:
            return
        fetch.cancelled = True
        fetch.task.cancel()
        await asyncio.gather(fetch.task, return_exceptions=True)

    def _forget(self, uid: str) -> None:
        self._fetches.pop(uid, None)
        self._failures.pop(uid, None)
        self._not_before.pop(uid, None)

    async def _remove_files(self, uid: str) -> None:
        await asyncio.to_thread(shutil.rmtree, self._models_dir / uid, ignore_errors=True)


def _list_names(directory: Path) -> set[str]:
    if not directory.is_dir():
        return set()
    return {entry.name for entry in directory.iterdir() if entry.is_dir()}
