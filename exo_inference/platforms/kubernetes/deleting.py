"""Deleting what may be gone already."""

from __future__ import annotations

from exo_inference.kubernetes_api.client import ApiRefusal, KubernetesApi


async def delete_if_there(api: KubernetesApi, path: str) -> None:
    """Delete an object, unless it is gone.

    Raises:
        StoreError
    """
    try:
        await api.delete(path)
    except ApiRefusal as exc:
        if exc.status_code != 404:
            raise
