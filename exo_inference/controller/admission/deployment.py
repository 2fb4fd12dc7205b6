"""Whether a wanted change may be recorded: the one seam where requests and objects are judged. Pure.

Who asks hands over a `WantedDeployment` with what was wrong when it was read, and a `World` (what is
stored and what the platform has), and gets back a spec, or one refusal that lists every problem: shape
first, then flags, rules and memory (`fit.py`), then whether the machine has the GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from exo_inference.controller.admission.availability import (
    can_judge,
    check_capacity,
    check_engine,
    refuse_other_nodes,
)
from exo_inference.controller.admission.field_checks import (
    check_family,
    check_form,
    check_has_tokenizer,
    check_has_weights,
    check_model,
    check_name,
    check_parameters,
    check_replicas,
    check_version,
)
from exo_inference.controller.admission.fit import Fit, judge_fit
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
    short_number,
)
from exo_inference.controller.admission.world import World, find_family
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
from exo_inference.resources.wanted import WantedDeployment
from exo_inference.wire import DeploymentPlan, PlanProblem


@dataclass(frozen=True, slots=True)
class AdmittedDeployment:
    """A deployment that may be recorded, and what is recorded and answered with it.

    Attributes:
        plan: None where nothing was planned.
        events: what tells of the plan.
        need: what a replica takes of the machine that all share; None on a cluster.
        is_guess: the need is a guess, and better ones follow when the model's files are here.
        guard: keeps the write from taking memory that another one has taken meanwhile.
        warnings: of the number of replicas, where nothing was planned.
    """

    name: str
    spec: DeploymentSpec
    plan: DeploymentPlan | None = None
    events: tuple[NewEvent, ...] = ()
    need: ReplicaNeed | None = None
    is_guess: bool = False
    guard: Guard | None = None
    warnings: tuple[PlanProblem, ...] = ()

    @property
    def annotations(self) -> dict[str, str]:
        """What is recorded with the object itself of what it was admitted with."""
        if self.need is None or self.is_guess:
            return {}
        return {MEMORY_ANNOTATION: self.need.text}

    def guarded(self, title: str, world: World, uid: str, *, force: bool) -> AdmittedDeployment:
        """Return the same with its guard; what is forced has none."""
        if self.need is None or force:
            return self
        share = Share(uid, self.need, self.spec.replicas)
        guard = make_guard(world.reservations, share, model_sizes(world.models), title)
        return replace(self, guard=guard)


def admit_create(
    wanted: WantedDeployment,
    world: World,
    found: Sequence[Issue] = (),
    *,
    force: bool = False,
    title: str = "Deployment not created",
    is_stopped: bool = False,
) -> AdmittedDeployment:
    """Judge the creation of a deployment.

    Args:
        wanted: what is asked for.
        world: what it is judged against.
        found: what was wrong when it was read.
        force: admit it although it does not fit into memory.
        title: of a refusal.
        is_stopped: 0 replicas are meant, which take no room; any other number is refused.

    Raises:
        Refused
    """
    issues = list(found)
    name = check_name(wanted.name, world, issues, uid=None)
    model = check_model(wanted.model, world, issues)
    family = check_family(wanted, world, issues)
    check_has_weights(model, family, world, issues)
    engine = check_engine(wanted.engine, family, issues)
    has_form = check_form(model, engine, family, issues)
    check_has_tokenizer(model, engine, family, world, issues)
    version = check_version(wanted.engine_version, engine, issues)
    parameters = check_parameters(wanted, issues)
    # The vendor's own command line sends 0 when its user says nothing, so 0 means the default.
    replicas = 0 if is_stopped else check_replicas(wanted.replicas or 1, issues)
    if is_stopped and wanted.replicas:
        found_number = short_number(wanted.replicas)
        issues.append(field_issue("replicas", f"must be 0 with ?stopped, found {found_number}"))
    fit = None
    if has_form and parameters is not None and engine is not None and can_judge(engine, version):
        count = 1 if wanted.gpu_count is None else wanted.gpu_count
        spec = DeploymentSpec(
            model=model,
            # Fewer than one GPU are refused already; the flags are judged without them.
            gpu_type=wanted.gpu_type or "" if count >= 1 else "",
            gpu_count=max(1, count),
            engine=EngineRef(name=engine, version=version),
            engine_parameters=parameters,
            product_name=wanted.product_name,
        )
        reservation = world.reservation(model, replicas)
        fit = judge_fit(spec, world.families, world.known, force=force, reservation=reservation)
        issues += fit.issues
    check_capacity(wanted.gpu_count, family, engine, issues)
    if issues or fit is None:
        raise _refuse(title, issues, fit)
    fit = _reserve(title, fit, reservation, force=force)
    spec = spec.model_copy(update={"replicas": replicas})
    return _admitted(name, spec, fit).guarded(title, world, "", force=force)


def admit_replace(
    wanted: WantedDeployment,
    present: InferenceDeployment,
    world: World,
    found: Sequence[Issue] = (),
    *,
    force: bool = False,
) -> AdmittedDeployment:
    """Judge a deployment that takes the place of one under the same id, as if it were created now.

    Args:
        wanted: what shall be; see `keep` for what it leaves open.
        present: the deployment as it is.
        world: what it is judged against.
        found: what was wrong when it was read.
        force: admit it although it does not fit into memory.

    Raises:
        Refused
    """
    title = "Deployment not replaced"
    wanted = keep(wanted, present)
    # A name that stays is its own; what it has of the platform is given back.
    alone = world.without(present.metadata.uid)
    # Here 0 is said on purpose: there is a deployment that can be stopped.
    admitted = admit_create(
        wanted, alone, found, force=force, title=title, is_stopped=wanted.replicas == 0
    )
    if text := refuse_other_nodes(present.spec, admitted.spec, world.families):
        raise refuse(title, [field_issue("gpu-count", text, status=412)])
    return admitted.guarded(title, world, present.metadata.uid, force=force)


def keep(wanted: WantedDeployment, present: InferenceDeployment) -> WantedDeployment:
    """Return what a replacement asks for, with what stays of the deployment that it replaces.

    Name, replicas and product stay where it leaves them open; on the same GPU type the engine, and with
    the same engine its version.
    """
    before = WantedDeployment.of(present)
    kept = WantedDeployment(
        name=before.name, replicas=before.replicas, product_name=before.product_name
    )
    if wanted.gpu_type == before.gpu_type:
        is_same = wanted.engine in (None, before.engine)
        version = before.engine_version if is_same else None
        kept = replace(kept, engine=before.engine, engine_version=version)
    return wanted.over(kept)


def admit_update(
    wanted: WantedDeployment,
    present: InferenceDeployment,
    world: World,
    found: Sequence[Issue] = (),
    *,
    force: bool = False,
) -> AdmittedDeployment:
    """Judge an update; what it leaves open stays as it is.

    Flags and version that stay as they are have been admitted before, and are not refused now.

    Args:
        wanted: what shall be another.
        present: the deployment as it is.
        world: what it is judged against.
        found: what was wrong when it was read.
        force: admit it although it does not fit into memory.

    Raises:
        Refused
    """
    issues, spec, title = list(found), present.spec, "Deployment not updated"
    whole = wanted.over(WantedDeployment.of(present))
    name = check_name(whole.name, world, issues, uid=present.metadata.uid)
    family = find_family(spec.gpu_type, world.families)
    engine_name = spec.engine.name or check_engine(None, family, issues) or ""
    version = check_version(wanted.engine_version, engine_name, issues) or spec.engine.version
    parameters = check_parameters(whole, issues)
    fit = None
    if engine_name not in ENGINES:
        issues.append(choice_issue("inference-engine", engine_name, ENGINES))
    elif parameters is not None and can_judge(engine_name, version):
        engine = spec.engine.model_copy(update={"version": version})
        changed = spec.model_copy(update={"engine": engine, "engine_parameters": parameters})
        chosen = EngineRef(name=engine_name, version=version)
        judged = changed.model_copy(update={"engine": chosen})
        reservation = world.reservation(spec.model, spec.replicas, present.metadata.uid)
        fit = judge_fit(
            judged, world.families, world.known,
            force=force, is_update=True, reservation=reservation,
        )  # fmt: skip
        issues += fit.issues if changed != spec else ()
    if issues or fit is None:
        raise _refuse(title, issues, fit)
    if changed == spec:
        return _admitted(name, spec, fit)
    fit = _reserve(title, fit, reservation, force=force)
    return _admitted(name, changed, fit).guarded(title, world, present.metadata.uid, force=force)


def admit_scale(
    wanted: WantedDeployment,
    present: InferenceDeployment,
    world: World,
    found: Sequence[Issue] = (),
    *,
    force: bool = False,
) -> AdmittedDeployment:
    """Judge a change of the number of replicas; 0 is allowed.

    Args:
        wanted: how many.
        present: the deployment as it is.
        world: what it is judged against.
        found: what was wrong when it was read.
        force: admit replicas that the machine has no memory for; they wait.

    Raises:
        Refused
    """
    issues, title, uid = list(found), "Deployment not scaled", present.metadata.uid
    replicas = check_replicas(wanted.replicas or 0, issues, minimum=0)
    if issues:
        raise refuse(title, issues)
    reservation = world.reservation(present.spec.model, replicas, uid)
    need = need_of(present, reservation.model_bytes)
    room = _find_room(title, reservation, need, present.spec.gpu_type, force=force)
    spec = present.spec.model_copy(update={"replicas": replicas})
    admitted = AdmittedDeployment(
        present.metadata.name, spec, warnings=room.warnings, events=room.events, need=need
    )
    return admitted.guarded(title, world, uid, force=force)


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


def find_draft_name(wanted: WantedDeployment, families: Sequence[InstanceTypeInfo]) -> str | None:
    """Return the draft model that the flags name, so that it can be looked up before all is judged."""
    engine = check_engine(wanted.engine, find_family(wanted.gpu_type, families), [])
    flags = check_parameters(wanted, [])
    if engine is None or flags is None:
        return None
    return read_draft_name(flags, engine, wanted.engine_version)


def _admitted(name: str, spec: DeploymentSpec, fit: Fit) -> AdmittedDeployment:
    return AdmittedDeployment(name, spec, fit.plan, (fit.event,), fit.need, fit.is_guess)


@dataclass(frozen=True, slots=True)
class _Room:
    """That a number of replicas may be asked for, and what is to be said of it."""

    warnings: tuple[PlanProblem, ...] = ()
    events: tuple[NewEvent, ...] = ()


def _find_room(
    title: str, reservation: ReservationRequest, need: ReplicaNeed, gpu_type: str, *, force: bool
) -> _Room:
    """Find memory of the machine for all replicas.

    Raises:
        Refused: 412, with the largest number that fits.
    """
    share = reservation.share(need)
    shortage = find_shortage(reservation.reservations, share)
    if shortage is not None and not force:
        raise refuse(title, [shortage], ways_out=describe_ways_out(reservation.reservations, share))
    warnings: list[PlanProblem] = []
    events: tuple[NewEvent, ...] = ()
    if shortage is not None:
        waiting = f"{shortage.sentence}; those that do not fit wait until there is room"
        warnings.append(warning("room", waiting))
        events = (NewEvent("Warning", "Planned", f"admitted by force: {waiting}"),)
    if gpu_type == CPU_FAMILY:
        warnings += find_cpu_oversubscription(reservation.reservations, share)
    return _Room(tuple(warnings), events)


def _reserve(title: str, fit: Fit, reservation: ReservationRequest, *, force: bool) -> Fit:
    """Reserve memory of the machine for all replicas; add what is worth a warning.

    Raises:
        Refused: 412, with the largest number that fits.
    """
    if fit.need is None:
        return fit
    room = _find_room(title, reservation, fit.need, fit.plan.gpu_type, force=force)
    plan = fit.plan.model_copy(update={"problems": [*fit.plan.problems, *room.warnings]})
    return replace(fit, plan=plan, event=room.events[0] if room.events else fit.event)


def _refuse(title: str, issues: list[Issue], fit: Fit | None) -> Refused:
    if fit is None:
        return refuse(title, issues)
    ways_out, hint = fit.ways_out, None
    if len(issues) > 1:
        ways_out = tuple(f"to make it fit: {way}" for way in ways_out)
    elif ways_out:
        hint = "Any one of these makes it fit:"
    elif fit.issues and fit.issues[0].location is None and not fit.says_step:
        hint = "Choose a smaller model, or one whose weights are quantized."
    plan = fit.plan if fit.issues else None
    return refuse(title, issues, hint=hint, ways_out=ways_out, plan=plan)
