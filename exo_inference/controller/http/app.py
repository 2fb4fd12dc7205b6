"""The HTTP application: routes inside the signature gate inside the request boundary.

`server.py` serves it with uvicorn, for the controller of a machine, for those of a cluster and for tests.
It owns no background work. Only Starlette's router is used: its own error pages would answer before the
boundary could.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from exo_inference.controller.context import Context
from exo_inference.controller.http.auth import FindSecret, Verifier
from exo_inference.controller.http.deployment_list import ListedDeployments
from exo_inference.controller.http.middleware import RequestBoundary, ShareRefusal, SignatureGate
from exo_inference.controller.http.refused_signatures import RefusalLog
from exo_inference.controller.http.replays import ReplayMemory
from exo_inference.controller.http.routes import ROUTES


def create_app(
    context: Context,
    find_secret: FindSecret,
    clock: Callable[[], float] = time.time,
    *,
    refusals_file: Path | None = None,
    share_refusal: ShareRefusal | None = None,
) -> ASGIApp:
    """Return the application.

    Args:
        context: the parts that routes call.
        find_secret: the accepted credentials.
        clock: seconds since the epoch, for the expiry of signatures.
        refusals_file: where refused signatures are kept over restarts; None is nowhere.
        share_refusal: tells other controllers, which then refuse it, too; None where there are none.
    """
    refusals = None if refusals_file is None else RefusalLog(refusals_file, clock)
    memory = ReplayMemory(clock, refusals=refusals)
    gate = SignatureGate(_Routes(context), Verifier(find_secret, clock), memory, share_refusal)
    return RequestBoundary(gate)


class _Routes:
    """The router, with the context and what was listed last in each request's scope."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._listed = ListedDeployments()
        # A redirect to the path without its slash would be followed with the old signature.
        self._router = Router(ROUTES, redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["state"].update(context=self._context, listed=self._listed)
            scope["app"] = self  # makes the router raise its 404 and 405 instead of answering them
        await self._router(scope, receive, send)
