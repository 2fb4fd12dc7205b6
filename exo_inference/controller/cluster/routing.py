"""Routing on a cluster: the gateways find deployments, keys and replicas by themselves.

In place of `routing_table.py`. The leader has nothing to write for them, and nobody has to ask whether
they let go of a replica: Kubernetes takes a pod that ends from the endpoints first and then gives it
time, and the gateways follow the endpoints.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from exo_inference.wire import Route, RouteKey

KEY_SETTLE_SECONDS = 0.3
"""How long a change of keys may take to the gateways, which watch them; nobody can ask all of them."""


class ClusterRouting:
    """Implements `Routing`."""

    must_let_go = False

    async def load(self) -> None:
        """There is nothing to take over."""

    async def keep_written(self) -> None:
        """There is nothing to repair."""

    async def retain(self, deployment_ids: Iterable[str]) -> None:
        """Gateways see for themselves what is gone."""

    async def set_route(self, route: Route) -> None:
        """Gateways see for themselves what is there."""

    async def remove_route(self, deployment_id: str) -> None:
        """Gateways leave a deployment that is being deleted by themselves."""

    async def set_public_keys(self, keys: list[RouteKey]) -> None:
        """Gateways see the keys for themselves."""

    async def unrouted(self, replicas: Iterable[str]) -> frozenset[str]:
        """Return none: the platform does not ask, as Kubernetes drains pods itself."""
        return frozenset()

    async def is_unrouted(self, deployment_id: str) -> bool:
        """Whether a deployment may be taken down: its pods finish what they have in any case."""
        return True

    def has_route(self, deployment_id: str) -> bool:
        """Whether there is a route; on a cluster nothing has to be written for it."""
        return True

    async def wait_for_key(self, sha256: str, *, accepted: bool) -> None:
        """Give the gateways a moment to see a change of keys."""
        await asyncio.sleep(KEY_SETTLE_SECONDS)

    async def wait_for_scope(self, sha256: str, scope: str) -> None:
        """Give the gateways a moment to see a change of keys."""
        await asyncio.sleep(KEY_SETTLE_SECONDS)

    async def wait_until_applied(self, *, timeout_seconds: float = 1.0) -> None:
        """Wait for nothing: a gateway that knows no replica yet makes the request wait for it."""
