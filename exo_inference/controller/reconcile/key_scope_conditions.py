"""What the scopes of keys open, and saying so on keys that came past the API. The reconciler calls it.

A scope is `public`, the uid of a deployment, or on a cluster the name of one's object, which Git can know and a
rename leaves as it is. The gateways follow the names themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from exo_inference.controller import conditions
from exo_inference.controller.conditions import condition
from exo_inference.controller.stores.base import (
    ObjectNotFound,
    Recording,
    Store,
    VersionConflict,
)
from exo_inference.kubernetes_api.identity import is_uuid
from exo_inference.resources import (
    PUBLIC_SCOPE,
    ApiKeyStatus,
    Condition,
    InferenceApiKey,
    InferenceDeployment,
)

UNKNOWN_REASON = "UnknownScope"


def scope_condition(scope: str, deployments: Sequence[InferenceDeployment]) -> Condition:
    """Return the condition `Ready` of a key with this scope."""
    if scope == PUBLIC_SCOPE:
        return condition("Ready", True, "OpensAll", "it opens every deployment")
    for deployment in deployments:
        name = deployment.metadata.object_name
        if scope == deployment.metadata.uid or (scope == name and not is_uuid(name)):
            text = f"it opens the deployment {deployment.metadata.name}"
            return condition("Ready", True, "OpensOne", text)
    text = (
        f"there is no deployment with the id or the name {scope[:63]!r}, so it opens nothing; it will once there "
        "is one. For every deployment the scope is public"
    )
    return condition("Ready", False, UNKNOWN_REASON, text)


async def report_scopes(store: Store) -> None:
    """Write on each key what it opens; what is written already is no write."""
    deployments = await store.list(InferenceDeployment)
    for key in await store.list(InferenceApiKey):
        if key.metadata.deletion_timestamp is None:
            await _report(store, key, scope_condition(key.spec.scope, deployments))


async def _report(store: Store, key: InferenceApiKey, found: Condition) -> None:
    old = key.status.conditions
    generation = key.metadata.generation
    merged = conditions.merge(old, [found], generation=generation, now=datetime.now(UTC))
    if merged == old:
        return
    events = conditions.changes(old, merged) if found.reason == UNKNOWN_REASON else ()
    wanted = key.model_copy(update={"status": ApiKeyStatus(conditions=merged)})
    try:
        await store.update_status(wanted, Recording(events=events))
    except (VersionConflict, ObjectNotFound):  # it changed or went meanwhile: the next sweep sees
        return
