"""Installs releases of a pattern that Helm has installed before: what Helm would write, without its process.

`cluster.py` asks for every first installation; what is not known, not plain or refused is Helm's. The order is
Helm's: its record says `pending-install`, the objects are created, the record says `deployed`. One that is killed
between leaves what a killed Helm leaves, and is repaired in the same way (`Cluster.unstick`). One that is paused
writes nothing once another may lead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from exo_inference.errors import PlatformError
from exo_inference.kubernetes_api.client import ApiRefusal, KubernetesApi, object_path
from exo_inference.platforms.kubernetes.helm import HelmFailed
from exo_inference.platforms.kubernetes.records import list_revisions, read_record
from exo_inference.platforms.kubernetes.release_pattern import (
    Installed,
    ReleasePattern,
    Words,
    learn,
    pattern_key,
    read_words,
)

logger = logging.getLogger(__name__)

_MAX_PATTERNS = 64
_MAX_TRIES = 6
"""Pairs of releases that a pattern is looked for in, as one name may be a word of the chart's own text."""

_KEPT_SECONDS = 6 * 3600.0
"""How long a pattern is used, as what discovery answered: then Helm renders it again on the cluster as it is."""

_AT_ONCE = 4

_MOST_SECONDS = 8.0
"""Of one installation: another process leads 10 s after this one last renewed its Lease at the earliest."""


@dataclass(slots=True)
class _Known:
    """What is known of a pattern: a release of it, then what two of them have in common."""

    since: float
    sample: Installed | None = None
    pattern: ReleasePattern | None = None
    tries: int = 0


class Installer:
    """Installs releases of the known patterns.

    Args:
        api: the Kubernetes API.
        now: the clock of records.
        clock: of the age of patterns.
    """

    def __init__(
        self,
        api: KubernetesApi,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._now = now
        self._clock = clock
        self._patterns: OrderedDict[str, _Known] = OrderedDict()
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def try_install(self, release: str, chart: str, values: Mapping[str, Any]) -> bool:
        """Install a release of which there is no record; False leaves it to Helm.

        Raises:
            HelmFailed: it took too long, or another has begun anew; the record says how far it came.
            StoreError: the API was away, as above.
        """
        words = read_words(release, values)
        known = self._find(pattern_key(chart, values)) if words is not None else None
        if words is None or known is None or known.pattern is None or not known.pattern.fits(words):
            return False
        async with self._slots:
            return await self._install(known.pattern, words, values)

    async def note(self, release: str, chart: str, values: Mapping[str, Any]) -> None:
        """Learn from a release that Helm has just installed for the first time.

        Raises:
            StoreError: the API was away.
        """
        words = read_words(release, values)
        if words is None:
            return
        key = pattern_key(chart, values)
        known = self._find(key) or self._add(key)
        if known.tries >= _MAX_TRIES or (known.pattern is not None and known.pattern.fits(words)):
            return
        revisions = await list_revisions(self._api, release)
        if len(revisions) != 1:
            return
        try:
            sample = Installed(words, values, await asyncio.to_thread(read_record, revisions[0]))
            if known.sample is not None:
                known.tries += 1
                known.pattern = learn(known.sample, sample, self._api.namespace) or known.pattern
        except (PlatformError, LookupError, TypeError, AttributeError) as exc:
            known.tries += 1
            logger.warning("the pattern of release %s is not learnt: %r", release, exc)
            return
        known.sample = sample

    async def _install(
        self, pattern: ReleasePattern, words: Words, values: Mapping[str, Any]
    ) -> bool:
        secrets = object_path(self._api, "secrets")
        began, deadline = self._now(), self._clock() + _MOST_SECONDS
        pending = pattern.record(
            words, values, "pending-install", "Initial install underway", began
        )
        path = f"{secrets}/{pending['metadata']['name']}"
        try:
            answer = await self._api.create(secrets, pending)
        except ApiRefusal:
            return False  # Helm says why
        try:
            for item in pattern.objects(words):
                self._refuse_late(words.release, deadline)
                collection = object_path(self._api, item.plural, group=item.group)
                await self._api.create(collection, item.body)
        except ApiRefusal as exc:
            logger.warning("release %s is left to Helm: %s", words.release, exc.message)
            await self._discard(path, answer)
            return False
        self._refuse_late(words.release, deadline)
        done = pattern.record(words, values, "deployed", "Install complete", began)
        # A record that is not ours any more is of one who leads now.
        done["metadata"]["resourceVersion"] = answer["metadata"]["resourceVersion"]
        try:
            await self._api.replace(path, done)
        except ApiRefusal as exc:
            raise HelmFailed(
                f"its record was changed meanwhile: {exc.message}", transient=True
            ) from exc
        return True

    async def _discard(self, path: str, record: Mapping[str, Any]) -> None:
        """Remove our record; one that has taken its place stays."""
        body = {"preconditions": {"uid": record["metadata"]["uid"]}}
        with contextlib.suppress(ApiRefusal):
            await self._api.delete(path, body)

    def _refuse_late(self, release: str, deadline: float) -> None:
        if self._clock() > deadline:
            text = f"installing {release} took longer than {_MOST_SECONDS:.0f} s and was stopped"
            raise HelmFailed(text, transient=True)

    def _find(self, key: str) -> _Known | None:
        known = self._patterns.get(key)
        if known is None or self._clock() - known.since > _KEPT_SECONDS:
            self._patterns.pop(key, None)
            return None
        self._patterns.move_to_end(key)
        return known

    def _add(self, key: str) -> _Known:
        while len(self._patterns) >= _MAX_PATTERNS:
            self._patterns.popitem(last=False)
        known = self._patterns[key] = _Known(self._clock())
        return known
