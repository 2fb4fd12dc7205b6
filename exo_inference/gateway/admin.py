"""The gateway's private side: the socket `run/gateway.sock` that only its owner can open, or a pod's port.

The controller reads `/status` to learn which routing table is in force and how many requests each
replica still has; Prometheus reads `/metrics`; `/usage` has the counts per deployment and key. A
kubelet asks `/healthz` whether the process answers, and `/readyz` whether it should get requests.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from aiohttp import web

import exo_inference
from exo_inference.gateway.metrics import GatewayMetrics
from exo_inference.gateway.replicas.balancer import Balancer
from exo_inference.gateway.table import Tables
from exo_inference.gateway.usage_ledger import UsageLedger


def build_admin_app(
    tables: Tables,
    balancer: Balancer,
    ledger: UsageLedger,
    metrics: GatewayMetrics,
    is_stopping: Callable[[], bool],
) -> web.Application:
    """Return the application behind the admin socket."""
    started = time.time()

    async def status(_: web.Request) -> web.Response:
        tables.refresh()  # who asks has often just written one, and waits for it
        table = tables.table
        names = {*(table.replicas if table else ()), *balancer.pending}
        tokens = ledger.tokens
        return web.json_response(
            {
                "table_version": table.version if table else None,
                "table_problem": tables.problem,
                "replicas": {n: {"pending": balancer.pending.get(n, 0)} for n in sorted(names)},
                "requests": ledger.num_requests,
                "tokens": {"prompt": tokens.prompt, "completion": tokens.completion},
                "pid": os.getpid(),
                "version": exo_inference.__version__,
                "uptime_seconds": round(time.time() - started, 3),
            }
        )

    async def usage(_: web.Request) -> web.Response:
        return web.json_response(ledger.to_json())

    async def scrape(_: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=metrics.render(), headers=headers)

    async def healthy(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def ready(_: web.Request) -> web.Response:
        if is_stopping():
            return web.json_response({"status": "stopping"}, status=503)
        if tables.table is None:
            return web.json_response({"status": f"no routes: {tables.problem}"}, status=503)
        return web.json_response({"status": "ok"})

    app = web.Application()
    app.router.add_get("/healthz", healthy)
    app.router.add_get("/readyz", ready)
    app.router.add_get("/status", status)
    app.router.add_get("/usage", usage)
    app.router.add_get("/metrics", scrape)
    return app
