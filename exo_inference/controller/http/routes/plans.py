"""`/ai/plan`: what a deployment would take and give, without creating anything. Additive.

A well-formed request is answered with 200; whether it fits is the `verdict`. The model may be one of
this control plane, one of the planner's catalogue, one of the Hub, or a config.json, which a child process
reads: one that breaks a bound, or takes too long, is answered with 400.
`/ai/plan/starts` tells how right plans were, by the replicas that really started.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from exo_inference import foreign_files, planner
from exo_inference.controller.admission.architectures import KnownModel, find_bundled
from exo_inference.controller.admission.bodies import to_wanted
from exo_inference.controller.admission.field_checks import (
    check_parameters,
    check_version,
    no_model_issue,
)
from exo_inference.controller.admission.fields import Fields
from exo_inference.controller.admission.fit import (
    MAX_GPUS,
    complete_plan,
    draft_name_of,
    make_subject,
    offered_gpu,
    other_gpus,
)
from exo_inference.controller.admission.host_room import with_room_left
from exo_inference.controller.admission.problems import (
    Issue,
    Refused,
    choice_issue,
    field_issue,
    refuse,
    short_number,
)
from exo_inference.controller.admission.world import find_family, find_model
from exo_inference.controller.context import Context, context_of
from exo_inference.controller.http.body import parse_object
from exo_inference.controller.http.routes.requests import answer, route
from exo_inference.engine_names import GPU_ENGINE
from exo_inference.engines import ENGINES
from exo_inference.errors import UsageError
from exo_inference.foreign_files import ForeignFileError, ReadingFailed
from exo_inference.hub import is_in_place, source_for
from exo_inference.hub.base import InvalidModelName
from exo_inference.model_description import CONFIG_NAME
from exo_inference.planner import Architecture, Gpu
from exo_inference.platforms.base import InstanceTypeInfo
from exo_inference.preflight import judge
from exo_inference.resources import DeploymentSpec, EngineRef, InferenceModel
from exo_inference.resources.wanted import WantedDeployment
from exo_inference.wire import ModelRef, PlanRequest, PlanStartList

_TITLE = "Not planned"
_CONFIG_MODEL = "the given config.json"

_ASKING = "plans"
"""As whom all plans of a config.json wait to have it read: many of them hold up nobody else."""

_MAX_WAITING = 64
"""Plans that wait so; one more is told to come again."""


async def plan_deployment(request: Request) -> Response:
    """Plan a deployment that need not exist, with ways out where it does not fit."""
    context = context_of(request)
    fields = Fields(PlanRequest, parse_object(await request.body()))
    wanted, issues = to_wanted(fields.values), list(fields.issues)
    world = await context.load_world(await context.families())
    families = with_room_left(world.families, world.reservations, None)
    gpu = _check_gpu(wanted.gpu_type, families, context.user_gpus, issues)
    spec = _check_spec(wanted, families, issues)
    config: dict[str, Any] | None = fields.values.get("model_config_json")
    name = _check_model(wanted.model or ModelRef(), config, world.models, issues)
    if issues or spec is None:
        raise refuse(_TITLE, issues)
    spec = spec.model_copy(update={"model": name})
    known = await _look_up(context, spec, config, world.models)
    subject = replace(make_subject(spec, families, known), gpu=gpu)
    is_ours = find_family(spec.gpu_type, families) is not None
    others = other_gpus(spec.gpu_type, families) if is_ours else None
    wants_advice = not fields.values.get("without_advice", False)
    judgement = await asyncio.to_thread(judge, subject, with_advice=wants_advice, other_gpus=others)
    return answer(complete_plan(judgement, spec.gpu_type, known.get(name, KnownModel())))


def _check_spec(
    wanted: WantedDeployment, families: Sequence[InstanceTypeInfo], issues: list[Issue]
) -> DeploymentSpec | None:
    """Return what is to be planned, still without its model; what is wrong goes to `issues`."""
    count = 1 if wanted.gpu_count is None else wanted.gpu_count
    if not 1 <= count <= MAX_GPUS:
        found = f"must be from 1 to {MAX_GPUS}, found {short_number(count)}"
        issues.append(field_issue("gpu-count", found))
    family = find_family(wanted.gpu_type, families)
    engine = wanted.engine or (GPU_ENGINE if family is None else family.engine)
    if engine not in ENGINES:
        issues.append(choice_issue("inference-engine", engine[:64], ENGINES))
    version = check_version(wanted.engine_version, engine, issues)
    flags = check_parameters(wanted, issues) or ()
    if issues:
        return None
    return DeploymentSpec(
        model="",
        gpu_type=wanted.gpu_type or "",
        gpu_count=count,
        engine=EngineRef(name=engine, version=version),
        engine_parameters=flags,
    )


def _check_gpu(
    name: str | None,
    families: Sequence[InstanceTypeInfo],
    user_gpus: Mapping[str, Gpu],
    issues: list[Issue],
) -> Gpu | None:
    """Return the GPU: of the platform, of the user's file, or of the planner's catalogue."""
    if name is None:
        return None  # reported already
    family = find_family(name, families)
    if family is not None and family.gpu is not None:
        return offered_gpu(family)
    if name in user_gpus:
        return user_gpus[name]
    try:
        return planner.find_gpu(name[:128])
    except UsageError as error:
        if family is None:
            issues.append(Issue(error.text, "$['gpu-type']", error.text))
        return None


def _check_model(
    ref: ModelRef,
    config: Mapping[str, Any] | None,
    models: Sequence[InferenceModel],
    issues: list[Issue],
) -> str:
    """Return the model's name; a reference by id must be to a model here."""
    if config is not None:
        return ref.name or _CONFIG_MODEL
    if ref.id:
        model = find_model(ref, models)
        if model is None:
            issues.append(no_model_issue(ref))
        return "" if model is None else model.spec.source
    if not ref.name and not any(issue.location == "$['model']" for issue in issues):
        issues.append(field_issue("model", "needs a name or an id, or send model-config instead"))
    return ref.name or ""


