"""What is known about models, for judging deployments: read once, kept while the files stay the same.

Routes ask before they judge, because judging is pure and this reads files, or asks the Hub. A model
that is still being fetched is looked up by its name in the planner's catalogue. All who ask for the same
model at once wait for one look, and what could not be read is not read again for a minute.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from exo_inference import planner
from exo_inference.errors import HubError, UsageError
from exo_inference.foreign_files.bounded_reads import MAX_FILES
from exo_inference.hub.architecture import fetch_architecture, read_directory_async
from exo_inference.hub.base import BUILTIN_PREFIX
from exo_inference.hub.builtin import builtin_directory
from exo_inference.hub.gguf_files import split_tag
from exo_inference.model_description import CONFIG_NAME, TOKENIZER_NAME, weight_names
from exo_inference.planner import Architecture
from exo_inference.planner.model.checkpoint import is_gguf, with_gguf_bytes
from exo_inference.resources import InferenceModel
from exo_inference.simulated_gpus import MODEL_MARKER

__all__ = ["Architectures", "FetchArchitecture", "KnownModel", "find_bundled"]

_COMMIT = re.compile(r"[0-9a-f]{40}")
_MAX_KEPT = 256
_FAILURE_SECONDS = 60.0
"""A look that failed is not repeated for so long: each may cost a child 10 seconds of processor time."""

Stamp = tuple[tuple[str, int, int], ...]
Key = tuple[str, str | None, str | None] | tuple[str, Stamp]
"""What is looked at: a model of the Hub, its revision and the token; or a directory and its stamp."""


@dataclass(frozen=True, slots=True)
class KnownModel:
    """What is known about one model.

    Attributes:
        architecture: None where nothing is known.
        reason: why nothing is known, for people; empty where something is.
        revision_pinned: its files cannot change; None where that is not known.
        lacks_tokenizer_json: its files are here, and this one is not among them.
    """

    architecture: Architecture | None = None
    reason: str = ""
    revision_pinned: bool | None = None
    lacks_tokenizer_json: bool = False


class FetchArchitecture(Protocol):
    """Asks the Hub; see `hub.architecture.fetch_architecture`."""

    async def __call__(
        self, name: str, *, revision: str | None = None, token: str | None = None
    ) -> Architecture:
        """Return the architecture of a model of the Hub.

        Raises:
            HubError
        """
        ...


class Architectures:
    """Looks models up. One object per application.

    Args:
        fetch: asks the Hub.
        clock: in seconds.
    """

    def __init__(
        self,
        fetch: FetchArchitecture = fetch_architecture,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch = fetch
        self._clock = clock
        self._looking: dict[Key, asyncio.Task[KnownModel]] = {}
        self._failed: dict[Key, tuple[float, KnownModel]] = {}
        self._kept: dict[str, tuple[Stamp, KnownModel]] = {}
        self._asked: dict[tuple[str, str | None], KnownModel] = {}

    async def of_model(self, model: InferenceModel) -> KnownModel:
        """Return what is known about a model of this control plane; asks nobody."""
        pinned = _is_pinned(model)
        name, path = model.spec.source, model.status.path
        if path is None:
            return find_bundled(name, pinned, "its files are not here yet")
        return await self._of_directory(Path(path), name, pinned)

    async def of_remote(self, model: InferenceModel, *, token: str | None = None) -> KnownModel:
        """Return what is known about a model whose files are on a volume of the cluster.

        The Hub is asked once for each content; while it does not answer, the catalogue has to do. How large the files are
        the model's status says.
        """
        known = await self._of_remote(model, token)
        found, size = known.architecture, model.status.size_bytes
        is_one_file = bool(
            split_tag(model.spec.source)[1]
        )  # else there are files of other types beside it
        if found is None or not size or not is_one_file or not is_gguf(found):
            return known
        return replace(known, architecture=with_gguf_bytes(found, size))

    async def _of_remote(self, model: InferenceModel, token: str | None) -> KnownModel:
        name, revision = model.spec.source, model.status.revision or model.spec.revision
        pinned = _is_pinned(model)
        if name.startswith(BUILTIN_PREFIX):
            return await self._of_directory(builtin_directory(name), name, pinned)
        kept = self._asked.get((name, revision))
        if kept is not None:
            return kept
        known = await self.of_hub(name, revision=revision, token=token)
        if known.architecture is None:
            return find_bundled(name, pinned, known.reason)
        if pinned:
            if len(self._asked) >= _MAX_KEPT:
                self._asked.clear()
            self._asked[name, revision] = known
        return known

    async def of_hub(
        self, name: str, *, revision: str | None = None, token: str | None = None
    ) -> KnownModel:
        """Ask the Hub about a model."""

        async def ask() -> KnownModel:
            try:
                return KnownModel(await self._fetch(name, revision=revision, token=token))
            except HubError as error:
                return KnownModel(reason=error.text)

        found = await self._look_once((name, revision, token), ask)
        if found.architecture is None:
            return found
        is_commit = None if revision is None else _COMMIT.fullmatch(revision) is not None
        return replace(found, revision_pinned=is_commit)

    async def _look_once(
        self, key: Key, look: Callable[[], Coroutine[Any, Any, KnownModel]]
    ) -> KnownModel:
        """Look once for all who ask meanwhile; return a failure again until its minute is over."""
        until, failure = self._failed.get(key, (0.0, None))
        if failure is not None and self._clock() < until:
            return failure
        if key not in self._looking:
            # Goes on when one of those who wait hangs up: the others want it.
            task = asyncio.create_task(look(), name="look-up-model")
            self._looking[key] = task
            task.add_done_callback(lambda done: self._note(key, done))
        return await asyncio.shield(self._looking[key])

    def _note(self, key: Key, done: asyncio.Task[KnownModel]) -> None:
        del self._looking[key]
        self._failed.pop(key, None)
        if not done.cancelled() and not done.exception() and done.result().architecture is None:
            if len(self._failed) >= _MAX_KEPT:
                self._failed.clear()
            self._failed[key] = (self._clock() + _FAILURE_SECONDS, done.result())

    async def _of_directory(self, directory: Path, name: str, pinned: bool | None) -> KnownModel:
        try:
            stamp = await asyncio.to_thread(_stamp, directory)
            if stamp is None:
                return find_bundled(name, pinned, "its weights are simulated")
            kept = self._kept.get(str(directory))
            has_tokenizer = await asyncio.to_thread((directory / TOKENIZER_NAME).exists)
            if kept is not None and kept[0] == stamp:
                return replace(kept[1], lacks_tokenizer_json=not has_tokenizer)
        except OSError as error:
            return find_bundled(name, pinned, str(error))

        async def read() -> KnownModel:
            try:
                return KnownModel(await read_directory_async(directory, name))
            except (HubError, OSError) as error:
                return KnownModel(reason=str(error))

        found = await self._look_once((str(directory), stamp), read)
        if found.architecture is None:
            return find_bundled(name, pinned, found.reason)
        known = replace(found, revision_pinned=pinned, lacks_tokenizer_json=not has_tokenizer)
        if len(self._kept) >= _MAX_KEPT:
            self._kept.clear()
        self._kept[str(directory)] = (stamp, known)
        return known


def find_bundled(name: str, pinned: bool | None = None, otherwise: str = "") -> KnownModel:
    """Return a model of the planner's catalogue; what is not in it is unknown, and says why."""
    try:
        return KnownModel(planner.find_model(name), revision_pinned=pinned)
    except UsageError as error:
        reason = f"{otherwise}, and {error.message}" if otherwise else error.text
        return KnownModel(reason=reason, revision_pinned=pinned)


def _is_pinned(model: InferenceModel) -> bool | None:
    """Whether the files cannot change: the control plane pins each model when it resolves it."""
    if model.status.revision is not None:
        return True
    return True if _COMMIT.fullmatch(model.spec.revision or "") else None


def _stamp(directory: Path) -> Stamp | None:
    """Return what changes when the files do; None where the weights are simulated."""
    if (directory / MODEL_MARKER).exists():
        return None
    with os.scandir(directory) as entries:
        names = [each.name for each in islice(entries, MAX_FILES)]
    return tuple(
        (name, status.st_size, status.st_mtime_ns)
        for name in (CONFIG_NAME, *weight_names(names))
        for status in [(directory / name).stat()]
    )
