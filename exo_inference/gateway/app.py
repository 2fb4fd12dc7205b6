"""The gateway as a whole: what it listens on, and the way of one request from head to log line.

`Gateway` owns every part and its background tasks. `__main__.py` runs it as a process; tests run
it in theirs. Configures no logging and reads no environment.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from exo_inference.connection_limits import BACKLOG, Share
from exo_inference.errors import PlatformError
from exo_inference.gateway import errors
from exo_inference.gateway.addresses import parse_path
from exo_inference.gateway.admin import build_admin_app
from exo_inference.gateway.bounded_site import BoundedSite
from exo_inference.gateway.connections import Server, check_head
from exo_inference.gateway.exchange import (
    CLIENT_CLOSED,
    REQUEST_ID_HEADER,
    Exchange,
    request_id_of,
)
from exo_inference.gateway.held_requests import Holding, HoldSettings
from exo_inference.gateway.keys import authorize, key_of
from exo_inference.gateway.left_prompts import LeftPrompts
from exo_inference.gateway.metrics import GatewayMetrics
from exo_inference.gateway.proxy import Proxy, make_job
from exo_inference.gateway.replicas.balancer import Balancer
from exo_inference.gateway.replicas.health import HEALTH_PATH, HealthChecks
from exo_inference.gateway.replicas.lost_replicas import LostReplicas, LostReplicaSettings
from exo_inference.gateway.replicas.upstreams import UpstreamPool
from exo_inference.gateway.table import Table, Tables, TableWatcher
from exo_inference.gateway.tracing import Tracing
from exo_inference.gateway.uploads import UploadLimits, Uploads
from exo_inference.gateway.usage_ledger import MAX_ROWS, UsageLedger
from exo_inference.local_settings import find_listener
from exo_inference.state_dir import StateDir

logger = logging.getLogger(__name__)
access_logger = logging.getLogger("exo_inference.gateway.access")

MakeTables = Callable[[Callable[[Table], None]], Tables]

METHODS = ("GET", "HEAD", "POST")
"""What an OpenAI-compatible engine serves under /v1."""

LAST_CALL_SECONDS = 1.0
"""For how long after the last answer a gateway that stops serves the connections that clients keep.

