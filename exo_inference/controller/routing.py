"""What reconcilers and routes ask of the way to the gateways."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from exo_inference.wire import Route, RouteKey


class Routing(Protocol):
    """What reconcilers and routes ask of the way to the gateways; see `RoutingTable` for each.

    Attributes:
        must_let_go: draining replicas wait until the gateway sends them nothing.
    """

    must_let_go: bool

    async def load(self) -> None:
        """Take over what an earlier process left. Comes before all else."""
        ...

    async def keep_written(self) -> None:
        """Repair what others changed, until cancelled."""
        ...

    async def retain(self, deployment_ids: Iterable[str]) -> None:
        """Remove the routes of all deployments but these."""
        ...

    async def set_route(self, route: Route) -> None:
        """Add or replace the route of a deployment."""
        ...

    async def remove_route(self, deployment_id: str) -> None:
        """Remove the route of a deployment, if there is one."""
        ...

    async def set_public_keys(self, keys: list[RouteKey]) -> None:
        """Replace the keys that open every deployment."""
        ...

    async def unrouted(self, replicas: Iterable[str]) -> frozenset[str]:
        """Return those of the replicas that surely get no requests any more."""
        ...

    async def is_unrouted(self, deployment_id: str) -> bool:
        """Whether a deployment surely gets no requests any more."""
        ...

    def has_route(self, deployment_id: str) -> bool:
        """Whether there is a route to a deployment."""
        ...

    async def wait_for_key(self, sha256: str, *, accepted: bool) -> None:
        """Wait, briefly, until a key is accepted (or no longer is)."""
        ...

    async def wait_for_scope(self, sha256: str, scope: str) -> None:
        """Wait, briefly, until a key opens what its scope says and nothing else."""
        ...

    async def wait_until_applied(self, *, timeout_seconds: float = ...) -> None:
        """Wait, briefly, until requests go where the newest routes lead."""
        ...
