"""The routing table: written for the gateway when it changes, and what the gateway made of it.

The reconciler is the only caller. A restarted controller begins with the table on disk, so that
routes stay as they are until each deployment has been looked at. A replica counts as unrouted only
when no table from the one the gateway applied up to the newest names it. `keep_written` repairs a
file that was lost, damaged or changed by someone else.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from exo_inference.controller.gateway_client import GatewayClient
from exo_inference.resources import PUBLIC_SCOPE
from exo_inference.state_dir import file_version, read_file, write_atomically
from exo_inference.wire import Route, RouteKey, RouteTable

logger = logging.getLogger(__name__)

_ANSWER_LIFETIME_SECONDS = 0.1
_POLL_SECONDS = 0.03
_CHECK_SECONDS = 1.0
"""How often the file is compared with what was written."""

_SETTLE_SECONDS = 1.0
"""How long an answer waits for the gateway to follow; it follows within 0.1 s if it runs."""


@dataclass(frozen=True, slots=True)
class _Written:
    """What one written table names."""

    version: int
    deployments: frozenset[str]
    replicas: frozenset[str]


class RoutingTable:
    """The one writer of `routes.json`. `load` comes before all else.

    Args:
        path: the file.
        gateway: who reads it.
        timeout_seconds: a gateway silent for so long is taken to send no requests any more.
        monotonic, wall: clocks, in seconds.
    """

    must_let_go = True

    def __init__(
        self,
        path: Path,
        gateway: GatewayClient,
        *,
        timeout_seconds: float = 5.0,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._gateway = gateway
        self._timeout = timeout_seconds
        self._monotonic = monotonic
        self._wall = wall
        self._lock = asyncio.Lock()
        self._routes: dict[str, Route] = {}
        self._public_keys: list[RouteKey] = []
        self._version = 0
        self._history: list[_Written] = []
        self._file: tuple[int, int, int] | None = None
        self._silent_since: float | None = None
        self._answer: int | None = None
        self._answered_at = float("-inf")

    async def load(self) -> None:
        """Take over the table on disk; write an empty one if there is none that can be read."""
        found = file_version(self._path)  # before it is read: a change in between is noticed
        try:
            text = await asyncio.to_thread(read_file, self._path)
            table = RouteTable.model_validate_json(text)
        except (OSError, ValueError) as exc:
            if not isinstance(exc, FileNotFoundError):
                logger.warning("the routing table %s is written anew: %s", self._path, exc)
            async with self._lock:
                await self._write()
            return
        self._routes = {route.deployment_id: route for route in table.routes}
        self._public_keys = list(table.public_keys)
        self._version = table.version
        self._file = found
        self._remember()

    async def keep_written(self) -> None:
        """Repair the file whenever it is not what was written last, until cancelled.

        The gateway goes on with its last good table meanwhile; one that starts has none.
        """
        while True:
            try:
                await self.repair()
            except OSError as exc:
                logger.warning(
                    "cannot write the routing table %s, trying again: %s", self._path, exc
                )
            await asyncio.sleep(_CHECK_SECONDS)

    async def repair(self) -> bool:
        """Write the table anew if the file is not what was written last; return whether it was.

        Raises:
            OSError: it cannot be written.
        """
        async with self._lock:
            if self._file is not None and file_version(self._path) == self._file:
                return False
            if self._file is not None:
                logger.warning("the routing table %s was changed or lost: writing it", self._path)
            await self._write()
            return True

    @property
    def version(self) -> int:
        """Version of the newest table."""
        return self._version

    async def set_route(self, route: Route) -> None:
        """Add or replace the route of a deployment. Writes only if it changes."""
        async with self._lock:
            if self._routes.get(route.deployment_id) != route:
                self._routes[route.deployment_id] = route
                await self._write()

    async def remove_route(self, deployment_id: str) -> None:
        """Remove the route of a deployment, if there is one."""
        async with self._lock:
            if self._routes.pop(deployment_id, None) is not None:
                await self._write()

    async def retain(self, deployment_ids: Iterable[str]) -> None:
        """Remove the routes of all deployments but these."""
        kept = set(deployment_ids)
        async with self._lock:
            gone = self._routes.keys() - kept
            if gone:
                self._routes = {uid: r for uid, r in self._routes.items() if uid in kept}
                await self._write()

    async def set_public_keys(self, keys: list[RouteKey]) -> None:
        """Replace the keys that open every deployment. Writes only if they change."""
        async with self._lock:
            if self._public_keys != keys:
                self._public_keys = keys
                await self._write()

    async def unrouted(self, replicas: Iterable[str]) -> frozenset[str]:
        """Return those of the replicas that the gateway surely sends no requests to."""
        wanted = frozenset(replicas)
        if not wanted:
            return wanted
        tables = await self._possibly_applied()
        if tables is None:
            return frozenset()
        return wanted.difference(*(table.replicas for table in tables))

    async def is_unrouted(self, deployment_id: str) -> bool:
        """Whether the gateway surely has no route to a deployment any more."""
        tables = await self._possibly_applied()
        return tables is not None and all(deployment_id not in t.deployments for t in tables)

    def has_route(self, deployment_id: str) -> bool:
        """Whether the newest table has a route to a deployment."""
        return deployment_id in self._routes

    async def wait_for_key(self, sha256: str, *, accepted: bool) -> None:
        """Wait, briefly, until the gateway accepts a key (or no longer does).

        So that a key can be used as soon as it was shown, and not after it was deleted.
        """
        await self._wait_until(lambda: bool(self._opened_by(sha256)) == accepted)

    async def wait_for_scope(self, sha256: str, scope: str) -> None:
        """Wait, briefly, until the gateway lets a key open what its scope says and nothing else.

        A deployment that has no route yet is opened by nothing.
        """
        await self._wait_until(
            lambda: self._opened_by(sha256) == ({scope} & {PUBLIC_SCOPE, *self._routes})
        )

    def _opened_by(self, sha256: str) -> set[str]:
        """Return the scopes that a key has in the newest table."""
        keys = {uid: route.keys for uid, route in self._routes.items()}
        keys[PUBLIC_SCOPE] = self._public_keys
        return {scope for scope, of in keys.items() if any(key.sha256 == sha256 for key in of)}

    async def _wait_until(self, is_so: Callable[[], bool]) -> None:
        deadline = self._monotonic() + _SETTLE_SECONDS
        while self._monotonic() < deadline:
            # And on disk: a gateway that starts now reads the file, and answers for no version yet.
            if self._file is not None and is_so():
                await self.wait_until_applied()
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def wait_until_applied(self, *, timeout_seconds: float = _SETTLE_SECONDS) -> None:
        """Wait, briefly, until the gateway routes by the newest table; a dead one is not waited for.

        So that a deployment called ready can be used at once.
        """
        deadline = self._monotonic() + timeout_seconds
        wanted = self._version
        while self._monotonic() < deadline:
            applied = await self._ask()
            if applied is None or applied >= wanted:
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def _possibly_applied(self) -> list[_Written] | None:
        """Return every table that the gateway may route by at this moment; None if unknown."""
        applied = await self._ask()
        if applied is None:
            assert self._silent_since is not None
            if self._monotonic() - self._silent_since >= self._timeout:
                self._history = self._history[-1:]
        elif applied < self._history[0].version:
            return None  # an older table than any this process knows of
        else:
            kept = [table for table in self._history if table.version >= applied]
            self._history = kept or self._history[-1:]
        return list(self._history)

    async def _ask(self) -> int | None:
        now = self._monotonic()
        current = self._answer == self._version
        if (
            self._answer is None
            or not current
            or now - self._answered_at > _ANSWER_LIFETIME_SECONDS
        ):
            self._answer = await self._gateway.applied_version()
            self._answered_at = self._monotonic()
        if self._answer is not None:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now
        return self._answer

    async def _write(self) -> None:
        # Milliseconds, so that versions grow even when the file was lost between two starts.
        self._version = max(self._version + 1, int(self._wall() * 1000))
        self._file = None  # until this one is there: a failure is repaired
        # Before the file is there: whatever the gateway may have read must be remembered.
        self._remember()
        table = RouteTable(
            version=self._version,
            routes=sorted(self._routes.values(), key=lambda route: route.deployment_id),
            public_keys=self._public_keys,
        )
        text = table.model_dump_json(by_alias=True, indent=1)
        await asyncio.to_thread(write_atomically, self._path, text)
        self._file = file_version(self._path)

    def _remember(self) -> None:
        self._history.append(
            _Written(
                self._version,
                frozenset(self._routes),
                frozenset(r.name for route in self._routes.values() for r in route.replicas),
            )
        )