A connection that is closed the moment it is idle may meet the client's next request on its way, which
then fails. An answer that says `Connection: close` ends it without that race.
"""

LAST_CALL_POLL_SECONDS = 0.02
"""How often it looks whether any are left."""


class Gateway:
    """One gateway: a public TCP listener and the private admin socket.

    Args:
        state: where the usage file is, and on one machine the routing table and the admin socket.
        make_tables: where routes come from, given what to call with a new table; None is the file.
        admin: a socket that listens for the private side; None makes the one in `state`.
        on_failure: called when background work ends by a bug; without it, routes would go stale.
        upload_limits, patience: how long uploads and lost replicas are waited for.
        holding: how long requests are held for a replica that is on its way.
        share: requests beyond so many at once are refused, and connections wait; None is no bound.
        tracing: where spans go; None is nowhere.
    """

    def __init__(
        self,
        state: StateDir,
        *,
        make_tables: MakeTables | None = None,
        admin: socket.socket | None = None,
        on_failure: Callable[[], None] = lambda: None,
        upload_limits: UploadLimits | None = None,
        patience: LostReplicaSettings | None = None,
        holding: HoldSettings | None = None,
        share: Share | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._state = state
        self._uploads = Uploads(upload_limits)
        self._on_failure = on_failure
        self._admin = admin
        self._tables: Tables = (
            TableWatcher(state.routes_file, self._table_changed)
            if make_tables is None
            else make_tables(self._table_changed)
        )
        self._is_stopping = False
        self._balancer = Balancer()
        self._upstreams = UpstreamPool(state.root)
        self._health_checks = HealthChecks(self._upstreams)
        self._left_prompts = LeftPrompts(self._upstreams)
        self._ledger = UsageLedger(state.usage_file)
        self._ledger.load()
        self._doubted: set[str] = set()
        self._holding = Holding(holding)
        self._metrics = GatewayMetrics(
            self._ledger, self._balancer, self._tables, lambda: self._holding.num_held
        )
        self._patience = LostReplicas(patience)
        self._proxy = Proxy(
            self._tables, self._balancer, self._upstreams, self._patience, self._holding
        )
        self._share = share
        self._tracing = tracing
        self._server = Server(self._handle, handler_cancellation=True)
        self._server.max_kept = share.exchanges if share else None
        self._has_routes = asyncio.Event()
        self._runners: list[web.BaseRunner] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._idle_since = 0.0

    async def start(self, host: str, port: int, *, listener: socket.socket | None = None) -> int:
        """Listen, and begin to follow the routing table.

        Args:
            host: the public address.
            port: the public port; 0 is any free one.
            listener: a socket that listens there already, inherited from the supervisor.

        Returns:
            The public port.

        Raises:
            PlatformError: the address cannot be listened on.
        """
        self._tables.refresh()
        public, admin = await self._set_up()
        try:
            await self._site(public, listener or _listen(host, port)).start()
        except OSError as exc:
            raise _cannot_listen(host, port, exc) from exc
        await self._start_admin(admin)
        self._start_tasks()
        return _log_port(public)

    async def start_when_ready(self, listener: socket.socket, stop: asyncio.Event) -> None:
        """Follow the routing table, and listen once there is one.

        Processes that share a port each get their part of the connections from the moment they
        listen, so one that cannot answer yet must not.

        Args:
            listener: a socket that is bound and does not listen yet.
            stop: when set, it is not waited for any longer, and nothing listens.
        """
        public, admin = await self._set_up()
        await self._start_admin(admin)
        self._start_tasks()
        await _first_of(self._has_routes, stop)
        if not stop.is_set():
            await self._site(public, listener).start()
            _log_port(public)

    def _site(self, public: web.ServerRunner, listener: socket.socket) -> BoundedSite:
        return BoundedSite(public, listener, self._share.connections if self._share else None)

    async def _set_up(self) -> tuple[web.ServerRunner, web.AppRunner]:
        public = web.ServerRunner(self._server, shutdown_timeout=1.0)  # after the grace of `stop`
        admin = web.AppRunner(
            build_admin_app(
                self._tables,
                self._balancer,
                self._ledger,
                self._metrics,
                lambda: self._is_stopping,
            ),
            access_log=None,
            shutdown_timeout=0.1,
        )
        for runner in (public, admin):
            await runner.setup()
            self._runners.append(runner)
        return public, admin

    def _start_tasks(self) -> None:
        for name, work in (("routing-table", self._tables.run()), ("usage", self._ledger.run())):
            task = asyncio.create_task(work, name=name)
            task.add_done_callback(self._note_end)
            self._tasks.append(task)

    async def _start_admin(self, runner: web.AppRunner) -> None:
        if self._admin is not None:
            await web.SockSite(runner, self._admin, backlog=BACKLOG).start()
            return
        path = str(_short(self._state.gateway_socket))
        await web.UnixSite(runner, path, backlog=BACKLOG).start()
        self._state.gateway_socket.chmod(0o600)

    async def stop(
        self, *, grace_seconds: float = 30.0, hurry: asyncio.Event | None = None
    ) -> None:
        """Stop accepting, let requests in flight end, then close what is left.

        Args:
            grace_seconds: how long requests in flight may take.
            hurry: when set, the grace ends at once.
        """
        self._is_stopping = True
        if self._runners:
            for site in list(self._runners[0].sites):
                await site.stop()
            self._server.is_closing = True
            self._uploads.stop()
            self._holding.stop()
            await self._finish_within(grace_seconds, hurry or asyncio.Event())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for runner in reversed(self._runners):
            await runner.cleanup()
        await self._left_prompts.close()
        await self._upstreams.close()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)
        await self._ledger.save()
        self._state.gateway_socket.unlink(missing_ok=True)

    async def _finish_within(self, grace_seconds: float, hurry: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(wait) for wait in (self._finish(), hurry.wait())]
        _, left = await asyncio.wait(
            waits, timeout=grace_seconds, return_when=asyncio.FIRST_COMPLETED
        )
        for wait in left:
            wait.cancel()
        if self._in_flight:
            logger.warning("%d requests in flight are cut off", self._in_flight)

    async def _finish(self) -> None:
        """Answer what is in flight, and what comes on connections that clients keep."""
        now = asyncio.get_running_loop().time
        self._idle_since = now()
        while self._server.connections and now() < self._idle_since + LAST_CALL_SECONDS:
            await asyncio.sleep(LAST_CALL_POLL_SECONDS)
            await self._idle.wait()

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            logger.critical("%s failed; the gateway ends", task.get_name(), exc_info=failure)
            self._on_failure()

    def _table_changed(self, table: Table) -> None:
        self._has_routes.set()
        self._patience.follow(table)
        self._holding.follow()
        # A pool whose replica is gone from the table may still serve requests in flight.
        if not self._balancer.pending.keys() - table.replicas.keys():
            self._upstreams.prune({replica.address for replica in table.replicas.values()})

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; whatever happens, count it and log one line."""
        exchange = Exchange(request_id_of(request.headers.get(REQUEST_ID_HEADER)), request.method)
        self._in_flight += 1
        self._idle.clear()
        counted = True
        try:
            if request.rel_url.raw_path == "/healthz":
                counted = False
                return web.json_response({"status": "ok"}, headers={"Server": errors.SERVER})
            if self._tracing is not None:
                exchange.trace = self._tracing.begin(request.headers, request.method)
            if self._share is not None and self._in_flight > self._share.exchanges:
                raise errors.out_of_descriptors(self._share.exchanges)
            return await self._serve(request, exchange)
        except errors.RequestRefused as refusal:
            exchange.status = refusal.status
            return _refuse(refusal, exchange)
        except (asyncio.CancelledError, ConnectionError):
            if not exchange.is_complete:  # else it had all that it waited for
                exchange.status = CLIENT_CLOSED
            raise
        except Exception:
            logger.exception("id=%s failed", exchange.request_id)
            exchange.status = 500
            message = f"the gateway failed; its log has the reason under id {exchange.request_id}"
            failure = errors.RequestRefused(500, "internal_error", message, type="server_error")
            return _refuse(failure, exchange)
        finally:
            if counted:
                self._end(exchange)
            self._in_flight -= 1
            if not self._in_flight:
                self._idle_since = asyncio.get_running_loop().time()
                self._idle.set()

    async def _serve(self, request: web.BaseRequest, exchange: Exchange) -> web.StreamResponse:
        check_head(request)
        target = parse_path(request.rel_url.raw_path)
        exchange.path = target.path
        token = key_of(request.headers.get("Authorization"), request.headers.get("X-Api-Key"))
        table = self._tables.table
        if table is None:
            raise errors.unavailable(
                "the gateway has no routing table yet; is the controller up? "
                "(see `exo dedicated-inference status`)",
                retry_after_seconds=1,
            )
        deployment, exchange.key_id = authorize(token, table, target.deployment)
        exchange.deployment_id, exchange.deployment = deployment.id, deployment.name
        if request.method not in METHODS:
            allow = {"Allow": ", ".join(METHODS)}
            message = f"method {request.method} is not allowed; found under /v1: {allow['Allow']}"
            raise errors.RequestRefused(405, "method_not_allowed", message, headers=allow)
        deployment = await self._tables.settle(deployment)
        if target.path == HEALTH_PATH:
            return await self._health_checks.answer(request, exchange, deployment)
        deployment = await self._proxy.hold(exchange, deployment)
        self._balancer.check(deployment)  # a body that nobody can take is not read
        async with self._uploads.read(request, deployment.id) as body:
            job = await make_job(request, deployment.id, target.path, body)
            try:
                return await self._proxy.forward(request, exchange, job)
            finally:
                if exchange.estimated and not exchange.broken:
                    exchange.left = job.path, body

    def _end(self, exchange: Exchange) -> None:
        """Count one request, now or once the engine has told what its prompt took."""
        seconds = time.perf_counter() - exchange.started
        table = self._tables.table
        replica = table.replicas.get(exchange.replica) if table else None
        if exchange.left is not None and replica is not None and not self._is_stopping:
            left, exchange.left = exchange.left, None

            def count(num_tokens: int) -> None:
                exchange.note_prompt(num_tokens)
                self._count(exchange, seconds)

            if self._left_prompts.ask(replica.address, *left, count):
                return
        self._count(exchange, seconds)

    def _count(self, exchange: Exchange, seconds: float) -> None:
        self._ledger.count(
            exchange.deployment_id, exchange.key_id, exchange.status, exchange.tokens
        )
        if exchange.doubted:
            self._doubt(exchange)
        self._metrics.observe(exchange, seconds)
        if exchange.trace is not None:
            exchange.trace.end(exchange)
        access_logger.info(exchange.log_line(seconds), extra=exchange.log_fields(seconds))

    def _doubt(self, exchange: Exchange) -> None:
        """Say what an engine says of its usage and is not believed; once for each deployment."""
        if exchange.deployment_id in self._doubted or len(self._doubted) >= MAX_ROWS:
            return
        self._doubted.add(exchange.deployment_id)
        fields = {"request_id": exchange.request_id, "deployment": exchange.deployment}
        logger.warning(
            "replica %s says a usage that is not counted, of %s; further ones of its deployment are not told",
            exchange.replica,
            exchange.doubted,
            extra=fields,
        )


def _refuse(refusal: errors.RequestRefused, exchange: Exchange) -> web.Response:
    response = refusal.to_response()
    response.headers.update(exchange.own_headers())
    return response


def _log_port(public: web.BaseRunner) -> int:
    host, port = public.addresses[0][:2]
    logger.info("listening on %s:%d", host, port)
    return int(port)


async def _first_of(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


def _short(path: Path) -> Path:
    """Return the path relative to the working directory where it lies below it.

    The path of a unix socket has at most 107 bytes.
    """
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _cannot_listen(host: str, port: int, exc: OSError) -> PlatformError:
    holder = find_listener(port)
    who = f", the port is held by process {holder.pid} ({holder.name})" if holder else ""
    return PlatformError(
        f"cannot listen on {host}:{port}: {exc.strerror or exc}{who}",
        hint="Choose another port with `exo dedicated-inference up --gateway-port`.",
    )
