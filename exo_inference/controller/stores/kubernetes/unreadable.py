"""Says on an object that this version cannot read that it is left alone, and why.

A newer version may have written it, or a hand past the schema. No reconciler sees such an object, so
without a word on it its user would wait for ever. The store calls it for the leader alone: while versions
are exchanged, others may read the object well.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from exo_inference.controller.stores.kubernetes.cache import Cache
from exo_inference.errors import StoreError
from exo_inference.kubernetes_api.client import KubernetesApi, object_path
from exo_inference.kubernetes_api.objects import Stored
from exo_inference.resources import API_VERSION, InferenceDeployment, InferenceModel

logger = logging.getLogger(__name__)

UNREADABLE_REASON = "Unreadable"
_KINDS = (InferenceModel, InferenceDeployment)  # nobody waits for a key


async def report_unreadable(api: KubernetesApi, caches: Iterable[Cache]) -> None:
    """Write the condition `Ready` of every object that cannot be read; repeated, it writes nothing."""
    for cache in caches:
        for stored in cache.all() if cache.kind in _KINDS else ():
            if stored.resource is not None:
                continue
            try:
                await _report(api, cache, stored)
            except StoreError as exc:  # it changed or went in this moment; the next call sees
                logger.info("the status of %s was not written: %s", stored.name, exc.message)


async def _report(api: KubernetesApi, cache: Cache, stored: Stored) -> None:
    path = object_path(api, cache.kind.PLURAL, stored.name, group=API_VERSION)
    raw = await api.get(path)
    conditions = (raw.get("status") or {}).get("conditions") or []
    wanted = _condition(stored, int(raw["metadata"].get("generation", 1)))
    if any(_says_the_same(found, wanted) for found in conditions):
        return
    logger.warning("%s %s: %s", cache.kind.KIND, stored.name, wanted["message"])
    others = [found for found in conditions if found.get("type") != wanted["type"]]
    body = {
        "metadata": {"resourceVersion": raw["metadata"]["resourceVersion"]},
        "status": {"conditions": [*others, wanted]},
    }
    await api.merge(f"{path}/status", body)


def _condition(stored: Stored, generation: int) -> dict[str, Any]:
    return {
        "type": "Ready",
        "status": "False",
        "reason": UNREADABLE_REASON,
        "message": f"this exo-inference cannot read it, and leaves all as it is: {stored.problem}. A newer "
        "one may have written it: run that one, or mend the object",
        "observedGeneration": generation,
        "lastTransitionTime": datetime.now(UTC)
        .isoformat(timespec="seconds")
        .replace("+00:00", "Z"),
    }


def _says_the_same(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    keys = ("type", "status", "reason", "message", "observedGeneration")
    return all(found.get(key) == wanted[key] for key in keys)
