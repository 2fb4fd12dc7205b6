"""What the platform needs of the Kubernetes API; the controller hands its client in.

The client belongs to the store, which this package may not import. Requests are repeated through
short outages by the client itself; its errors are `StoreError`s.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol

from exo_inference.errors import StoreError


class Api(Protocol):
    """JSON in and out. Every method raises `StoreError`; `refusal_status` tells what it was."""

    namespace: str

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Read an object or a list."""
        ...

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object in a collection."""
        ...

    async def merge(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Change the fields that the body names."""
        ...

    async def delete(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Delete an object."""
        ...

    def watch(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the events of one watch request until the server ends it."""
        ...

    def lines(
        self, path: str, query: Mapping[str, str], *, idle_seconds: float | None = None
    ) -> AsyncGenerator[str, None]:
        """Yield the lines of a text until the server ends it."""
        ...


def refusal_status(error: StoreError) -> int | None:
    """Return the status that the API server answered with; None when it did not answer."""
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def path_of(api: Api, plural: str, name: str = "", *, group: str = "") -> str:
    """Return the path of a collection of the namespace, or of one object in it."""
    root = f"/apis/{group}" if group else "/api/v1"
    path = f"{root}/namespaces/{api.namespace}/{plural}"
    return f"{path}/{name}" if name else path


async def delete_if_there(api: Api, path: str) -> None:
    """Delete an object that may be gone already."""
    try:
        await api.delete(path)
    except StoreError as exc:
        if refusal_status(exc) != 404:
            raise
