"""`/ai/usage` and `/ai/metrics`: what was used and how the servers of one machine are (additive)."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from exo_inference.controller.admission.problems import Refused
from exo_inference.controller.context import Context, context_of
from exo_inference.controller.http.local_metrics import LocalMetrics, merge_metrics
from exo_inference.controller.http.routes.requests import answer, route
from exo_inference.resources import InferenceApiKey, InferenceDeployment
from exo_inference.wire import UsageList

_TEXT = "text/plain; version=0.0.4; charset=utf-8"


async def list_usage(request: Request) -> Response:
    """List requests and tokens per deployment and key, with their names."""
    context = context_of(request)
    usage = await _local_metrics(context, "Usage not counted here").usage()
    if usage is None:
        raise Refused(
            503,
            "Usage not readable",
            "the gateway does not answer, and what it wrote last cannot be read",
            hint="Try again in a moment.",
        )
    names = {
        each.metadata.uid: each.metadata.name
        for each in await context.store.list(InferenceDeployment)
    }
    keys = names | {
        each.metadata.uid: each.spec.display_name
        for each in await context.store.list(InferenceApiKey)
    }
    named = [
        row.model_copy(
            update={
                "deployment": names.get(row.deployment_id, ""),
                "key": keys.get(row.key_id, ""),
            }
        )
        for row in usage
    ]
    return answer(UsageList(usage=named))


async def show_metrics(request: Request) -> Response:
    """Show the metrics of controller, gateway and engines as one page for Prometheus."""
    context = context_of(request)
    local = _local_metrics(context, "Metrics not collected here")

    async def make() -> bytes:
        deployments = await context.store.list(InferenceDeployment)
        pages = await local.pages(deployments)
        return await asyncio.to_thread(merge_metrics, deployments, pages)

    text = await context.metrics.get(make)
    return Response(text, headers={"content-type": _TEXT})


def _local_metrics(context: Context, title: str) -> LocalMetrics:
    """Return where usage and metrics come from.

    Raises:
        Refused: on a cluster, where each gateway and each engine is asked by itself.
    """
    if context.models is not None:
        raise Refused(
            412,
            title,
            "on a cluster gateways and engines count for themselves, and Prometheus asks each of them",
            hint="Query exo_gateway_requests_total and exo_gateway_tokens_total there.",
        )
    return LocalMetrics(context.settings.state)


ROUTES = [
    route("/v2/ai/usage", GET=list_usage),
    route("/v2/ai/metrics", GET=show_metrics),
]
