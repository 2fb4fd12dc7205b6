"""Whether the cluster has our CRDs, and whether they know every field that this program writes.

An API server drops fields that a CRD does not know, without a word, so with CRDs of an older version
desired state would be lost. The store looks before it does anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from exo_inference.controller.stores.base import StoreDamaged, StoreTooNew
from exo_inference.errors import StoreError
from exo_inference.kubernetes_api.client import ApiRefusal, KubernetesApi
from exo_inference.resources import (
    API_GROUP,
    API_VERSION,
    InferenceApiKey,
    InferenceDeployment,
    InferenceModel,
    InferenceOperation,
)
from exo_inference.resources.structural_schema import object_schema

_KINDS = (InferenceModel, InferenceDeployment, InferenceApiKey, InferenceOperation)

PUBLISHED_SECONDS = 5.0
"""How long a server may take to publish the schemas of CRDs that were changed just now."""


async def explain_missing(api: KubernetesApi) -> StoreError:
    """Return the error of a cluster that does not know one of our kinds in our version."""
    hint = "Install the chart exo-inference: its CRDs are missing."
    try:
        group = await api.get(f"/apis/{API_GROUP}")
    except ApiRefusal:
        return StoreDamaged(f"the cluster has no {API_VERSION}", hint=hint)
    served = [version["groupVersion"] for version in group.get("versions", ())]
    if API_VERSION in served:
        return StoreDamaged(f"the cluster has {API_VERSION} in parts", hint=hint)
    return StoreTooNew(
        f"the cluster has {', '.join(served)}; this program knows {API_VERSION}",
        hint="Start the exo-inference that fits the CRDs. Nothing was changed.",
    )


async def refuse_old_schemas(api: KubernetesApi) -> None:
    """Compare the schemas that the API server publishes to everybody with ours.

    Raises:
        StoreDamaged: a field of ours is missing.
    """
    missing = await _find_missing(api)
    deadline = asyncio.get_running_loop().time() + PUBLISHED_SECONDS
    while missing and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.2)
        missing = await _find_missing(api)
    if missing:
        raise StoreDamaged(
            f"the CRDs of the cluster are older than this program: they lack {', '.join(missing[:5])}",
            hint="Upgrade the chart exo-inference with crds.install=true. Nothing was changed.",
        )


async def _find_missing(api: KubernetesApi) -> list[str]:
    try:
        published = await api.get(f"/openapi/v3/apis/{API_VERSION}")
    except StoreError:  # a server that publishes nothing cannot be judged
        return []
    schemas = published.get("components", {}).get("schemas", {})
    by_kind = {str(name).rpartition(".")[2]: schema for name, schema in schemas.items()}
    found: list[str] = []
    for kind in _KINDS:
        if kind.KIND in by_kind:
            found += _missing(object_schema(kind), by_kind[kind.KIND], kind.KIND)
    return found


def _missing(wanted: Mapping[str, Any], served: Mapping[str, Any], path: str) -> list[str]:
    """Return the paths of the fields that only the wanted schema has."""
    if served.get("x-kubernetes-preserve-unknown-fields"):
        return []
    found: list[str] = []
    for name, schema in wanted.get("properties", {}).items():
        below = served.get("properties", {})
        if name in below:
            found += _missing(schema, below[name], f"{path}.{name}")
        elif name != "metadata":
            found.append(f"{path}.{name}")
    if "items" in wanted:
        found += _missing(wanted["items"], served.get("items", {}), f"{path}[]")
    return found
