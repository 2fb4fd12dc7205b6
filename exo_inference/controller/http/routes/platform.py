"""What the platform offers and how it is: zones, instance types, engine help, quotas, status.

Also operations, which every write answers with.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import exo_inference
from exo_inference.controller.admission.problems import Refused, choice_issue, not_found, refuse
from exo_inference.controller.admission.world import find_family
from exo_inference.controller.context import Context, context_of
from exo_inference.controller.http import operations
from exo_inference.controller.http.endpoints import endpoint_of, find_endpoint
from exo_inference.controller.http.routes.requests import answer, read_text, route
from exo_inference.controller.stores.base import ObjectNotFound
from exo_inference.engine_names import OWN_ENGINE
from exo_inference.engines import ENGINES, get_engine, releases_of
from exo_inference.platforms.base import InstanceTypeInfo
from exo_inference.resources import InferenceApiKey, InferenceDeployment, InferenceModel
from exo_inference.state_dir import SERVERS
from exo_inference.wire import (
    CREATES_STOPPED,
    REPLACES,
    ConsumptionQuota,
    EngineParameterList,
    InstanceType,
    InstanceTypeList,
    Quota,
    QuotaList,
    Zone,
    ZoneList,
)

UNLIMITED = -1
"""The API's own way to say that a quota has no limit."""


async def list_zones(request: Request) -> Response:
    """List the one zone, with the endpoint as this client reaches it. Needs no signature.

    Raises:
        Refused: 421, the client used a name that was never given to this control plane.
    """
    settings = context_of(request).settings
    endpoint = settings.public_endpoint or _find_endpoint(request, settings.api_addresses)
    listed = answer(ZoneList(zones=[Zone(name=settings.zone, api_endpoint=endpoint)]))
    listed.headers["cache-control"] = "no-store"  # it depends on who asks
    return listed


async def list_instance_types(request: Request) -> Response:
    """List the GPU families a deployment may ask for."""
    families = await context_of(request).platform.instance_types()
    return answer(
        InstanceTypeList(
            instance_types=[
                InstanceType(
                    family=family.family,
                    authorized=family.total_gpus > 0,
                    total_gpus=family.total_gpus,
                    free_gpus=family.free_gpus,
                    description=family.description or None,
                    max_gpu_count=family.total_gpus
                    if family.spans_nodes
                    else family.gpus_of_one_node,
                    engines=list(family.possible_engines),
                )
                for family in families
            ]
        )
    )


async def get_engine_help(request: Request) -> Response:
    """List the engine's parameters, optionally those of one version.

    Additive: `engine`, or `gpu-type` for what runs there; without both, what runs on the GPUs.
    """
    version, gpu_type = read_text(request, "version"), read_text(request, "gpu-type")
    engine_name = read_text(request, "engine")
    if engine_name is None:
        engine_name = usual_engine(await context_of(request).families(), gpu_type)
    if engine_name not in ENGINES:
        raise refuse("Engine not known", [choice_issue("engine", engine_name[:64], ENGINES)])
    releases = releases_of(engine_name)
    if version is not None and version not in releases:
        raise refuse("Version not known", [choice_issue("version", version[:64], releases)])
    found = get_engine(engine_name).parameters(version)
    return answer(EngineParameterList(parameters=list(found)))


def usual_engine(families: Sequence[InstanceTypeInfo], gpu_type: str | None) -> str:
    """Return the engine of a family; without one, that of all GPUs if they agree."""
    if gpu_type is not None:
        family = find_family(gpu_type, families)
        if family is None:
            choices = sorted(each.family for each in families)
            raise refuse("GPU family not known", [choice_issue("gpu-type", gpu_type[:64], choices)])
        return family.engine
    engines = {each.engine for each in families if each.family != "cpu"}
    return engines.pop() if len(engines) == 1 else OWN_ENGINE


