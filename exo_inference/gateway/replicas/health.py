"""What `GET /<deployment id>/health` answers: what a replica's own health check says, of one that is well if any is.

Load generators ask before they begin, and others while they go on. So it is neither held for a replica that is on its
way, nor refused while all replicas have as many requests as they may: a deployment that has much to do is well.
All who ask at the same time are told the same answer, so nothing of a client's request is passed on but its id.
Used by `app.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
from aiohttp import web
from multidict import CIMultiDictProxy

from exo_inference.gateway import errors
from exo_inference.gateway.exchange import REQUEST_ID_HEADER, Exchange
from exo_inference.gateway.headers import answer_headers
from exo_inference.gateway.replicas.balancer import check_ready
from exo_inference.gateway.replicas.upstreams import UpstreamPool
from exo_inference.gateway.shared_answers import SharedAnswers
from exo_inference.gateway.table import Deployment, Replica

logger = logging.getLogger(__name__)

HEALTH_PATH = "/health"
METHODS = ("GET", "HEAD")

REPLICA_SECONDS = 2.0
"""How long one replica may take; an engine answers in milliseconds whatever it has to do."""

ALL_SECONDS = 5.0
"""How long all of them may take."""

MAX_AT_ONCE = 8
"""Replicas that are asked at the same time for one request: each takes a connection."""

MAX_BYTES = 64 << 10
"""A longer answer is no health check's."""


@dataclass(frozen=True, slots=True)
class _Said:
    """What a replica answered."""

    replica: str
    status: int
    headers: CIMultiDictProxy[str]
    body: bytes


class HealthChecks:
    """Asks replicas for their health; once for all who ask for a deployment's at the same time.

    Args:
        upstreams: connections to replicas.
    """

    def __init__(self, upstreams: UpstreamPool) -> None:
        self._upstreams = upstreams
        self._asking = SharedAnswers[_Said | None]("health")

    async def answer(
        self, request: web.BaseRequest, exchange: Exchange, deployment: Deployment
    ) -> web.Response:
        """Return the answer of the first replica that is well, else that of the first one that answers.

        Raises:
            RequestRefused: 405 another method, 503 there is no ready replica, or none answers in time.
        """
        if request.method not in METHODS:
            allow = ", ".join(METHODS)
            message = f"method {request.method} is not allowed; found for {HEALTH_PATH}: {allow}"
            raise errors.RequestRefused(
                405, "method_not_allowed", message, headers={"Allow": allow}
            )
        check_ready(deployment)
        headers = {REQUEST_ID_HEADER: exchange.request_id, "Accept-Encoding": "identity"}
        said = await self._asking.get(
            deployment.id, lambda: _ask_replicas(deployment, self._upstreams, headers)
        )
        if said is None:
            raise errors.unreachable(deployment.name)
        exchange.replica, exchange.status = said.replica, said.status
        exchange.note_first_byte()
        passed = answer_headers(said.headers, exchange.own_headers())
        return web.Response(status=said.status, headers=passed, body=said.body)


async def _ask_replicas(
    deployment: Deployment, upstreams: UpstreamPool, headers: Mapping[str, str]
) -> _Said | None:
    """Ask replicas at once until one is well, else return the first that answers, in their order; None where none does."""
    free = asyncio.Semaphore(MAX_AT_ONCE)

    async def ask(replica: Replica) -> _Said | None:
        async with free:
            return await _ask(replica, upstreams, headers)

    asked = [asyncio.create_task(ask(replica)) for replica in deployment.replicas]
    try:
        async with asyncio.timeout(ALL_SECONDS):
            for answered in asyncio.as_completed(asked):
                said = await answered
                if said is not None and said.status == 200:
                    return said
    except TimeoutError:
        logger.info("deployment %s: not all replicas told their health in time", deployment.name)
    finally:
        for task in asked:
            task.cancel()
        found = await asyncio.gather(*asked, return_exceptions=True)
    return next((said for said in found if isinstance(said, _Said)), None)


async def _ask(
    replica: Replica, upstreams: UpstreamPool, headers: Mapping[str, str]
) -> _Said | None:
    """Return what one replica answers; None where it does not."""
    try:
        async with (
            asyncio.timeout(REPLICA_SECONDS),
            upstreams.session(replica.address).get(
                upstreams.url(replica.address, HEALTH_PATH, ""),
                headers=headers,
                allow_redirects=False,
            ) as upstream,
        ):
            body = bytearray()
            async for part in upstream.content.iter_any():
                body += part
                if len(body) > MAX_BYTES:
                    return None
            return _Said(replica.name, upstream.status, upstream.headers, bytes(body))
    except (aiohttp.ClientError, TimeoutError) as exc:
        logger.info("replica %s does not tell its health: %r", replica.name, exc)
        return None
