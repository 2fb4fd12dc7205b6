"""Whether a wanted change may be recorded: the one seam where requests are judged. Pure.

Routes hand over the fields of the body and a `World` (what is stored and what the platform has)
and get back a spec, or one refusal that lists every problem: shape first, then flags, rules and
memory (`fit.py`), then whether the machine has the GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from exo_inference.controller.admission.availability import (
    can_judge,
    check_capacity,
    check_engine,
    refuse_other_nodes,
)
from exo_inference.controller.admission.field_checks import (
    check_family,
    check_has_gguf,
    check_has_weights,
    check_model,
    check_name,
    check_parameters,
    check_replicas,
    check_version,
)
from exo_inference.controller.admission.fields import Fields
from exo_inference.controller.admission.fit import MAX_GPUS, Candidate, Fit, judge_fit
from exo_inference.controller.admission.host_room import (
    CPU_FAMILY,
    Guard,
    ReservationRequest,
    describe_ways_out,
    find_cpu_oversubscription,
    find_shortage,
    make_guard,
    model_sizes,
    need_of,
    warning,
)
from exo_inference.controller.admission.problems import (
    Issue,
    Refused,
    choice_issue,
    field_issue,
    refuse,
)
from exo_inference.controller.admission.world import World
from exo_inference.controller.stores.base import NewEvent
from exo_inference.engines import ENGINES
from exo_inference.platforms.base import InstanceTypeInfo
from exo_inference.platforms.replica_memory import ReplicaNeed, Share
from exo_inference.preflight import read_draft_name
from exo_inference.resources import (
    MEMORY_ANNOTATION,
    DeploymentSpec,
    EngineRef,
    InferenceDeployment,
    InferenceModel,
    find_older_model,
)
from exo_inference.wire import CreateDeployment, DeploymentPlan

_ANOTHER = (
    "cannot be changed by an update; replace the deployment instead, which keeps its URL and key: "
    "PUT /ai/deployment/ID, or `exo dedicated-inference apply --replace`"
)
_NOT_BY_UPDATE = {
    "replicas": "cannot be changed by an update; scale the deployment instead: "
    "POST /ai/deployment/ID/scale, or `exo dedicated-inference deployment scale NAME REPLICAS`",
    "gpu-count": _ANOTHER,
    "gpu-type": _ANOTHER,
    "model": _ANOTHER,
    "inference-engine": _ANOTHER,
    "product-name": _ANOTHER,
}
"""Fields of a deployment that an update must not seem to change, and what to do instead."""


@dataclass(frozen=True, slots=True)
class AdmittedDeployment:
    """A deployment that may be recorded, with its plan and the event that tells of it.

    Attributes:
        need: what a replica takes of the machine that all share; None on a cluster.
        is_guess: the need is a guess, and better ones follow when the model's files are here.
    """

    name: str
    spec: DeploymentSpec
    plan: DeploymentPlan
    event: NewEvent
    need: ReplicaNeed | None = None
    is_guess: bool = False

    @property
    def annotations(self) -> dict[str, str]:
        """What is recorded with the object itself of what it was admitted with."""
        if self.need is None or self.is_guess:
            return {}
        return {MEMORY_ANNOTATION: self.need.text}


def make_reservation_guard(
    title: str, spec: DeploymentSpec, need: ReplicaNeed | None, world: World, uid: str
) -> Guard | None:
    """Return what keeps a write from taking memory that another one has taken meanwhile."""
    if need is None:
        return None
    share = Share(uid, need, spec.replicas)
    return make_guard(world.reservations, share, model_sizes(world.models), title)


def admit_create(
    fields: Fields, world: World, *, force: bool = False, title: str = "Deployment not created"
) -> AdmittedDeployment:
    """Judge the creation of a deployment.

    Args:
        fields: of the body.
        world: what it is judged against.
        force: admit it although it does not fit into memory.
        title: of a refusal.

    Raises:
        Refused
    """
    issues = list(fields.issues)
    values = fields.values
    name = check_name(values, world, issues, uid=None)
    model = check_model(values.get("model"), world, issues)
    family = check_family(values, world, issues)
    check_has_weights(model, family, world, issues)
    engine = check_engine(values, family, issues)
    check_has_gguf(model, engine, family, issues)
    version = check_version(values, engine, issues)
    parameters = check_parameters(values, issues)
    # The vendor's own command line sends 0 when its user says nothing, so 0 means the default.
    replicas = check_replicas(values.get("replicas", 1) or 1, issues)
    fit = None
    if parameters is not None and engine is not None and can_judge(engine, version):
        gpu_type, count = values.get("gpu_type", ""), values.get("gpu_count", 1)
        candidate = Candidate(model, gpu_type, count, engine, version, parameters)
        reservation = world.reservation(model, replicas)
        fit = _check_fit(candidate, world, issues, reservation, force=force)
    check_capacity(values, family, engine, issues)
    if issues or fit is None:
        raise _refuse(title, issues, fit)
    fit = _reserve(title, fit, reservation, force=force)
    spec = DeploymentSpec(
        model=model,
        gpu_type=candidate.gpu_type,
        gpu_count=candidate.gpu_count,
        replicas=replicas,
        engine=EngineRef(name=candidate.engine, version=version),
        engine_parameters=candidate.flags,
        product_name=values.get("product_name"),
    )
    return AdmittedDeployment(name, spec, fit.plan, fit.event, fit.need, fit.is_guess)


def admit_object(deployment: InferenceDeployment, world: World) -> None:
    """Judge a deployment that came past the API, as if it were created now.

    Raises:
        Refused
    """
    spec, metadata = deployment.spec, deployment.metadata
    body = {
        "name": metadata.name,
        "model": {"name": spec.model},
        "gpu-type": spec.gpu_type,
        "gpu-count": spec.gpu_count,
        "replicas": spec.replicas,
        "inference-engine": spec.engine.name,
        "inference-engine-version": spec.engine.version,
        "inference-engine-parameters": list(spec.engine_parameters),
    }
    others = tuple(d for d in world.deployments if d.metadata.uid != metadata.uid)
    admit_create(Fields(CreateDeployment, body), replace(world, deployments=others))


def admit_replace(
    body: Mapping[str, Any], present: InferenceDeployment, world: World, *, force: bool = False
) -> AdmittedDeployment:
    """Judge a deployment that takes the place of one under the same id, as if it were created now.

    Args:
        body: what shall be; name, replicas and product that it does not have stay as they are, and
            on the same GPU type the engine with its version.
        present: the deployment as it is.
        world: what it is judged against.
        force: admit it although it does not fit into memory.

    Raises:
        Refused
    """
    spec = present.spec
    kept: dict[str, Any] = {
        "name": present.metadata.name,
        "replicas": spec.replicas,
        "product-name": spec.product_name,
    }
    given = {key: value for key, value in body.items() if value is not None}
    if given.get("gpu-type") == spec.gpu_type:
        kept["inference-engine"] = spec.engine.name
        if given.get("inference-engine") in (None, spec.engine.name):
            kept["inference-engine-version"] = spec.engine.version
    fields = Fields(CreateDeployment, {**body, **kept, **given})
    # A name that stays is its own; what it has of the platform is given back.
    others = tuple(d for d in world.deployments if d.metadata.uid != present.metadata.uid)
    alone = replace(world, deployments=others)
    admitted = admit_create(fields, alone, force=force, title="Deployment not replaced")
    if text := refuse_other_nodes(spec, admitted.spec, world.families):
        raise refuse("Deployment not replaced", [field_issue("gpu-count", text, status=412)])
    if fields.values.get("replicas") == 0:
        # Here it is said on purpose: there is a deployment that can be stopped.
        admitted = replace(admitted, spec=admitted.spec.model_copy(update={"replicas": 0}))
    return admitted


def admit_update(
    fields: Fields, present: InferenceDeployment, world: World, *, force: bool = False
) -> AdmittedDeployment:
    """Judge an update; fields that were not sent stay as they are.

    Flags and version that stay as they are have been admitted before, and are not refused now.

    Args:
        fields: of the body.
        present: the deployment as it is.
        world: what it is judged against.
        force: admit it although it does not fit into memory.

    Raises:
        Refused
    """
    issues = list(fields.issues)
    issues += [field_issue(key, text) for key, text in _NOT_BY_UPDATE.items() if key in fields.sent]
    values = {"name": present.metadata.name, **fields.values}
    spec = present.spec
    name = check_name(values, world, issues, uid=present.metadata.uid)
    family = next((f for f in world.families if f.family == spec.gpu_type), None)
    engine_name = spec.engine.name or check_engine({}, family, issues) or ""
    version = check_version(values, engine_name, issues) or spec.engine.version
    values.setdefault("inference_engine_parameters", list(spec.engine_parameters))
    parameters = check_parameters(values, issues)
    fit = None
    if engine_name not in ENGINES:
        issues.append(choice_issue("inference-engine", engine_name, ENGINES))
    elif parameters is not None and can_judge(engine_name, version):
        engine = spec.engine.model_copy(update={"version": version})
        changed = spec.model_copy(update={"engine": engine, "engine_parameters": parameters})
        candidate = Candidate(
            spec.model, spec.gpu_type, spec.gpu_count, engine_name, version, parameters
        )
        found = issues if changed != spec else []
        reservation = world.reservation(spec.model, spec.replicas, present.metadata.uid)
        fit = _check_fit(candidate, world, found, reservation, force=force, is_update=True)
    if issues or fit is None:
        raise _refuse("Deployment not updated", issues, fit)
    if changed != spec:
        fit = _reserve("Deployment not updated", fit, reservation, force=force)
    return AdmittedDeployment(name, changed, fit.plan, fit.event, fit.need, fit.is_guess)


def admit_scale(
    fields: Fields, present: InferenceDeployment, world: World, *, force: bool = False
) -> DeploymentSpec:
    """Judge a change of the number of replicas; 0 is allowed.

    Args:
        fields: of the body.
        present: the deployment as it is.
        world: what it is judged against.
        force: admit replicas that the machine has no memory for; they wait.

    Raises:
        Refused
    """
    issues = list(fields.issues)
    replicas = check_replicas(fields.values.get("replicas", 0), issues, minimum=0)
    if issues:
        raise refuse("Deployment not scaled", issues)
    reservation = world.reservation(present.spec.model, replicas, present.metadata.uid)
    share = reservation.share(need_of(present, reservation.model_bytes))
    shortage = find_shortage(reservation.reservations, share)
    if shortage is not None and not force:
        ways_out = describe_ways_out(reservation.reservations, share)
        raise refuse("Deployment not scaled", [shortage], ways_out=ways_out)
    return present.spec.model_copy(update={"replicas": replicas})


def admit_model_deletion(model: InferenceModel, world: World) -> None:
    """Judge the deletion of a model: no deployment may need it.

    Raises:
        Refused: 412, with the names of the deployments.
    """
    if find_older_model(model, world.models) is not None:
        return  # the older one is used
    users = [
        deployment.metadata.name
        for deployment in world.deployments
        if deployment.spec.model == model.spec.source
        and deployment.metadata.deletion_timestamp is None
    ]
    if users:
        raise Refused(
            412,
            "Model in use",
            f"the model {model.spec.source} is used by: {', '.join(users)}",
            hint="Delete these deployments first.",
            deployments=users,
        )


def find_draft_name(
    values: Mapping[str, Any],
    families: Sequence[InstanceTypeInfo],
    present: DeploymentSpec | None = None,
) -> str | None:
    """Return the draft model that a body's flags name, so that it can be looked up before all is judged.

    Args:
        values: of the body.
        families: what the platform has.
        present: what is changed or replaced; on the same GPU type it says what the body does not.
    """
    if present is not None and values.get("gpu_type", present.gpu_type) == present.gpu_type:
        ref = present.engine
        kept = {"gpu_type": present.gpu_type, "inference_engine": ref.name}
        values = {**kept, "inference_engine_version": ref.version, **values}
    family = next((each for each in families if each.family == values.get("gpu_type")), None)
    engine, flags = check_engine(values, family, []), check_parameters(values, [])
    if engine is None or flags is None:
        return None
    return read_draft_name(flags, engine, values.get("inference_engine_version"))


def _check_fit(
    candidate: Candidate,
    world: World,
    issues: list[Issue],
    reservation: ReservationRequest,
    *,
    force: bool,
    is_update: bool = False,
) -> Fit | None:
    """Add what is wrong with flags and memory; GPU counts beyond reason are left to the others."""
    count = candidate.gpu_count
    judged = candidate if 1 <= count <= MAX_GPUS else replace(candidate, gpu_type="", gpu_count=1)
    fit = judge_fit(
        judged,
        world.families,
        world.known,
        force=force,
        is_update=is_update,
        reservation=reservation,
    )
    issues += fit.issues
    return fit


def _reserve(title: str, fit: Fit, reservation: ReservationRequest, *, force: bool) -> Fit:
    """Reserve memory of the machine for all replicas; add what is worth a warning.

    Raises:
        Refused: 412, with the largest number that fits.
    """
    if fit.need is None:
        return fit
    share = reservation.share(fit.need)
    shortage = find_shortage(reservation.reservations, share)
    if shortage is not None and not force:
        raise refuse(title, [shortage], ways_out=describe_ways_out(reservation.reservations, share))
    problems, event = list(fit.plan.problems), fit.event
    if shortage is not None:
        waiting = f"{shortage.sentence}; those that do not fit wait until there is room"
        problems.append(warning("room", waiting))
        event = NewEvent("Warning", "Planned", f"admitted by force: {waiting}")
    if fit.plan.gpu_type == CPU_FAMILY:
        problems += find_cpu_oversubscription(reservation.reservations, share)
    return replace(fit, plan=fit.plan.model_copy(update={"problems": problems}), event=event)


def _refuse(title: str, issues: list[Issue], fit: Fit | None) -> Refused:
    if fit is None:
        return refuse(title, issues)
    ways_out, hint = fit.ways_out, None
    if len(issues) > 1:
        ways_out = tuple(f"to make it fit: {way}" for way in ways_out)
    elif ways_out:
        hint = "Any one of these makes it fit:"
    elif fit.issues and fit.issues[0].location is None:
        hint = "Choose a smaller model, or one whose weights are quantized."
    plan = fit.plan if fit.issues else None
    return refuse(title, issues, hint=hint, ways_out=ways_out, plan=plan)