async def _look_up(
    context: Context,
    spec: DeploymentSpec,
    config: Mapping[str, Any] | None,
    models: Sequence[InferenceModel],
) -> dict[str, KnownModel]:
    name = spec.model
    known = await context.look_up(ModelRef(name=name), draft_name_of(spec), models)
    if config is not None:
        known[name] = KnownModel(await _read_config(config, name))
    elif name not in known:
        known[name] = find_bundled(name)
    if known[name].architecture is None and _is_hub_name(name):
        known[name] = await _ask_hub(context, name, models)
    return known


async def _read_config(config: Mapping[str, Any], name: str) -> Architecture:
    """Read a config.json in a child process: its expressions may take any time to match.

    Raises:
        Refused: 400, when it breaks a bound or its reader was stopped; 429, when too many wait.
    """
    if foreign_files.num_waiting(_ASKING) >= _MAX_WAITING:
        raise Refused(
            429,
            "Too many plans",
            f"{_MAX_WAITING} plans wait for their config.json to be read",
            hint="Repeat it in a few seconds.",
            headers={"retry-after": "5"},
        )
    files = {CONFIG_NAME: json.dumps(config).encode()}
    try:
        found = await foreign_files.describe_remote_async(
            files, (), name=name, source=CONFIG_NAME, owner=_ASKING
        )
    except (ForeignFileError, ReadingFailed) as error:
        issue = field_issue("model-config", f"cannot be read: {error.message}")
        hint = "Send the config.json that its engine would load."
        raise refuse(_TITLE, [issue], hint=hint) from error
    return found.architecture


def _is_hub_name(name: str) -> bool:
    try:
        source_for(name)
    except InvalidModelName:
        return False
    return not is_in_place(name)


async def _ask_hub(context: Context, name: str, models: Sequence[InferenceModel]) -> KnownModel:
    """Ask the Hub, with the token of the model where it is one of this control plane."""
    model = find_model(ModelRef(name=name), models)
    if model is None:
        return await context.architectures.of_hub(name)
    token = await context.hub_token(model)
    revision = model.status.revision or model.spec.revision
    return await context.architectures.of_hub(name, revision=revision, token=token)


async def list_starts(request: Request) -> Response:
    """Return the real starts: what was predicted for each, and what was measured."""
    return answer(PlanStartList(starts=await context_of(request).starts.read()))


ROUTES = [
    route("/v2/ai/plan", POST=plan_deployment),
    route("/v2/ai/plan/starts", GET=list_starts),
]
