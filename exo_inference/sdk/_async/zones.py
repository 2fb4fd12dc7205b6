"""`client.zones`: the zones of the configured endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exo_inference.sdk import _requests
from exo_inference.wire import Zone

if TYPE_CHECKING:
    from exo_inference.sdk._async.client import AsyncClient


class AsyncZones:
    """The zones, and the endpoint of each."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def list(self) -> list[Zone]:
        """List the zones. The request is not signed, as no client signs it."""
        call = _requests.list_zones()
        response = await self._client._http.send(self._client.settings.endpoint, call.request)
        return call.result(response)
