"""The gateway's private side, on the socket `run/gateway.sock` that only its owner can open.

The controller reads `/status` to learn which routing table is in force and how many requests each
replica still has; Prometheus reads `/metrics`; `/usage` has the counts per deployment and key.
"""

from __future__ import annotations

import os
import time

from aiohttp import web

import exo_inference
from exo_inference.gateway.metrics import GatewayMetrics
from exo_inference.gateway.routing import Balancer
from exo_inference.gateway.table import TableWatcher
from exo_inference.gateway.usage import UsageLedger


def build_admin_app(
    tables: TableWatcher, balancer: Balancer, ledger: UsageLedger, metrics: GatewayMetrics
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

    app = web.Application()
    app.router.add_get("/status", status)
    app.router.add_get("/usage", usage)
    app.router.add_get("/metrics", scrape)
    return app
