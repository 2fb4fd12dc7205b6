"""Brings one request to a replica: chooses, sends, and tries another on failure.

Generation has no side effects, so a request may go to another replica as long as the client has
got nothing: when connecting failed, when the replica said that it is draining, or when it died
before the client got any of its answer. Used by `app.py`; the answer itself is passed on by `answer_stream.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote

import aiohttp
from aiohttp import web

from exo_inference.byte_budget import ByteBudget
from exo_inference.gateway import errors
from exo_inference.gateway.addresses import BESIDE_V1
from exo_inference.gateway.answer_stream import TOTAL_WHOLE_BYTES, BrokenOff, relay
from exo_inference.gateway.answer_usage import ask_for_usage
from exo_inference.gateway.exchange import Attempt, Exchange, attempt_at
from exo_inference.gateway.headers import (
    DRAINING_HEADER,
    FAILED_HEADER,
    STARTING_HEADER,
    request_headers,
)
from exo_inference.gateway.held_requests import Holding
from exo_inference.gateway.models.listing import (
    merge_models,
    read_page,
    split_by_models,
)
from exo_inference.gateway.models.requested_model import MODELS_PATH, RequestedModel
from exo_inference.gateway.replicas.balancer import Balancer
from exo_inference.gateway.replicas.lost_replicas import LostReplicas
from exo_inference.gateway.replicas.upstreams import UpstreamPool
from exo_inference.gateway.shared_answers import SharedAnswers
from exo_inference.gateway.table import Deployment, Replica, Tables

logger = logging.getLogger(__name__)

MAX_DEATHS = 2
"""So many further replicas get a request whose replica died on it: it may itself be the cause. Each death may reset one
new connection, which does not count: such a request has cost five ends at most when it is given up."""

FIRST_BUSY_SECONDS = 0.01
LAST_BUSY_SECONDS = 0.25
MAX_BUSY_WAITS = 12
"""Waits for replicas that are all busy: each twice as long as the one before, up to the last; 2 s in all."""

MAX_STATE = 500
MAX_SERVED = 4
"""Characters of a state, and names of models, that a client is told."""

LIST_SECONDS = 2.0
"""How long one replica may take to tell its models, where those of several are put together."""

_BUSY = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL})
"""Why connecting fails although the replica is well; a unix socket with a full queue says EAGAIN."""

_GENERATING = ("/v1/chat/completions", "/v1/completions")
_HARMLESS = (
    *(
        f"/v1/{name}"
        for name in (
            "chat/completions",
            "completions",
            "responses",
            "messages",
            "embeddings",
            "rerank",
            "score",
            "classify",
            "pooling",
            "moderations",
            "audio/",
            "tokenize",
            "detokenize",
        )
    ),
    *BESIDE_V1,
)
"""Where a request computes an answer and changes nothing; others, as loading an adapter, might."""

_THREAD_BYTES = 1 << 20


class _TryAnother(Exception):
    """This replica did not take the request."""


class _UnreachableError(_TryAnother):
    """It is not there, or is draining: it never began."""


class _BusyError(_TryAnother):
    """It is there, and could not be connected to now: its queue, or our descriptors, are used up."""


class _DiedError(_TryAnother):
    """It took the request and hung up without a whole answer, of which the client got nothing."""


@dataclass(frozen=True, slots=True)
class Job:
    """What to send.

    Attributes:
        path: begins with `/v1`.
        strip_usage: the client did not ask for usage.
        may_be_repeated: a replica that ended without an answer may have done it; once more is harmless.
    """

    deployment_id: str
    path: str
    body: bytes
    strip_usage: bool = False
    may_be_repeated: bool = True


@dataclass(slots=True)
class _Attempts:
    """What has been tried for one request, and which model it asks for."""

    asked: RequestedModel
    unreachable: set[str] = field(default_factory=set)
    died: set[str] = field(default_factory=set)
    busy: set[str] = field(default_factory=set)
    count: int = 0
    deaths: int = 0
    dying: str | None = None
    """The replica that died last, which may reset one new connection before it is gone."""
    waits: int = 0
    unseen_since: float | None = None
    """When no replica of the table could be reached first, after the last that could; a time of the loop."""

    def busy_wait_seconds(self) -> float | None:
        """Return how long to wait until busy replicas are tried again; None after enough waits."""
        if self.waits >= MAX_BUSY_WAITS:
            return None
        longest = min(FIRST_BUSY_SECONDS * 2.0**self.waits, LAST_BUSY_SECONDS)
        self.waits += 1
        return longest * random.uniform(0.5, 1.0)  # noqa: S311  # spreads a burst, guards nothing


class Proxy:
    """Forwards requests. One per gateway; lives on one event loop."""

    def __init__(
        self,
        tables: Tables,
        balancer: Balancer,
        upstreams: UpstreamPool,
        patience: LostReplicas,
        holding: Holding,
    ) -> None:
        self._patience = patience
        self._holding = holding
        self._tables = tables
        self._balancer = balancer
        self._upstreams = upstreams
        self._room = ByteBudget(TOTAL_WHOLE_BYTES)
        self._lists = SharedAnswers[bytes | None]("models")

    async def hold(self, exchange: Exchange, deployment: Deployment) -> Deployment:
        """Wait, within bounds, where no replica is ready and one is on its way; return the newest."""
        try:
            return await self._until_ready(exchange, deployment)
        finally:
            self._holding.release(exchange)

    async def _until_ready(
        self,
        exchange: Exchange,
        deployment: Deployment,
        find: Callable[[], Deployment] | None = None,
        num_bytes: int = 0,
    ) -> Deployment:
        return await self._holding.until_ready(
            exchange,
            deployment,
            find or (lambda: self._deployment(exchange, deployment.id)),
            num_bytes=num_bytes,
        )

    async def forward(
        self, request: web.BaseRequest, exchange: Exchange, job: Job
    ) -> web.StreamResponse:
        """Send the request to a replica and its answer to the client.

        Raises:
            RequestRefused: no replica can take it now, or none did.
            ConnectionError: the client hung up.
        """
        try:
            return await self._forward(request, exchange, job)
        finally:
            self._holding.release(exchange)

    async def _forward(
        self, request: web.BaseRequest, exchange: Exchange, job: Job
    ) -> web.StreamResponse:
        if job.path == MODELS_PATH and request.method != "POST":
            merged = await self._list_models(request, exchange, job)
            if merged is not None:
                return merged
        attempts = _Attempts(RequestedModel(job.path, job.body))
        while True:
            replica = await self._next_replica(exchange, job, attempts)
            exchange.replica = replica.name
            try:
                async with self._sent(request, exchange, job, replica, attempts) as upstream:
                    self._holding.release(exchange)
                    if upstream.status == 404:
                        self._check_in_effect(exchange, job, attempts.asked)
                    return await relay(
                        request, upstream, exchange, self._room, strip_usage=job.strip_usage
                    )
            except _BusyError as exc:
                attempts.busy.add(replica.name)
                self._log(logging.INFO, exchange, exc)
            except _UnreachableError as exc:
                attempts.unreachable.add(replica.name)
                self._balancer.note_unreachable(replica.name)
                self._log(logging.INFO, exchange, exc)
            except (_DiedError, BrokenOff) as exc:
                if not job.may_be_repeated:
                    exchange.broken = isinstance(exc, BrokenOff)
                    raise errors.replica_failed(
                        f"replica {replica.name} of deployment {exchange.deployment!r} ended before "
                        f"its answer was whole, and a request to {job.path[:64]} may have had an effect"
                    ) from exc
                attempts.died.add(replica.name)
                attempts.deaths += 1
                attempts.dying, attempts.unseen_since = replica.name, None
                self._log(logging.WARNING, exchange, exc)
            finally:
                self._balancer.release(replica.name)

    def _check_in_effect(self, exchange: Exchange, job: Job, asked: RequestedModel) -> None:
        """Say why a model is not found that the deployment is to have, which the engine cannot know.

        Raises:
            RequestRefused: 404 that one was asked for, and replicas have another.
        """
        deployment = self._deployment(exchange, job.deployment_id)
        served = deployment.served_instead()
        if not served or not asked.names(deployment.model):
            return
        state = f"{deployment.state}: {deployment.state_details}".rstrip(": ")
        if len(state) > MAX_STATE:
            state = f"{state[:MAX_STATE]}…"
        raise errors.model_not_in_effect(
            deployment.name, deployment.model, " and ".join(sorted(served)[:MAX_SERVED]), state
        )

    async def _list_models(
        self, request: web.BaseRequest, exchange: Exchange, job: Job
    ) -> web.StreamResponse | None:
        """Answer with the models of all replicas; None where one replica tells them as well."""
        groups = split_by_models(self._deployment(exchange, job.deployment_id))

        async def merge() -> bytes | None:
            asks = (self._ask_for_models(request, exchange, job, group) for group in groups)
            return merge_models([page for page in await asyncio.gather(*asks) if page is not None])

        key = (job.deployment_id, request.rel_url.raw_query_string)
        merged = await self._lists.get(key, merge) if groups else None
        if merged is None:
            return None
        exchange.status = 200
        exchange.note_first_byte()
        headers = {"Server": errors.SERVER, **exchange.own_headers()}
        return web.Response(body=merged, content_type="application/json", headers=headers)

    async def _ask_for_models(
        self, request: web.BaseRequest, exchange: Exchange, job: Job, group: Deployment
    ) -> bytes | None:
        """Return what one of these replicas answers; None where none does in time."""
        attempts = _Attempts(RequestedModel(job.path, job.body))
        with contextlib.suppress(errors.RequestRefused):  # others may have room, or can be reached
            while (replica := self._balancer.acquire(group, attempts.unreachable)) is not None:
                attempts.unreachable.add(replica.name)
                exchange.replica = replica.name
                try:
                    async with (
                        asyncio.timeout(LIST_SECONDS),
                        self._sent(request, exchange, job, replica, attempts) as upstream,
                    ):
                        return await read_page(upstream)
                except (_TryAnother, aiohttp.ClientError, TimeoutError) as exc:
                    self._log(logging.INFO, exchange, exc)
                finally:
                    self._balancer.release(replica.name)
        return None

    def _log(self, level: int, exchange: Exchange, exc: Exception) -> None:
        fields = {"request_id": exchange.request_id, "deployment": exchange.deployment}
        logger.log(level, "replica %s: %s", exchange.replica, exc, extra=fields)

    async def _next_replica(self, exchange: Exchange, job: Job, attempts: _Attempts) -> Replica:
        name = exchange.deployment

        def find() -> Deployment:
            return attempts.asked.narrow(self._deployment(exchange, job.deployment_id))

        if attempts.deaths > MAX_DEATHS:
            raise errors.replica_failed(
                f"{attempts.deaths} replicas of deployment {name!r} died on this request before "
                f"they answered; see `exo dedicated-inference deployment logs {name}`"
            )
        while True:
            if attempts.count:
                self._tables.refresh()  # what we know may just have become old
            held_seconds = exchange.held_seconds
            deployment = await self._until_ready(exchange, find(), find, len(job.body))
            if exchange.held_seconds != held_seconds:
                attempts.unreachable.clear()
                attempts.unseen_since = None
            tried = attempts.unreachable | attempts.died
            # Where all have been tried, one that hung up may have closed an idle connection only.
            for without in (tried | attempts.busy, attempts.unreachable | attempts.busy):
                replica = self._balancer.acquire(deployment, without)
                if replica is not None:
                    exchange.retries = attempts.count
                    attempts.count += 1
                    return replica
            if not attempts.busy:
                if attempts.unseen_since is None:
                    attempts.unseen_since = asyncio.get_running_loop().time()
                if not await self._holding.until_reachable(
                    exchange, deployment, since=attempts.unseen_since, num_bytes=len(job.body)
                ):
                    raise errors.unreachable(name)
                attempts.unreachable.clear()
                continue
            seconds = attempts.busy_wait_seconds()
            if seconds is None:
                raise errors.busy(name)
            await asyncio.sleep(seconds)
            attempts.busy.clear()

    def _deployment(self, exchange: Exchange, deployment_id: str) -> Deployment:
        table = self._tables.table
        deployment = table.by_id.get(deployment_id) if table else None
        if deployment is None:
            raise errors.unknown_deployment(exchange.deployment)
        return deployment

    @asynccontextmanager
    async def _sent(
        self,
        request: web.BaseRequest,
        exchange: Exchange,
        job: Job,
        replica: Replica,
        attempts: _Attempts,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send the request; the body of the block gets the begun answer.

        Leaving early, as when the client hangs up, closes the connection at once, which is how an
        engine learns that nobody waits for the rest.
        """
        with attempt_at(exchange, replica.name) as attempt:
            try:
                upstream = await self._begin(request, exchange, job, replica, attempts, attempt)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as exc:
                if exc.errno in _BUSY:
                    raise _BusyError(f"busy, cannot connect now: {exc}") from exc
                raise _UnreachableError(f"cannot connect: {exc}") from exc
            except aiohttp.ClientConnectionError as exc:
                if replica.name == attempts.dying and _is_reset(exc):
                    attempts.dying = None
                    raise _UnreachableError(f"hung up once more as it died: {exc!r}") from exc
                raise _DiedError(f"hung up before its answer: {exc!r}") from exc
            except TimeoutError as exc:
                raise _DiedError("is not ready any more and did not answer") from exc
            except aiohttp.ClientError as exc:
                which = f"replica {replica.name} of deployment {exchange.deployment!r}"
                raise errors.replica_failed(f"{which} gave an answer that is not HTTP") from exc
            try:
                if upstream.status == 503 and DRAINING_HEADER in upstream.headers:
                    raise _UnreachableError("it is draining")
                if upstream.status == 503 and STARTING_HEADER in upstream.headers:
                    raise _UnreachableError("it has just been started and loads its model")
                if upstream.status == 503 and FAILED_HEADER in upstream.headers:
                    raise _DiedError("its core died before its answer")
                yield upstream
            finally:
                upstream.close()  # a whole answer has given its connection back to the pool already

    async def _begin(
        self,
        request: web.BaseRequest,
        exchange: Exchange,
        job: Job,
        replica: Replica,
        attempts: _Attempts,
        attempt: Attempt | None,
    ) -> aiohttp.ClientResponse:
        """Send the request and return the answer once it begins.

        Raises:
            TimeoutError: the replica is lost, and was waited for long enough.
            aiohttp.ClientError: it cannot be reached, or hung up.
        """
        address, narrow = replica.address, attempts.asked.narrow
        headers = request_headers(request.headers, exchange.request_id)
        if attempt is not None:
            attempt.inject(headers)
        async with asyncio.timeout(None) as limit:
            with self._patience.watch(limit, job.deployment_id, replica.name, narrow):
                return await self._upstreams.session(address, fresh=attempts.deaths > 0).request(
                    "GET" if request.method == "HEAD" else request.method,  # engines know no HEAD
                    self._upstreams.url(address, job.path, request.rel_url.raw_query_string),
                    headers=headers,
                    data=_payload(job.body) if request.body_exists else None,
                    allow_redirects=False,
                )


def _is_reset(exc: Exception) -> bool:
    """Whether a connection ended with bytes that nobody took; aiohttp gives no number where it wrote none."""
    return isinstance(exc, OSError) and exc.errno in (None, errno.ECONNRESET, errno.EPIPE)


def _payload(body: bytes) -> bytes | io.BytesIO:
    """Return what aiohttp sends: a long body in parts, between which other requests get on."""
    return body if len(body) <= _THREAD_BYTES else io.BytesIO(body)


async def make_job(request: web.BaseRequest, deployment_id: str, path: str, body: bytes) -> Job:
    """Return what to send; a stream that does not ask for usage is made to."""
    plain = unquote(path)
    if request.method != "POST" or plain not in _GENERATING or not body:
        harmless = request.method != "POST" or plain.startswith(_HARMLESS)
        return Job(deployment_id, path, body, may_be_repeated=harmless)
    if len(body) > _THREAD_BYTES:
        return Job(deployment_id, path, *await asyncio.to_thread(ask_for_usage, body))
    return Job(deployment_id, path, *ask_for_usage(body))
