"""Brings one request to a replica: chooses, sends, and tries another on failure.

Generation has no side effects, so a request may go to another replica as long as the client has
got nothing: when connecting failed, when the replica said that it is draining, or when it died
before its answer began. Used by `app.py`; the answer itself is passed on by `relay.py`.
"""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote

import aiohttp
from aiohttp import web

from exo_inference.gateway import errors
from exo_inference.gateway.exchange import Exchange
from exo_inference.gateway.headers import DRAINING_HEADER, FAILED_HEADER, request_headers
from exo_inference.gateway.patience import Patience
from exo_inference.gateway.relay import relay
from exo_inference.gateway.routing import Balancer
from exo_inference.gateway.sse import ask_for_usage
from exo_inference.gateway.table import Deployment, Replica, Tables
from exo_inference.gateway.upstreams import UpstreamPool

logger = logging.getLogger(__name__)

MAX_DEATHS = 2
"""So many further replicas get a request whose replica died on it: it may itself be the cause."""

_GENERATING = ("/v1/chat/completions", "/v1/completions")
_THREAD_BYTES = 1 << 20


class _TryAnother(Exception):
    """This replica did not take the request."""


class _UnreachableError(_TryAnother):
    """It is not there, or is draining: it never began."""


class _DiedError(_TryAnother):
    """It took the request and hung up without an answer."""


@dataclass(frozen=True, slots=True)
class Job:
    """What to send. `path` begins with `/v1`; `strip_usage`: the client did not ask for usage."""

    deployment_id: str
    path: str
    body: bytes
    strip_usage: bool = False


@dataclass(slots=True)
class _Attempts:
    """What has been tried for one request."""

    unreachable: set[str] = field(default_factory=set)
    died: set[str] = field(default_factory=set)
    count: int = 0
    deaths: int = 0


class Proxy:
    """Forwards requests. One per gateway; lives on one event loop."""

    def __init__(
        self,
        tables: Tables,
        balancer: Balancer,
        upstreams: UpstreamPool,
        patience: Patience,
    ) -> None:
        self._patience = patience
        self._tables = tables
        self._balancer = balancer
        self._upstreams = upstreams

    async def forward(
        self, request: web.BaseRequest, exchange: Exchange, job: Job
    ) -> web.StreamResponse:
        """Send the request to a replica and its answer to the client.

        Raises:
            RequestRefused: no replica can take it now, or none did.
            ConnectionError: the client hung up.
        """
        attempts = _Attempts()
        while True:
            replica = self._next_replica(exchange, job, attempts)
            exchange.replica = replica.name
            try:
                async with self._sent(request, exchange, job, replica) as upstream:
                    return await relay(request, upstream, exchange, strip_usage=job.strip_usage)
            except _UnreachableError as exc:
                attempts.unreachable.add(replica.name)
                self._balancer.note_unreachable(replica.name)
                self._log(logging.INFO, exchange, exc)
            except _DiedError as exc:
                attempts.died.add(replica.name)
                attempts.deaths += 1
                self._log(logging.WARNING, exchange, exc)
            finally:
                self._balancer.release(replica.name)

    def _log(self, level: int, exchange: Exchange, exc: Exception) -> None:
        fields = {"request_id": exchange.request_id, "deployment": exchange.deployment}
        logger.log(level, "replica %s: %s", exchange.replica, exc, extra=fields)

    def _next_replica(self, exchange: Exchange, job: Job, attempts: _Attempts) -> Replica:
        name = exchange.deployment
        if attempts.deaths > MAX_DEATHS:
            raise errors.replica_failed(
                f"{attempts.deaths} replicas of deployment {name!r} died on this request before "
                f"they answered; see `exo dedicated-inference deployment logs {name}`"
            )
        if attempts.count:
            self._tables.refresh()  # what we know may just have become old
        deployment = self._deployment(exchange, job)
        tried = attempts.unreachable | attempts.died
        # Where all have been tried, one that hung up may have closed an idle connection only.
        for without in (tried, attempts.unreachable):
            replica = self._balancer.acquire(deployment, without)
            if replica is not None:
                exchange.retries = attempts.count
                attempts.count += 1
                return replica
        raise errors.unavailable(
            f"no replica of deployment {name!r} can be reached at the moment",
            retry_after_seconds=1,
        )

    def _deployment(self, exchange: Exchange, job: Job) -> Deployment:
        table = self._tables.table
        deployment = table.by_id.get(job.deployment_id) if table else None
        if deployment is None:
            raise errors.unknown_deployment(exchange.deployment)
        return deployment

    @asynccontextmanager
    async def _sent(
        self, request: web.BaseRequest, exchange: Exchange, job: Job, replica: Replica
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send the request; the body of the block gets the begun answer.

        Leaving early, as when the client hangs up, closes the connection at once, which is how an
        engine learns that nobody waits for the rest.
        """
        try:
            upstream = await self._begin(request, exchange, job, replica)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as exc:
            raise _UnreachableError(f"cannot connect: {exc}") from exc
        except aiohttp.ClientConnectionError as exc:
            raise _DiedError(f"hung up before its answer: {exc!r}") from exc
        except TimeoutError as exc:
            raise _DiedError("is not ready any more and did not answer") from exc
        except aiohttp.ClientError as exc:
            raise errors.replica_failed(
                f"replica {replica.name} of deployment {exchange.deployment!r} gave an answer that "
                "is not HTTP"
            ) from exc
        try:
            if upstream.status == 503 and DRAINING_HEADER in upstream.headers:
                raise _UnreachableError("it is draining")
            if upstream.status == 503 and FAILED_HEADER in upstream.headers:
                raise _DiedError("its core died before its answer")
            yield upstream
        finally:
            upstream.close()  # a whole answer has given its connection back to the pool already

    async def _begin(
        self, request: web.BaseRequest, exchange: Exchange, job: Job, replica: Replica
    ) -> aiohttp.ClientResponse:
        """Send the request and return the answer once it begins.

        Raises:
            TimeoutError: the replica is lost, and was waited for long enough.
            aiohttp.ClientError: it cannot be reached, or hung up.
        """
        address = replica.address
        async with asyncio.timeout(None) as limit:
            with self._patience.watch(limit, job.deployment_id, replica.name):
                return await self._upstreams.session(address).request(
                    "GET" if request.method == "HEAD" else request.method,  # engines know no HEAD
                    self._upstreams.url(address, job.path, request.rel_url.raw_query_string),
                    headers=request_headers(request.headers, exchange.request_id),
                    data=_payload(job.body) if request.body_exists else None,
                    allow_redirects=False,
                )


def _payload(body: bytes) -> bytes | io.BytesIO:
    """Return what aiohttp sends: a long body in parts, between which other requests get on."""
    return body if len(body) <= _THREAD_BYTES else io.BytesIO(body)


async def make_job(request: web.BaseRequest, deployment_id: str, path: str, body: bytes) -> Job:
    """Return what to send; a stream that does not ask for usage is made to."""
    if request.method != "POST" or unquote(path) not in _GENERATING or not body:
        return Job(deployment_id, path, body)
    if len(body) > _THREAD_BYTES:
        return Job(deployment_id, path, *await asyncio.to_thread(ask_for_usage, body))
    return Job(deployment_id, path, *ask_for_usage(body))
