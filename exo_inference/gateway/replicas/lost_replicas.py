"""How long the proxy waits for the first byte of an answer: for ever, but for a lost replica.

A replica that hangs closes no connection. The controller finds out and takes it from the routing
table; requests that wait for it are then given up after a while, and tried elsewhere. One that is
draining leaves the table as well, and answers what it has. An answer that had begun is ended by `answer_stream.py`.
Lives on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from exo_inference.gateway.table import Deployment, Table

_Waiting = tuple[str, str, Callable[[Deployment], Deployment]]


@dataclass(frozen=True, slots=True)
class LostReplicaSettings:
    """How long a lost replica is waited for.

    Attributes:
        seconds: when another replica is ready.
        alone_seconds: when none is: an engine that was slow may answer yet.
    """

    seconds: float = 10.0
    alone_seconds: float = 60.0


class LostReplicas:
    """All requests that wait for the first byte of an answer."""

    def __init__(self, settings: LostReplicaSettings | None = None) -> None:
        self._settings = settings or LostReplicaSettings()
        self._waiting: dict[asyncio.Timeout, _Waiting] = {}
        self._lost_at: dict[tuple[str, str], float] = {}

    @contextmanager
    def watch(
        self,
        limit: asyncio.Timeout,
        deployment_id: str,
        replica: str,
        narrow: Callable[[Deployment], Deployment] = lambda deployment: deployment,
    ) -> Iterator[None]:
        """Set the deadline of `limit` if the replica is lost before the block ends.

        Args:
            limit: of the request.
            deployment_id: where it was sent.
            replica: which has it.
            narrow: returns the deployment with the replicas alone that may get the request.
        """
        self._waiting[limit] = (deployment_id, replica, narrow)
        try:
            yield
        finally:
            del self._waiting[limit]

    def follow(self, table: Table) -> None:
        """Take a new table: give replicas that are lost a deadline, and others none."""
        now = asyncio.get_running_loop().time()
        lost_at = {}
        for limit, (deployment_id, replica, narrow) in self._waiting.items():
            if limit.expired():
                continue
            deployment = table.by_id.get(deployment_id)
            if deployment is None or not deployment.has_lost(replica):
                limit.reschedule(None)
                continue
            since = self._lost_at.get((deployment_id, replica), now)
            lost_at[deployment_id, replica] = since
            settings = self._settings
            possible = narrow(deployment).replicas
            others = any(each.name not in deployment.doubted for each in possible)
            is_doubted = replica in deployment.doubted  # it may well answer: most are doubted
            seconds = settings.seconds if others and not is_doubted else settings.alone_seconds
            limit.reschedule(since + seconds)
        self._lost_at = lost_at
