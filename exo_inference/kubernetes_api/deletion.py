"""Deleting what may be gone already, or may be somebody else's."""

from __future__ import annotations

from typing import Any

from exo_inference.kubernetes_api.client import ApiRefusal, KubernetesApi


async def delete_if_there(api: KubernetesApi, path: str, *, with_pods: bool = False) -> None:
    """Delete an object, unless it is gone.

    Args:
        api: where it is.
        path: of the object.
        with_pods: and what it owns, which a Job else leaves behind.

    Raises:
        StoreError
    """
    try:
        await api.delete(path, {"propagationPolicy": "Background"} if with_pods else None)
    except ApiRefusal as exc:
        if exc.status_code != 404:
            raise


async def delete_labelled(api: KubernetesApi, path: str, name: str, value: str) -> None:
    """Delete an object that has this label; leave one that has not.

    Raises:
        StoreError
    """
    try:
        found: dict[str, Any] = await api.get(path)
        metadata = found["metadata"]
        if metadata.get("labels", {}).get(name) == value:
            await api.delete(path, {"preconditions": {"uid": metadata["uid"]}})
    except ApiRefusal as exc:
        if exc.status_code not in (404, 409):
            raise
