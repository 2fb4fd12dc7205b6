"""A controller pod's private side: probes for the kubelet, metrics for Prometheus.

`server.py` serves it on the pod's metrics port. The API is on another port, and signed.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Callable

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from exo_inference.connection_limits import BACKLOG

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class ControllerMetrics:
    """Everything that `/metrics` shows.

    Args:
        is_leading: whether this controller reconciles.
        num_waiting: objects that wait to be reconciled.
    """

    def __init__(self, is_leading: Callable[[], bool], num_waiting: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        leading = Gauge(
            "exo_controller_leading",
            "1 where this controller reconciles, 0 where it only answers the API.",
            registry=self._registry,
        )
        leading.set_function(lambda: float(is_leading()))
        waiting = Gauge(
            "exo_controller_waiting_objects",
            "Objects that wait to be reconciled.",
            registry=self._registry,
        )
        waiting.set_function(num_waiting)
        self._seconds = Histogram(
            "exo_controller_reconcile_seconds",
            "Time of one pass over an object.",
            ["kind"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._failures = Counter(
            "exo_controller_reconcile_failures",
            "Passes that failed and are repeated.",
            ["kind"],
            registry=self._registry,
        )

    def observe(self, kind: str, seconds: float, *, failed: bool) -> None:
        """Take one pass."""
        self._seconds.labels(kind).observe(seconds)
        if failed:
            self._failures.labels(kind).inc()

    def render(self) -> bytes:
        """Return the text exposition format."""
        return generate_latest(self._registry)


@contextlib.asynccontextmanager
async def serve_probes(
    listener: socket.socket, metrics: ControllerMetrics, is_ready: Callable[[], bool]
) -> AsyncIterator[None]:
    """Answer `/healthz`, `/readyz` and `/metrics` until the block ends."""

    async def healthy(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def ready(_: web.Request) -> web.Response:
        if is_ready():
            return web.json_response({"status": "ok"})
        return web.json_response({"status": "not serving"}, status=503)

    async def scrape(_: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=metrics.render(), headers=headers)

    app = web.Application()
    app.router.add_get("/healthz", healthy)
    app.router.add_get("/readyz", ready)
    app.router.add_get("/metrics", scrape)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.SockSite(runner, listener, backlog=BACKLOG).start()
        yield
    finally:
        await runner.cleanup()
