"""`client.models`: open-weight models that deployments may use."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

from exo_inference.sdk import _requests, lookup
from exo_inference.sdk._async import waits
from exo_inference.sdk._async.follow import follow_events
from exo_inference.wire import Event, Model, Operation

if TYPE_CHECKING:
    import builtins

    from exo_inference.sdk._async.client import AsyncClient


class AsyncModels:
    """The models of one zone."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def create(
        self,
        name: str,
        *,
        huggingface_token: str | None = None,
        revision: str | None = None,
        dry_run: bool = False,
    ) -> Operation:
        """Create a model and start its download.

        Args:
            name: `org/name` on the Hub, `file:///path`, or one that is built in (`exo/tiny-chat`).
            huggingface_token: for gated models.
            revision: branch, tag or commit (additive).
            dry_run: only ask whether it would be admitted (additive).
        """
        call = _requests.create_model(
            name, huggingface_token=huggingface_token, revision=revision, dry_run=dry_run
        )
        return await self._client.send_write(call, dry_run=dry_run)

    async def list(self) -> list[Model]:
        """List the models."""
        return await self._client.send(_requests.list_models())

    async def get(self, model_id: str) -> Model:
        """Return one model by its id."""
        return await self._client.send(_requests.get_model(model_id))

    async def find(self, name_or_id: str) -> Model:
        """Return the one model of that exact name or id.

        Raises:
            NotFound, Conflict: there is none, or there are several.
        """
        return lookup.find(await self.list(), name_or_id, "model")

    async def delete(self, model_id: str, *, dry_run: bool = False) -> Operation:
        """Delete a model.

        Raises:
            PreconditionFailed: deployments use it; `deployments` of the error names them.
        """
        call = _requests.delete_model(model_id, dry_run=dry_run)
        return await self._client.send_write(call, dry_run=dry_run)

    async def events(self, model_id: str) -> builtins.list[Event]:
        """List what happened to a model, newest last (additive)."""
        return (await self._client.send(_requests.list_events("model", model_id))).events

    async def follow_events(self, model_id: str) -> AsyncGenerator[Event, None]:
        """Yield what happened to a model and what happens, until it is gone (additive)."""
        async with aclosing(follow_events(self._client, "model", model_id)) as events:
            async for event in events:
                yield event

    async def wait_until_ready(
        self,
        model_id: str,
        *,
        timeout: float,
        on_change: Callable[[Model], None] | None = None,
    ) -> Model:
        """Wait until a model can be deployed.

        Args:
            model_id: which one.
            timeout: seconds.
            on_change: called with the model whenever it looks different, the first time included.

        Raises:
            NotReady: it is in error (at once), or the time is over.
        """
        return await waits.wait_until_ready(
            self._client._http, lambda: self.get(model_id), timeout, on_change
        )

    async def wait_until_deleted(
        self,
        model_id: str,
        *,
        timeout: float,
        on_change: Callable[[Model], None] | None = None,
    ) -> None:
        """Wait until a model is gone.

        Raises:
            NotReady: it is still there when the time is over.
        """
        await waits.wait_until_deleted(
            self._client._http, lambda: self.get(model_id), timeout, on_change
        )
