"""Brings one request to a replica: reads its body, chooses, sends, and tries another on failure.

Generation has no side effects, so a request may go to another replica as long as the client has
got nothing: when connecting failed, when the replica said that it is draining, or when it died
before its answer began. Used by `app.py`; the answer itself is passed on by `relay.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from exo_inference.gateway import errors
from exo_inference.gateway.exchange import Exchange
from exo_inference.gateway.headers import DRAINING_HEADER, FAILED_HEADER, request_headers
from exo_inference.gateway.relay import relay
from exo_inference.gateway.routing import Balancer
from exo_inference.gateway.sse import ask_for_usage
from exo_inference.gateway.table import Deployment, Replica, TableWatcher
from exo_inference.gateway.upstreams import UpstreamPool

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 32 << 20
"""A request body longer than this is refused: prompts are text, images come as URLs or base64."""

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

    def __init__(self, tables: TableWatcher, balancer: Balancer, upstreams: UpstreamPool) -> None:
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
        address = replica.address
        try:
            upstream = await self._upstreams.session(address).request(
                request.method,
                self._upstreams.url(address, job.path, request.rel_url.raw_query_string),
                headers=request_headers(request.headers, exchange.request_id),
                data=job.body if request.body_exists else None,
                allow_redirects=False,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as exc:
            raise _UnreachableError(f"cannot connect: {exc}") from exc
        except aiohttp.ClientConnectionError as exc:
            raise _DiedError(f"hung up before its answer: {exc!r}") from exc
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


async def read_job(request: web.BaseRequest, deployment_id: str, path: str) -> Job:
    """Read the request's body, and let a stream ask for usage.

    Raises:
        RequestRefused: 413 the body is too long, 417 an expectation that nobody meets, 400 the
            body is not what its headers say.
    """
    body = await _read_body(request)
    if request.method != "POST" or path not in _GENERATING or not body:
        return Job(deployment_id, path, body)
    if len(body) > _THREAD_BYTES:
        return Job(deployment_id, path, *await asyncio.to_thread(ask_for_usage, body))
    return Job(deployment_id, path, *ask_for_usage(body))


async def _read_body(request: web.BaseRequest) -> bytes:
    if not request.body_exists:
        return b""
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise _too_large()
    await _answer_expectation(request)
    body = bytearray()
    try:
        async for chunk in request.content.iter_any():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise _too_large()
    except (aiohttp.ClientPayloadError, aiohttp.http_exceptions.PayloadEncodingError) as exc:
        raise errors.RequestRefused(
            400, "invalid_body", "the request's body is not what its headers say"
        ) from exc
    return bytes(body)


async def _answer_expectation(request: web.BaseRequest) -> None:
    """Let a client that asks first send its body (RFC 9110 §10.1.1)."""
    expectation = request.headers.get("Expect")
    if expectation is None or request.version < (1, 1):
        return
    if expectation.lower() != "100-continue":
        raise errors.RequestRefused(
            417, "expectation_failed", "only the expectation 100-continue can be met"
        )
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # not part of the answer


def _too_large() -> errors.RequestRefused:
    return errors.RequestRefused(
        413,
        "request_too_large",
        f"the request's body is longer than {MAX_BODY_BYTES >> 20} MiB",
    )
