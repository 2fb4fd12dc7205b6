"""`client.api_keys`: Bearer keys for one deployment or for all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exo_inference.sdk import _requests
from exo_inference.wire import ApiKey, CreatedApiKey, Operation

if TYPE_CHECKING:
    from exo_inference.sdk._async.client import AsyncClient


class AsyncApiKeys:
    """The inference keys of the organisation."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def create(self, name: str, scope: str) -> CreatedApiKey:
        """Create a key; its value is in the answer.

        Args:
            name: what people call it.
            scope: `public` for every deployment, or the id of one.
        """
        return await self._client.send(_requests.create_api_key(name, scope))

    async def list(self) -> list[ApiKey]:
        """List the keys, without their values."""
        return await self._client.send(_requests.list_api_keys())

    async def get(self, key_id: str) -> ApiKey:
        """Return one key, without its value."""
        return await self._client.send(_requests.get_api_key(key_id))

    async def update(
        self, key_id: str, *, name: str | None = None, scope: str | None = None
    ) -> ApiKey:
        """Change the name or the scope of a key; its value stays."""
        call = _requests.update_api_key(key_id, {"name": name, "scope": scope})
        return await self._client.send(call)

    async def reveal(self, key_id: str) -> str:
        """Return the value of a key again."""
        return (await self._client.send(_requests.reveal_scoped_key(key_id))).value

    async def rotate(self, key_id: str) -> str:
        """Give a key a new value and return it; the old one stops to open anything."""
        return (await self._client.send(_requests.rotate_api_key(key_id))).value

    async def delete(self, key_id: str) -> Operation:
        """Delete a key; it stops to open anything."""
        return await self._client.send(_requests.delete_api_key(key_id))