async def list_quotas(request: Request) -> Response:
    """List what is used; this control plane sets no limits but the machine's own."""
    return answer(QuotaList(quotas=await _quotas(context_of(request))))


async def get_quota(request: Request) -> Response:
    """Show the quota of one resource."""
    entity = request.path_params["entity"]
    for quota in await _quotas(context_of(request)):
        if quota.resource == entity:
            return answer(quota)
    raise not_found("quota", entity[:64])


async def get_consumption_quota(request: Request) -> Response:
    """Say that nothing limits consumption (null)."""
    return JSONResponse(ConsumptionQuota().model_dump(mode="json", by_alias=True))


async def get_operation(request: Request) -> Response:
    """Show an operation."""
    uid, store = request.path_params["id"].lower(), context_of(request).store
    try:
        recorded = await store.get_operation(uid)
    except ObjectNotFound as exc:
        raise not_found("operation", uid[:64]) from exc
    return answer(await operations.as_it_stands(store, recorded))


async def get_status(request: Request) -> Response:
    """Show versions, addresses and processes of this control plane."""
    settings = context_of(request).settings
    records = [settings.state.read_record(name) for name in SERVERS]
    return JSONResponse(
        {
            "version": exo_inference.__version__,
            "engine": f"exo {exo_inference.__version__}",
            "platform": context_of(request).platform.name,
            "zone": settings.zone,
            "gateway": settings.gateway_url,
            "features": [REPLACES, CREATES_STOPPED],
            "controller-pid": os.getpid(),
            "processes": [
                {"name": record.name, "pid": record.pid, "alive": record.alive}
                for record in records
                if record is not None
            ],
        }
    )


async def get_health(request: Request) -> Response:
    """Say that the controller serves and its store answers. Needs no signature."""
    await context_of(request).store.find_request("")
    return JSONResponse({"status": "ok"})


async def _quotas(context: Context) -> list[Quota]:
    deployments = await context.store.list(InferenceDeployment)
    models = await context.store.list(InferenceModel)
    keys = await context.store.list(InferenceApiKey)
    quotas = [
        Quota(resource="ai-model", usage=len(models), limit=UNLIMITED),
        Quota(resource="ai-deployment", usage=len(deployments), limit=UNLIMITED),
        Quota(resource="ai-api-key", usage=len(keys), limit=UNLIMITED),
    ]
    for family in await context.platform.instance_types():
        used = family.total_gpus - family.free_gpus
        quotas.append(Quota(resource=family.family, usage=used, limit=family.total_gpus))
    return quotas


def _find_endpoint(request: Request, own: Sequence[str]) -> str:
    """Return the API's address as this client reached it: of its names, or of the connection."""
    headers = request.headers
    hosts = (_first(headers.get("x-forwarded-host")), headers.get("host", ""))
    is_https = _first(headers.get("x-forwarded-proto")) == "https"
    address, port = request.scope.get("server") or ("127.0.0.1", 80)
    if (found := find_endpoint(hosts, own, [port], is_https=is_https)) is not None:
        return found
    if own:  # in a pod, whose own address clients seldom reach
        raise Refused(
            421,
            "Address not known",
            f"{headers.get('host', '')[:256]!r} is not a name of this control plane",
            hint="Set controller.publicEndpoint of its chart to the URL that clients use.",
        )
    return endpoint_of(address, port)


def _first(header: str | None) -> str:
    return (header or "").split(",")[0].strip()


ROUTES = [
    route("/v2/zone", GET=list_zones),
    route("/v2/ai/instance-type", GET=list_instance_types),
    route("/v2/ai/help/inference-engine-parameters", GET=get_engine_help),
    route("/v2/quota", GET=list_quotas),
    route("/v2/quota/{entity}", GET=get_quota),
    route("/v2/ai/quota", GET=get_consumption_quota),
    route("/v2/operation/{id}", GET=get_operation),
    route("/v2/ai/status", GET=get_status),
    route("/healthz", GET=get_health),
]
